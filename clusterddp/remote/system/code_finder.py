"""A connection's first code: finds the helper's code that is on this host already, and runs it.

It stands alone and is sent as source with every connection, so it is short and imports next to nothing: compiling and
importing take most of a short command's time on a host. Where this Python needs other byte code, it looks for the file
that the host has compiled for itself (helper/own_code.py). If it finds nothing it says so, and the operator sends
``bootstrap.py``.

The folders where it looks are a guess, and other users can write in ``/var/tmp``. So nothing is used by its path: each
folder on the way is opened and checked, then the file in the last, and the code is imported from that open file.
"""

import os
import sys

TYPE_CHECKING = False  # typing's own costs an import
if TYPE_CHECKING:
    from typing import Any, BinaryIO, Callable, Container, Dict, Tuple, Union


def find_code(stream: "BinaryIO", magic: str, digest: str, byte_code: "Tuple[bytes, int, int, str]") -> None:
    """Run the helper from its zipapp in the state folder, else say ``<magic> unknown`` and run the source sent then.

    The next line of ``stream`` is ``clusterddp_state`` in hex. The zipapp is named by its ``digest``. ``byte_code``
    locates its index of byte code (system/indexed_code.py): the magic number of the Python it is for (empty where no
    byte code is wanted), offset, size, sha256 in hex.
    """
    state = bytes.fromhex(stream.readline().decode()).decode()
    own_magic = sys.modules["_frozen_importlib_external"].MAGIC_NUMBER  # importlib.util's, without its import
    candidates = [state, state + "/clusterddp-%d" % os.getuid()]
    if not state:
        candidates = ["/var/tmp/clusterddp-%d" % os.getuid(), os.environ.get("HOME", "") + "/.clusterddp"]  # noqa: S108 - proved by open_private
    name = digest if byte_code[0] == own_magic else "%s-%s" % (digest, own_magic.hex())
    for candidate in candidates if byte_code[0] else ():
        try:
            handle, folder = open_private(os.path.expanduser(candidate) + "/helper", name + ".pyz")
            offset, size, wanted = byte_code[1:] if name == digest else _own_index(handle)
            text = os.pread(handle, size, offset)
        except OSError:  # not here, damaged, or somebody else may have written it
            continue
        sha256 = _sha256()
        if sha256(text).hexdigest() == wanted:
            import marshal

            program, modules = marshal.loads(text)  # noqa: S302 - the operator's, by its digest
            names: "Dict[str, Any]" = {"__name__": "indexed_code"}
            exec(program, names)  # noqa: S102 - the same
            names["install"](handle, "%s/%s.pyz" % (folder, name), modules, sha256)
            boot = __import__("clusterddp_remote.system.bootstrap", fromlist=["run_helper"])
            boot.run_helper(handle, name, state, magic)
            del sys.meta_path[0]  # by install
            for module in [one for one in sys.modules if one.startswith("clusterddp_remote")]:
                del sys.modules[module]
        os.close(handle)
    os.write(1, (magic + " unknown\n").encode())
    exec(stream.read(int(stream.readline())), globals())  # noqa: S102 - what the operator sends


def open_private(path: str, name: str) -> "Tuple[int, str]":
    """Open a file for reading in a folder of this user's alone; its descriptor, and the folder's path without links.

    Raises OSError where it is missing, or another user may have written it.
    """
    folder, real = open_folder(path)
    try:
        folder_info = os.fstat(folder)
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
    info = os.fstat(handle)
    modes = folder_info.st_mode & 0o170077, info.st_mode & 0o170022
    if modes != (0o40000, 0o100000) or {folder_info.st_uid, info.st_uid} != {os.getuid()}:
        os.close(handle)
        raise OSError(0, "may have been written by another user", real + "/" + name)
    return handle, real


