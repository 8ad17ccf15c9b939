"""Who holds a lock or a marker in a workdir that several hosts may share: a process, named in a file's name.

On its own host it is known for sure whether it lives: by the boot, the pid and the process's start. Other hosts cannot
know, and go by its beat: the file's mtime against that of a file just written there, both by the clock of the folder's
server; no clock of a host is asked.
"""

import os
from typing import NamedTuple, Optional

from ..shared.wire.chunks import digest_of
from ..system import procfs
from ..system.bootstrap import private_folder

_ID = "host-id"  # in the state folder: hosts cloned from one image have one machine-id, and perhaps one name


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
        """The owner in a file's name, or None where there is none."""
        parts = text.split("-")
        if len(parts) != 4 or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts[2:]):
            return None
        return cls(parts[0], parts[1], int(parts[2]), int(parts[3]))

    def lives(self, here: "LockOwner") -> Optional[bool]:
        """Whether it lives, as far as ``here``, a process of this host, can know: None of another host's."""
        if self.boot != here.boot:
            return False if self.host == here.host else None
        return is_alive(self.pid, self.ticks)


def is_alive(pid: int, ticks: int) -> bool:
    """Whether the process of that start lives; one that has ended and not been waited for does not."""
    process = procfs.read_process(pid)
    return process is not None and process.ticks == ticks


def owner_of(state: str, pid: int) -> LockOwner:
    """A process of this host."""
    named = "%s %s" % (os.uname().nodename, _host_id(state))
    return LockOwner(_short(named), _short(procfs.boot_identity()), pid, procfs.start_ticks(pid) or 0)


def _short(text: str) -> str:
    return digest_of(text.encode("utf-8", "surrogateescape"))[:16]


def _host_id(state: str) -> str:
    """A random word of this host's state folder, made at the first use; of two makers the first one's stands."""
    path = os.path.join(private_folder(state), _ID)
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            return stream.read()
    except FileNotFoundError:  # not made yet
        pass
    temporary = "%s.%d-%s.tmp" % (path, os.getpid(), os.urandom(6).hex())
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(os.urandom(16).hex().encode())
        os.link(temporary, path)
    except FileExistsError:  # another process was first: its word is read below
        pass
    except OSError as error:  # a full disk: whose it is, is told by the path
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.unlink(temporary)
    return _host_id(state)


def last_beat(path: bytes) -> Optional[float]:
    """A file's mtime; None where it is gone. Opening it asks the server: a network filesystem's ``stat`` may be old."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return os.fstat(handle).st_mtime
    finally:
        os.close(handle)
