"""Open folders below a workdir one inside the other, so that a change is made in the folder that was checked.

Other users may write in a workdir, or in some folders of it. If one of them replaces a folder by a link, the change is
refused, and no file of this user's that the link leads to is touched.
"""

import errno
import os
import stat
from typing import List, Optional, Tuple

from ..shared.workdir.manifest import as_text, exists_in, on_disk
from ..system.bootstrap import Refused
from ..system.code_finder import open_folder

_FOLDER_FLAGS = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class FolderTree:
    """Changes in the folders below ``root``, a path without links; the root and the last folder used stay open."""

    def __init__(self, root: bytes) -> None:
        self._root = root
        self._root_handle: Optional[int] = None
        self._open: Optional[Tuple[str, int]] = None

    def open_root(self) -> int:
        """Open the root at the first call, and return its descriptor; raises Refused if its path has a symlink."""
        if self._root_handle is None:
            try:
                self._root_handle, _ = open_folder(os.fsdecode(self._root), alone=False, links=0)
            except OSError as error:
                if error.errno in (0, errno.ELOOP):
                    raise refusal_of_replaced(self._root) from None
                raise
        return self._root_handle

    def close(self) -> None:
        """Close the root and the open folder."""
        self.close_folder()
        if self._root_handle is not None:
            os.close(self._root_handle)
            self._root_handle = None

    def locate(self, path: str) -> Tuple[int, bytes]:
        """A descriptor of the folder above a path of the manifest, and the path's last name; raises Refused."""
        folder, _, name = path.rpartition("/")
        if self._open is None or self._open[0] != folder:
            self.close_folder()
            self._open = folder, self._open_folder(folder)
        return self._open[1], on_disk(name)

    def close_folder(self) -> None:
        """Close the open folder, so that it is opened anew after folders were made or removed."""
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def _open_folder(self, folder: str) -> int:
        """Open a folder below the root, following no link; raises Refused if one is on the way."""
        handle = os.dup(self.open_root())
        for name in folder.split("/") if folder else ():
            parent = handle
            try:
                handle = os.open(on_disk(name), os.O_PATH | _FOLDER_FLAGS, dir_fd=parent)
            except NotADirectoryError:
                raise refusal_of_replaced(self._root, folder) from None
            finally:
                os.close(parent)
        return handle

    def unlink(self, path: str) -> None:
        """Remove a file or link."""
        folder, name = self.locate(path)
        os.unlink(name, dir_fd=folder)

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""
        folder, name = self.locate(path)
        os.rmdir(name, dir_fd=folder)
        self.close_folder()

    def mkdir(self, path: str) -> None:
        """Make a folder."""
        folder, name = self.locate(path)
        os.mkdir(name, dir_fd=folder)

    def exists(self, path: str) -> bool:
        """Whether anything has that name, including a dangling link."""
        try:
            folder, name = self.locate(path)
        except FileNotFoundError:
            return False
        return exists_in(name, folder)

    def keep_as(self, path: str, kept: str) -> None:
        """Give a file a second name in its folder; what cannot have one, such as a folder, is renamed."""
        folder, name = self.locate(path)
        kept_name = on_disk(kept.rpartition("/")[2])
        try:
            os.link(name, kept_name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except OSError:  # a folder, or a filesystem without hard links
            os.rename(name, kept_name, src_dir_fd=folder, dst_dir_fd=folder)
            self.close_folder()

    def rename(self, path: str, to: str) -> None:
        """Rename a file within its folder, replacing whatever has the new name."""
        folder, name = self.locate(path)
        os.rename(name, on_disk(to.rpartition("/")[2]), src_dir_fd=folder, dst_dir_fd=folder)

    def set_executable(self, path: str, *, executable: bool) -> None:
        """Make a file executable for those who can read it, or for nobody; raises Refused if it is no file any more."""
        folder, name = self.locate(path)
        try:
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except OSError as error:
            raise refusal_of_replaced(self._root, path) from error
        try:
            mode = os.fstat(handle).st_mode
            if mode & 0o170000 != 0o100000:
                raise refusal_of_replaced(self._root, path)
            mode &= 0o7777
            os.fchmod(handle, mode | (mode & 0o444) >> 2 | 0o100 if executable else mode & ~0o111)
        finally:
            os.close(handle)

    def remove_bytecode(self, path: str) -> None:
        """Remove the bytecode of a module, and its folder if that is then empty."""
        folder, name = self.locate(path)
        stem = os.fsdecode(name)[:-2]
        try:
            cache = os.open("__pycache__", os.O_RDONLY | _FOLDER_FLAGS, dir_fd=folder)
        except OSError:  # none, or not ours to read
            return
        try:
            names = os.listdir(cache)
            for name_in_cache in names:
                if name_in_cache.startswith(stem) and name_in_cache.endswith(".pyc"):
                    os.unlink(name_in_cache, dir_fd=cache)
            if names:
                os.rmdir("__pycache__", dir_fd=folder)
        except OSError:  # other modules' bytecode is left in it
            pass
        finally:
            os.close(cache)


def open_or_make(path: bytes) -> int:
    """Open a folder, after making the missing part of its path; returns an O_PATH descriptor.

    Only links of this user and root are followed. Raises Refused if another user's link is on the way; OSError if a
    folder cannot be made.
    """
    handle, missing = _open_deepest_existing(path)
    return _open_names(handle, missing)


def real_folder(path: bytes, links: int = 40) -> bytes:
    """Resolve the links of a folder's path, which need not exist; only links of this user and root are followed.

    At most ``links`` dangling ones are. Raises Refused if another user's link is on the way, since it could lead
    anywhere the next time; OSError if it is no folder.
    """
    handle, missing = _open_deepest_existing(path)
    try:
        existing = os.readlink(path_of(handle))
        link_target = _link_target(handle, missing[0], path) if missing else None
    finally:
        os.close(handle)
    if link_target is None:
        return os.path.join(existing, *missing)
    if not links:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return real_folder(os.path.join(existing, link_target, *missing[1:]), links - 1)


def real_path(path: bytes, links: int = 40) -> bytes:
    """Resolve the links of a path to a file or folder, which need not exist, as ``real_folder`` does."""
    above, name = os.path.split(path)
    handle, missing = _open_deepest_existing(above)
    try:
        folder = os.readlink(path_of(handle))
        target = None if missing else _link_target(handle, name, path)
    finally:
        os.close(handle)
    if target is None:
        return os.path.join(folder, *missing, name)
    if not links:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    whole = os.path.join(folder, target).rstrip(b"/") or b"/"
    resolve = real_folder if os.path.basename(whole) in (b"", b".", b"..") else real_path
    return resolve(whole, links - 1)


def _link_target(folder: int, name: bytes, path: bytes) -> Optional[bytes]:
    """Return the target of a symbolic link in a folder, or None if it is no link; raises Refused for another user's."""
    try:
        link = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        info = os.fstat(link)
        if not stat.S_ISLNK(info.st_mode):  # made meanwhile
            return None
        if info.st_uid not in (0, os.getuid()):
            raise _as_refusal(OSError(0, "is another user's link", as_text(path)))
        return os.readlink(b"", dir_fd=link)
    finally:
        os.close(link)


def _open_deepest_existing(path: bytes) -> Tuple[int, List[bytes]]:
    """Open the deepest existing folder of a path; also return the names of the missing ones below it."""
    missing: List[bytes] = []
    while True:
        try:
            handle, _ = open_folder(os.fsdecode(path), alone=False)
        except FileNotFoundError:
            path, name = os.path.split(path)
            missing[:0] = [name] if name else []  # a slash at the end names nothing
        except OSError as error:
            raise _as_refusal(error) from error
        else:
            return handle, missing


def open_or_make_below(folder: int, path: str) -> int:
    """Open a folder below the open ``folder``, making what is missing and following no link; returns its descriptor."""
    return _open_names(os.dup(folder), [on_disk(name) for name in path.split("/") if name])


def _open_names(handle: int, names: List[bytes]) -> int:
    """Open nested folders one below the other, making missing ones; closes ``handle``, in which the first one is."""
    for name in names:
        parent = handle
        try:
            try:
                os.mkdir(name, dir_fd=parent)
            except FileExistsError:  # opening it shows whether it is a folder
                pass
            handle = os.open(name, os.O_PATH | _FOLDER_FLAGS, dir_fd=parent)
        finally:
            os.close(parent)
    return handle


def path_of(handle: int) -> bytes:
    """A path that leads to an open folder, whatever is put in its place meanwhile."""
    return b"/proc/self/fd/%d" % handle


def _as_refusal(error: OSError) -> Exception:
    """Turn an error without a number, which ``open_folder`` raises for another user's link, into a refusal."""
    if error.errno:
        return error
    return Refused("%s %s" % (error.filename, error.strerror), "remove it, or have its owner do so")


def refusal_of_replaced(root: bytes, path: str = "") -> Refused:
    """The refusal for a path below ``root``, or the root itself, that was replaced while it was synced."""
    shown = os.path.join(as_text(root), path) if path else as_text(root)
    return Refused("%s was replaced during the sync" % shown, "sync again")
