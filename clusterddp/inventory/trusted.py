"""Opens an inventory and the files beside it: each only once, by descriptor, and only if trusted users wrote it.

A user who names an inventory trusts everybody who may write it; variable files beside it are read only if they, the
user or root own them. A path that was remembered for later is not followed over another user's link, so it leads where
it led before.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import InventoryError
from clusterddp.project.consent import Writers, user_name
from clusterddp.project.user_folders import LOOKUP_FLAGS, ForeignLinkError, Walk

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BYTES = 10 << 20  # the largest file: a hundred thousand hosts
_FILE_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_PERMISSIONS_REMEDY = "check the path and its permissions"


@dataclass(frozen=True, kw_only=True, slots=True)
class InventorySource:
    """An inventory's bytes, and who may write the files that are read beside it; see ``open_inventory``."""

    path: Path
    info: os.stat_result
    data: bytes = field(repr=False)
    writers: Writers
    folder: int

    def read_beside(self, path: Path) -> bytes:
        """The bytes of a file below the inventory's folder.

        Raises ``InventoryError`` if it cannot be read, or if somebody could have written it who may not write the
        inventory.
        """
        *folders, last = path.relative_to(self.path.parent).parts
        walk, handle = Walk(self.writers.may_own), self.folder
        with _read_errors(path), contextlib.ExitStack() as handles:
            for name, flags in (*((name, LOOKUP_FLAGS) for name in folders), (last, _FILE_FLAGS)):
                handle = walk.step(handle, name, flags)
                handles.callback(os.close, handle)
                self._refuse(path, handle)
            return _read_regular(handle, path)

    def _refuse(self, path: Path, handle: int) -> None:
        """Raise if somebody who may not write the inventory may write this open file or folder."""
        info = os.fstat(handle)
        objection = self.writers.objection(info)
        if objection:
            what = "its folder " if stat.S_ISDIR(info.st_mode) else ""
            whom = f", who may not write {self.path.name}"
            remedy = "make it yours, writable by nobody else (chmod go-w), or move it away"
            raise InventoryError(f"{what}{objection}{whom}: it is not read", where=str(path), remedy=remedy)


@contextlib.contextmanager
def open_inventory(path: Path, remembered: Writers | None = None) -> Iterator[InventorySource]:
    """Open an inventory file and its folder; the content is read from the descriptor.

    ``remembered`` says who could write the file when `up` was given it; None if the user names it now. Raises
    ``FileNotFoundError``; ``InventoryError`` if it cannot be read, or others than those of ``remembered`` can write it.
    """
    with contextlib.ExitStack() as handles:
        with _read_errors(path):
            folder, file = _open_named(path) if remembered is None else _open_remembered(path, remembered)
        handles.callback(os.close, folder)
        handles.callback(os.close, file)
        info = os.fstat(file)
        objection = remembered.objection(info) if remembered else ""
        if objection:
            remedy = f"if you trust that: `clusterddp up {shlex.quote(str(path))}`"
            raise InventoryError(f"{objection}, unlike when `up` was given it", where=str(path), remedy=remedy)
        with _read_errors(path):
            data = _read_regular(file, path) if stat.S_ISREG(info.st_mode) else b""
        yield InventorySource(path=path, info=info, data=data, writers=remembered or Writers.of(info), folder=folder)


def refuse_beside(path: Path) -> None:
    """Refuse an inventory for another program if files beside or in it could have been written by more people.

    More than the inventory's own writers, that is; the ``InventoryError`` names the file.
    """
    writers = Writers.of(path.stat())
    roots = [path] if path.is_dir() else [path.parent / kind for kind in ("group_vars", "host_vars")]
    for root in roots:
        for folder, _, names in os.walk(root, followlinks=True):
            for file in (Path(folder), *(Path(folder, name) for name in names)):
                _refuse_file(file, writers, path)


def _refuse_file(file: Path, writers: Writers, path: Path) -> None:
    """Raise if somebody who may not write the inventory ``path`` could have written the file, or its link."""
    try:
        link, info = file.lstat(), file.stat()
    except OSError:  # a broken link, which nobody can read
        return
    objection = writers.objection(info)
    if not objection and not writers.may_own(link.st_uid):
        objection = f"is a link of {user_name(link.st_uid)}"
    if objection:
        remedy = "make it yours, writable by nobody else (chmod go-w), or move it away"
        raise InventoryError(f"{objection}, who may not write {path.name}", where=str(file), remedy=remedy)


def _open_named(path: Path) -> tuple[int, int]:
    """Open the folder and the file of an inventory that the user names now; returns the descriptors."""
    file = os.open(path, _FILE_FLAGS)
    try:
        return os.open(path.parent, LOOKUP_FLAGS), file
    except OSError:
        os.close(file)
        raise


def _open_remembered(path: Path, writers: Writers) -> tuple[int, int]:
    """The same for a path that was remembered: no link of another user on the way is followed."""
    walk = Walk(writers.may_own)
    folder = os.open("/", LOOKUP_FLAGS)
    try:
        for name in path.parent.parts[1:]:
            inner = walk.step(folder, name, LOOKUP_FLAGS)
            os.close(folder)
            folder = inner
        return folder, walk.step(folder, path.name, _FILE_FLAGS)
    except BaseException:
        os.close(folder)
        raise


def _read_regular(handle: int, path: Path) -> bytes:
    """The content of an open file, which must be a regular one of at most MAX_BYTES; ``path`` is for errors."""
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise InventoryError("is no file", where=str(path), remedy="give a file, or remove it")
    with os.fdopen(os.dup(handle), "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InventoryError(f"is larger than {MAX_BYTES >> 20} MiB", where=f"{path}:1", remedy="is it an inventory?")
    return data


@contextlib.contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    """Turn errors of the system into ``InventoryError``, except that the file is missing."""
    try:
        yield
    except FileNotFoundError:
        raise
    except ForeignLinkError as error:
        what = f"{error.name} on the way there is a link of {user_name(error.uid)}"
        remedy = "remove the link, or name the file itself"
        raise InventoryError(what, where=str(path), remedy=remedy) from None
    except OSError as error:
        raise InventoryError(f"cannot be read: {error.strerror}", where=str(path), remedy=_PERMISSIONS_REMEDY) from None
