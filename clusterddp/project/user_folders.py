"""Open and make folders that only this user can write."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_MAX_LINKS = 40  # in one path, as in Linux
# For a folder in which names are only looked up; without O_PATH it has to be readable too.
LOOKUP_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_IS_A_LINK = {errno.ELOOP, errno.ENOTDIR, errno.EMLINK}
_ROOT = 0


def user_path(text: str) -> Path:
    """Return a path as a user wrote it, with ``~`` expanded; with the name of an unknown user it stays as it is."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path's raises for an unknown user


def is_there(path: Path) -> bool:
    """Whether this user can see a file or folder; what lies where the user may not search is not there."""
    return os.path.exists(path)  # noqa: PTH110 - Path's raises


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
def open_for_block(folder: Path) -> Iterator[int]:
    """Open a folder for the block; yield its descriptor."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def open_private(folder: Path) -> Iterator[int]:
    """Open a folder that only this user can write, for the block; yield its descriptor.

    Raises OSError if it does not exist, or another user may write in it.
    """
    with open_for_block(folder) as handle:
        _refuse_access_by_others(os.fstat(handle), folder)
        yield handle


def read_private(folder: int, name: str) -> bytes:
    """Read a file that only this user can have written, in an open folder (``open_private``).

    Raises OSError if it does not exist, is a link or not a file, or another user may have written it.
    """
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(handle, "rb") as file:
        info = os.fstat(handle)
        _refuse_access_by_others(info, Path(name))
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "is no file", name)
        return file.read()


def _refuse_access_by_others(info: os.stat_result, path: Path) -> None:
    if info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "can be written by another user", str(path))


class ForeignLinkError(Exception):
    """A link in a path belongs to a user who could redirect us with it."""

    def __init__(self, name: str, uid: int) -> None:
        super().__init__(f"{name} on the way there is a link of uid {uid}")
        self.name, self.uid = name, uid


class Walk:
    """Opens a path name by name, and follows a link only if an allowed user owns it.

    ``may_own``: called with the uid of a link's owner; returns whether the link is followed.
    """

    def __init__(self, may_own: Callable[[int], bool]) -> None:
        self._may_own = may_own
        self._links_left = _MAX_LINKS

    def step(self, folder: int, name: str, flags: int) -> int:
        """Open a name in an open folder, through links; return the descriptor. Raises ForeignLinkError."""
        try:
            return os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
        except OSError as error:
            target = self._target(folder, name) if error.errno in _IS_A_LINK else None
            if target is None:
                raise
        self._links_left -= 1
        if self._links_left < 0:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return self._follow(folder, target, flags)

    def _follow(self, folder: int, target: str, flags: int) -> int:
        """Open the target of a link that lies in ``folder``, name by name."""
        current = os.open("/", LOOKUP_FLAGS) if target.startswith("/") else os.dup(folder)
        names = [part for part in target.split("/") if part not in {"", "."}] or ["."]
        for number, name in enumerate(names, 1):
            try:
                inner = self.step(current, name, flags if number == len(names) else LOOKUP_FLAGS)
            finally:
                os.close(current)
            current = inner
        return current

    def _target(self, folder: int, name: str) -> str | None:
        """Return a link's target; None if it is no link. Raises ForeignLinkError if its owner may not redirect us."""
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISLNK(info.st_mode):
            return None
        target = os.readlink(name, dir_fd=folder)
        again = os.stat(name, dir_fd=folder, follow_symlinks=False)
        same = (info.st_ino, info.st_ctime_ns) == (again.st_ino, again.st_ctime_ns)
        if not same or not self._may_own(info.st_uid):
            raise ForeignLinkError(name, info.st_uid)
        return target


def open_folder(folder: Path, *, missing_mode: int | None = None) -> int:
    """Open a folder name by name, over links of this user and root alone; return its descriptor.

    ``missing_mode``: the mode of missing folders, which are made; None: none is made. Raises ForeignLinkError if a link
    of another user is in the path.
    """
    walk = Walk({os.geteuid(), _ROOT}.__contains__)
    read = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    names = folder.parts[1:] if folder.is_absolute() else folder.parts
    current = os.open("/" if folder.is_absolute() else ".", LOOKUP_FLAGS if names else read)
    for number, name in enumerate(names, 1):
        flags = read if number == len(names) else LOOKUP_FLAGS
        try:
            step = walk.step if missing_mode is None else partial(_step_or_make, walk, missing_mode)
            inner = step(current, name, flags)
        finally:
            os.close(current)
        current = inner
    return current


def _step_or_make(walk: Walk, mode: int, folder: int, name: str, flags: int) -> int:
    """Open a name in an open folder, made with this mode if it is missing."""
    try:
        return walk.step(folder, name, flags)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):  # made by another process meanwhile, or a dangling link
            os.mkdir(name, mode, dir_fd=folder)
        return walk.step(folder, name, flags)