def open_folder(path: str, make: bool = False, alone: bool = True, links: int = 40) -> "Tuple[int, str]":  # noqa: FBT002 - short
    """Open a folder one path component after another; its descriptor (O_PATH), and its path without links.

    No other user's link is followed. The caller checks that the folder itself belongs to this user. ``path`` is
    absolute; ``make``: missing folders are made (0700); ``alone``: only this user and root may be able to replace the
    folder by another; ``links``: how many links are followed, as many as the kernel does.

    Raises OSError: with number 0 where the way is not safe, else as the system reports it.
    """
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    parent, names, trusted = os.open("/", flags), path.split("/"), {0, os.getuid(), os.stat("/").st_uid}
    for count, name in enumerate(names[1:], 2):
        current = "/".join(names[:count])
        try:
            if alone:
                _check_folder(parent, trusted, os.path.dirname(current))
            if make and name:
                _make_missing(name, parent)
            handle = _enter(name or ".", parent, flags, current, trusted)
        finally:
            os.close(parent)
        if isinstance(handle, str):
            if not links:
                raise OSError(40, os.strerror(40), current)  # ELOOP
            target = os.path.join(os.path.dirname(current), handle, *names[count:])
            return open_folder(target, make and count < len(names), alone, links - 1)
        parent = handle
    return parent, os.path.normpath(path)  # what stands before a `..` is a folder here, not a link


def _make_missing(name: str, parent: int) -> None:
    """Make a folder in another, unless the name exists; ``_enter`` checks what it is."""
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:  # another process of this user has just made it
            return


def _enter(name: str, parent: int, flags: int, path: str, trusted: "Container[int]") -> "Union[int, str]":
    """Open a folder in another, or return the target of a link."""
    try:
        return os.open(name, flags | os.O_DIRECTORY, dir_fd=parent)  # O_DIRECTORY triggers an automount
    except NotADirectoryError:
        link = os.open(name, flags, dir_fd=parent)
    try:
        info = os.fstat(link)
        if info.st_mode & 0o170000 != 0o120000:
            raise OSError(20, os.strerror(20), path)  # ENOTDIR
        if info.st_uid not in trusted:
            raise OSError(0, "is another user's link", path)
        return os.readlink("", dir_fd=link)
    finally:
        os.close(link)


def _check_folder(handle: int, trusted: "Container[int]", path: str) -> None:
    """Raise OSError if anybody but this user and root could rename this user's files in a folder."""
    info, path = os.fstat(handle), path or "/"
    if info.st_uid not in trusted:
        raise OSError(0, "is another user's folder", path)
    writers = info.st_mode & 0o1022  # group, all; and the sticky bit: each may remove only their own files
    if writers & 0o22 and writers < 0o1000 and not (writers == 0o20 and _is_own_group(info.st_gid, handle)):
        raise OSError(0, "can be written by other users", path)


def _is_own_group(group: int, folder: int) -> bool:
    """Whether only this user, or root, is in a folder's group: many systems give each user a group of the same name."""
    try:
        import grp
        import pwd

        user, found = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(group)
        listed = "system.posix_acl_access" in os.listxattr("/proc/self/fd/%d" % folder)  # others may be named there
    except (ImportError, KeyError, OSError):
        return not group
    return not listed and (not group or (found.gr_name == user and {user} >= set(found.gr_mem)))


def _own_index(handle: int) -> "Tuple[int, int, str]":
    """Offset, size and sha256 of the index in a zipapp that this host has made, from its trailer (code_archive.py).

    Raises OSError where it is damaged.
    """
    length = os.fstat(handle).st_size
    trailer = os.pread(handle, 80, length - 80)
    offset, size = int.from_bytes(trailer[:8], "big"), int.from_bytes(trailer[8:16], "big")
    if offset + size > length:
        raise OSError
    return offset, size, trailer[16:48].hex()


def _sha256() -> "Callable[[bytes], Any]":
    """The built-in sha256: hashlib would load OpenSSL, which takes longer than hashing our few kilobytes."""
    try:
        found: "Callable[[bytes], Any]" = __import__("_sha2" if sys.version_info >= (3, 12) else "_sha256").sha256
    except ImportError:
        found = __import__("hashlib").sha256
    return found
