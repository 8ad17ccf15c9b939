"""The process that owns a lock or a marker in a workdir that several hosts may share, as named in the file's name.

The owner's own host knows for sure whether it lives: by the boot, the pid and the process's start time. Other hosts
cannot know, and judge by its heartbeat: the file's mtime is compared with that of a file just written there, so that
both times are by the file server's clock and no host's clock matters.
"""

import os
from typing import NamedTuple, Optional

from ..shared.wire.chunks import digest_of
from ..system import procfs
from ..system.bootstrap import private_folder

_HOST_ID_FILE = "host-id"  # in the state folder: hosts cloned from one image have one machine-id, and perhaps one name


class LockOwner(NamedTuple):
    """A process: its host, that host's boot, its pid, its start time in ticks."""

    host: str
    boot: str
    pid: int
    ticks: int

    def __str__(self) -> str:
        return "%s-%s-%d-%d" % self

    @classmethod
    def parse(cls, text: str) -> "Optional[LockOwner]":
        """Return the owner in a file's name, or None if the text names none."""
        parts = text.split("-")
        if len(parts) != 4 or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts[2:]):
            return None
        return cls(parts[0], parts[1], int(parts[2]), int(parts[3]))

    def lives(self, asking: "LockOwner") -> Optional[bool]:
        """Return whether the process lives; None if it is of another host than ``asking``, which then cannot know."""
        if self.boot != asking.boot:
            return False if self.host == asking.host else None
        return is_alive(self.pid, self.ticks)


def is_alive(pid: int, ticks: int) -> bool:
    """Return whether the process with this pid and start time is alive; a zombie is not."""
    process = procfs.read_process(pid)
    return process is not None and process.ticks == ticks


def owner_of(state: str, pid: int) -> LockOwner:
    """Return the LockOwner of a process on this host."""
    return LockOwner(host_of(state), _short(procfs.boot_identity()), pid, procfs.start_ticks(pid) or 0)


def host_of(state: str) -> str:
    """Return this host's identity, as in ``LockOwner.host``."""
    return _short("%s %s" % (os.uname().nodename, _host_id(state)))


def _short(text: str) -> str:
    return digest_of(text.encode("utf-8", "surrogateescape"))[:16]


def _host_id(state: str) -> str:
    """Return the random id of this host's state folder, created at its first use; the first of two creators wins."""
    path = os.path.join(private_folder(state), _HOST_ID_FILE)
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except FileNotFoundError:  # not made yet
        pass
    temporary = "%s.%d-%s.tmp" % (path, os.getpid(), os.urandom(6).hex())
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(os.urandom(16).hex().encode())
        os.link(temporary, path)
    except FileExistsError:  # another process was first: its id is read below
        pass
    except OSError as error:  # such as a full disk: the path shows which one
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.unlink(temporary)
    return _host_id(state)


def last_heartbeat(path: bytes) -> Optional[float]:
    """Return a file's mtime, or None if it is gone.

    It is opened first: that asks the file server, while ``stat`` may return an old, cached time.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return os.fstat(handle).st_mtime
    finally:
        os.close(handle)
