"""One line on stderr's terminal that says what is being done now; nothing elsewhere."""

from __future__ import annotations

import sys
import threading

_CLEAR = "\r\x1b[K"


class Progress:
    """The line; it is wiped when the context ends, so that what follows stands alone."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._lock = threading.Lock()

    def __enter__(self) -> Progress:  # noqa: PYI034 - typing.Self is Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self._write(_CLEAR)

    def show(self, text: str) -> None:
        """Replace the line."""
        self._write(f"{_CLEAR}clusterddp: {text}…")

    def _write(self, text: str) -> None:
        if self._terminal:
            with self._lock:
                sys.stderr.write(text)
                sys.stderr.flush()
