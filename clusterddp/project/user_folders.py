"""Open and make folders that only this user can write."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_MOST_LINKS = 40  # in one path, as in Linux
# Where only names in a folder are looked up; other systems want to read it as well.
LOOK_UP = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_IS_A_LINK = {errno.ELOOP, errno.ENOTDIR, errno.EMLINK}
_ROOT = 0


def make_private(folder: Path) -> None:
    """Make a folder and missing parents, all 0700: ``Path.mkdir`` leaves the mode of parents to the umask."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def user_cache() -> Path:
    """Return our folder in this user's cache: ``$XDG_CACHE_HOME/clusterddp``, else ``~/.cache/clusterddp``.

    Raises OSError if this user has no home folder.
    """
    return user_folder("XDG_CACHE_HOME", "~/.cache")


def user_folder(variable: str, usual: str) -> Path:
    """Return our folder below a directory of the XDG specification.

    ``variable``: the environment variable that may name the directory; a relative path there is ignored. ``usual``: the
    directory otherwise, below ``~``. Raises OSError if this user has no home folder.
    """
    base = os.environ.get(variable, "")
    base = base if os.path.isabs(base) else os.path.expanduser(usual)  # noqa: PTH111, PTH117 - Path's raises
    if not os.path.isabs(base):  # noqa: PTH117
        raise FileNotFoundError(errno.ENOENT, "this user has no home folder", base)
    return Path(base) / "clusterddp"


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[int]:
    """Open a folder for the block; yield its descriptor."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def opened_private(folder: Path) -> Iterator[int]:
    """Open a folder that only this user can write, checked on the descriptor; yield that.

    Raises OSError if it does not exist, or another user may write in it.
    """
    with opened(folder) as handle:
        _refuse_others(os.fstat(handle), folder)
        yield handle


def read_private(folder: int, name: str) -> bytes:
    """Read a file that only this user can have written, in a folder of ``opened_private``.

    Raises OSError if it does not exist, is a link or not a file, or another user may have written it.
    """
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(handle, "rb") as file:
        info = os.fstat(handle)
        _refuse_others(info, Path(name))
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "is no file", name)
        return file.read()


def _refuse_others(info: os.stat_result, path: Path) -> None:
    if info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "can be written by another user", str(path))


class StrangersLinkError(Exception):
    """A link in a path belongs to a user who could redirect us with it."""

    def __init__(self, name: str, uid: int) -> None:
        super().__init__(f"{name} on the way there is a link of uid {uid}")
        self.name, self.uid = name, uid


class Walk:
    """Opens a path name by name, and follows a link only if an allowed user owns it.

    ``may_own``: whether links of a user are followed, by uid.
    """

    def __init__(self, may_own: Callable[[int], bool]) -> None:
        self._may_own = may_own
        self._left = _MOST_LINKS

    def step(self, folder: int, name: str, flags: int) -> int:
        """Open a name in an open folder; return the descriptor. Raises StrangersLinkError."""
        try:
            return os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
        except OSError as error:
            target = self._target(folder, name) if error.errno in _IS_A_LINK else None
            if target is None:
                raise
        self._left -= 1
        if self._left < 0:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return self._follow(folder, target, flags)

    def _follow(self, folder: int, target: str, flags: int) -> int:
        at = os.open("/", LOOK_UP) if target.startswith("/") else os.dup(folder)
        names = [part for part in target.split("/") if part not in {"", "."}] or ["."]
        for number, name in enumerate(names, 1):
            try:
                inner = self.step(at, name, flags if number == len(names) else LOOK_UP)
            finally:
                os.close(at)
            at = inner
        return at

    def _target(self, folder: int, name: str) -> str | None:
        """Return a link's target; None if it is not a link."""
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISLNK(info.st_mode):
            return None
        target = os.readlink(name, dir_fd=folder)
        again = os.stat(name, dir_fd=folder, follow_symlinks=False)
        same = (info.st_ino, info.st_ctime_ns) == (again.st_ino, again.st_ctime_ns)
        if not same or not self._may_own(info.st_uid):
            raise StrangersLinkError(name, info.st_uid)
        return target


def open_folder(folder: Path, *, make: int | None = None) -> int:
    """Open a folder name by name, over links of this user and root alone; return its descriptor.

    ``make``: the mode of missing folders, which are made; None: none is made. Raises StrangersLinkError if a link of
    another user is in the path.
    """
    walk = Walk({os.geteuid(), _ROOT}.__contains__)
    read = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    names = folder.parts[1:] if folder.is_absolute() else folder.parts
    at = os.open("/" if folder.is_absolute() else ".", LOOK_UP if names else read)
    for number, name in enumerate(names, 1):
        flags = read if number == len(names) else LOOK_UP
        try:
            inner = walk.step(at, name, flags) if make is None else _step_or_make(walk, at, name, flags, make)
        finally:
            os.close(at)
        at = inner
    return at


def _step_or_make(walk: Walk, folder: int, name: str, flags: int, mode: int) -> int:
    try:
        return walk.step(folder, name, flags)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):  # made by another process meanwhile, or a dangling link
            os.mkdir(name, mode, dir_fd=folder)
        return walk.step(folder, name, flags)
