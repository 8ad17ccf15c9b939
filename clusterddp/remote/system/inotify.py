"""Wait until something in some folders changes, by inotify, or by frequent polling where that is not available."""

import os
import select
import time

from .prctl import libc

_MODIFY, _MOVED_TO, _CREATE = 0x2, 0x80, 0x100
POLL_INTERVAL = 0.02  # seconds between two returns of ``wait`` without inotify


class FolderWatch:
    """Waits until a file is written, made in or moved into the folders; it may return early or miss a change."""

    def __init__(self, *folders: str) -> None:
        self._handle = _watch(folders)
        self._poll = select.poll()
        if self._handle >= 0:
            self._poll.register(self._handle, select.POLLIN)

    def wait(self, seconds: float) -> None:
        """Return at a change, at the latest after ``seconds``."""
        if self._handle < 0:
            time.sleep(min(seconds, POLL_INTERVAL))
        elif self._poll.poll(seconds * 1000):
            try:
                os.read(self._handle, 1 << 16)
            except BlockingIOError:
                pass  # no event was there

    def close(self) -> None:
        """Close the inotify descriptor."""
        if self._handle >= 0:
            os.close(self._handle)


def _watch(folders: "tuple[str, ...]") -> int:
    """An inotify descriptor for the folders, or -1: a user may have only ``max_user_instances`` of them."""
    try:
        library = libc()
        handle = int(library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    except (OSError, AttributeError):
        return -1
    for folder in folders if handle >= 0 else ():
        if library.inotify_add_watch(handle, os.fsencode(folder), _MODIFY | _MOVED_TO | _CREATE) < 0:
            os.close(handle)
            return -1
    return handle
