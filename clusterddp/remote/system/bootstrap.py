"""The state folder on a host: make it safely, write files in it whole, and get the helper's code into it.

Where a connection's first code (code_finder.py) does not find the helper, the operator sends this source, after that of
indexed_code.py. Every connection imports it, so modules that are slow to import are imported where they are used.
"""

import errno
import os
import stat
import sys
from typing import Any, BinaryIO, NoReturn, Optional, Union

if __package__:  # else it was sent as source, after the sources of both modules
    from .code_finder import _sha256, open_folder, open_private
    from .indexed_code import install

NETWORK_FILESYSTEMS = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "gpfs", "beegfs", "afs", "9p", "glusterfs", "pvfs2",
    "wekafs",
    "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.juicefs", "fuse.s3fs", "fuse.gcsfuse",
}  # fmt: skip


class Refused(Exception):
    """An operation's expected failure: the operator shows ``message`` and ``remedy`` in one line."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


RUNS = "runs"  # the state folder's folder of spools (spool/layout.py)
MAX_PATH = 1024  # bytes of the state folder's path: paths below it have to stay within the system's 4096
# Remedies for the errors of a file system that another try will not change.
REMEDIES = {
    errno.EROFS: "have it mounted for writing",
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room within the quota there",
    errno.EACCES: "mend owner and mode there",
    errno.EPERM: "mend owner and mode there",
}


def cannot_write(error: OSError, path: str, setting: str = "clusterddp_state") -> Refused:
    """The refusal to raise where a file or folder cannot be written: it says which, why, and what helps.

    The path that ``error`` names, if any, is shown in place of ``path``. ``setting`` is the inventory variable that
    moves the file elsewhere; empty where there is none.
    """
    number, named = error.errno or 0, error.filename
    shown = os.fsdecode(named) if isinstance(named, (str, bytes)) else path
    if shown.endswith(".tmp"):  # write_private's temporary name: show the name that the file was to get
        shown = shown[: -len(".tmp")].rpartition(".")[0]
    reason = "it is a file" if number == errno.EEXIST else error.strerror or str(error)
    if number == errno.ENOSPC and _has_no_inodes(shown):
        reason += " (no inode is free)"
    remedy = REMEDIES.get(number, "")
    if setting:
        remedy += "%sset %s to a folder that can be written" % (", or " if remedy else "", setting)
    return Refused("cannot write %s: %s" % (shown, reason), remedy)


def why_unwritable(folder: str) -> Optional[OSError]:
    """Why no file can be written in a folder; None where one can. Writes a test file only if something looks wrong."""
    try:
        disk = os.statvfs(folder)
        if disk.f_flag & os.ST_RDONLY:
            return OSError(errno.EROFS, os.strerror(errno.EROFS), folder)
        is_full = (disk.f_blocks and not disk.f_bavail) or (disk.f_files and not disk.f_favail)
        if not is_full and os.access(folder, os.W_OK | os.X_OK):
            return None
        path = os.path.join(folder, "tried")
        write_private(path, bytes(4096), durable=False)
        os.unlink(path)
    except OSError as error:
        return OSError(error.errno, error.strerror, folder)
    return None


def _has_no_inodes(path: str) -> bool:
    while path != os.path.dirname(path) and not os.path.exists(path):
        path = os.path.dirname(path)
    try:
        disk = os.statvfs(path)
    except OSError:
        return False
    return bool(disk.f_files and not disk.f_ffree)


def home_folder() -> str:
    """The user's home folder: HOME, or the password database's entry where HOME is not set."""
    home = os.environ.get("HOME")
    if home:
        return home
    import pwd

    return pwd.getpwuid(os.getuid()).pw_dir


def state_folder(configured: Optional[str]) -> str:
    """Make and check the state folder, which holds the helper and the runs' spools; returns its path.

    ``configured`` is the variable ``clusterddp_state``; where other users use that folder too, the state folder is
    ``clusterddp-<uid>`` in it. The default is ``~/.clusterddp``, or ``/var/tmp/clusterddp-<uid>`` where the home is on
    a network filesystem, so that a hung file server cannot block a log write. Raises Refused if the folder is another
    user's, another user could replace it, or it cannot be made.
    """
    if configured:
        folder = os.path.expanduser(configured)
        if _is_shared(folder):
            folder = os.path.join(folder, "clusterddp-%d" % os.getuid())
    else:
        home = home_folder()
        folder = os.path.join(home, ".clusterddp")
        if filesystem_type(home) in NETWORK_FILESYSTEMS:
            folder = "/var/tmp/clusterddp-%d" % os.getuid()  # noqa: S108 - private_folder proves it
        elif not os.path.isdir(home) and not os.access(os.path.dirname(home), os.W_OK):
            raise Refused("the home folder %s is missing" % home, "have it made, or set clusterddp_state")
    length = len(os.fsencode(folder))
    if length > MAX_PATH:
        message = "the state folder's path has %d bytes, and %d are the most: %s…" % (length, MAX_PATH, folder[:80])
        raise Refused(message, "set clusterddp_state to a shorter path")
    return private_folder(folder, alone=True)  # programs are started from it, by their paths


def _is_shared(folder: str) -> bool:
    """Whether a folder is another user's or open to others: its mode is left alone, and a folder of ours made in it."""
    try:
        info = os.stat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and bool(info.st_uid != os.getuid() or info.st_mode & 0o077)


def filesystem_type(path: str) -> str:
    """The filesystem's type name (``ext4``, ``nfs4``) that holds ``path``, by /proc/self/mountinfo."""
    path = os.path.realpath(path)
    best, found = "", ""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        for line in table:
            fields, _, rest = line.partition(" - ")
            point = fields.split()[4].replace("\\040", " ")
            inside = path == point or path.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best):
                best, found = point, rest.split()[0]
    return found


def private_folder(path: str, *, alone: bool = False) -> str:
    """Make a folder (and its parents) with mode 0700 and return its path without links.

    With ``alone`` nobody but this user and root may be able to replace it by another folder. Raises Refused if the path
    leads through another user's link, is no folder, or the folder is another user's, or its mode cannot be closed to
    others.
    """
    handle = -1
    try:
        handle, real = open_folder(os.path.abspath(path), make=True, alone=alone)
        info = os.fstat(handle)
        if info.st_uid != os.getuid():
            raise Refused("%s is not a folder of this user" % path, "set clusterddp_state to a folder of your own")
        if info.st_mode & 0o077:
            _close_to_others(handle)
    except OSError as error:
        raise _folder_refusal(path, error) from error
    finally:
        if handle >= 0:
            os.close(handle)
    return real


def _close_to_others(folder: int) -> None:
    handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fchmod(handle, 0o700)
    finally:
        os.close(handle)


def _folder_refusal(path: str, error: OSError) -> Refused:
    """The refusal for an error of ``open_folder``."""
    if error.errno:
        number = errno.EEXIST if error.errno == errno.ENOTDIR and os.path.lexists(path) else error.errno
        return cannot_write(OSError(number, error.strerror), path)
    message, remedy = "%s %s" % (error.filename, error.strerror), "set clusterddp_state to a folder of your own"
    if "written" in str(error.strerror):  # code_finder.py's _check_folder
        import shlex

        message += ", who could put their own in place of %s" % path
        remedy = "`chmod +t %s`, or %s" % (shlex.quote(str(error.filename)), remedy)
    return Refused(message, remedy)


def write_private(path: str, data: bytes, mode: int = 0o600, *, durable: bool = True) -> None:
    """Write a file whole: to a temporary name in the same folder, fsync, rename; ``path`` never holds half a file.

    Without ``durable`` there is no fsync: for files that may be lost with the host, by writers that must not wait for a
    disk.
    """
    temporary = "%s.%d-%s.tmp" % (path, os.getpid(), os.urandom(6).hex())
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            if durable:
                os.fsync(out.fileno())
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def private(path: str, flags: int) -> int:
    """An ``opener`` for ``open``: files are made with mode 0600 from the start."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def remove_abandoned_temporaries(folder: str) -> None:
    """Remove the temporary files of ``write_private`` whose writing process is dead."""
    for name in os.listdir(folder):
        writer = name.rpartition(".tmp")[0].rpartition(".")[2].partition("-")[0]
        if name.endswith(".tmp") and writer.isdigit() and not os.path.exists("/proc/" + writer):
            try:
                os.unlink(os.path.join(folder, name))
            except OSError:
                pass  # somebody else has; or the disk is read-only


def write_json(path: str, value: Any, *, durable: bool = True) -> None:
    """Write a JSON value by ``write_private``."""
    import json

    write_private(path, json.dumps(value, indent=1, sort_keys=True).encode() + b"\n", durable=durable)


def receive_helper(stream: BinaryIO, magic: str) -> None:
    """Find the helper by its digest or receive it from ``stream``; then run it.

    Called by the code that the operator sends. The operator's line is JSON ``{digest, size, state, byte_code, index}``:
    ``byte_code`` is the magic number (hex) of the Python that the byte code is for, null where none is wanted;
    ``index`` is the index's offset and size, or null. We answer ``<magic> need`` where the code is to be sent. The last
    answer, once nothing of this can fail any more, is ``<magic> have`` or ``<magic> refused <JSON>``. The code comes
    compressed, and is used only after its sha256 was compared.
    """
    import hashlib
    import json
    import zlib

    request = json.loads(stream.readline())
    folder = ""
    try:
        state = state_folder(request["state"])
        folder = private_folder(os.path.join(state, "helper"))
        handle = _open_verified(folder, request["digest"])
        if handle is None:
            _say(magic + " need")
            code = zlib.decompress(stream.read(request["size"]))
            if hashlib.sha256(code).hexdigest() != request["digest"]:
                raise Refused("the helper came through the connection damaged")
            write_private("%s/%s.pyz" % (folder, request["digest"]), code)
            handle = _open_verified(folder, request["digest"])
            if handle is None:
                raise Refused("what was written to %s reads as something else" % folder, "look at its disk")
    except (Refused, OSError, zlib.error) as error:
        if isinstance(error, OSError):
            error = cannot_write(OSError(error.errno, error.strerror), folder)
        elif not isinstance(error, Refused):
            error = Refused("the helper came through the connection damaged")
        _say("%s refused %s" % (magic, json.dumps({"message": error.message, "remedy": error.remedy})))
        sys.exit(96)
    own_magic, modules = sys.modules["_frozen_importlib_external"].MAGIC_NUMBER.hex(), None
    if request["byte_code"] == own_magic and request["index"]:
        import marshal

        offset, size = request["index"]
        modules = marshal.loads(os.pread(handle, size, offset))[1]  # noqa: S302 - the whole has the operator's digest
    _note_use(handle)
    _say(magic + " have")
    path = "%s/%s.pyz" % (folder, request["digest"])
    install(handle, path, modules, _sha256())
    _run(path, state, *([] if request["byte_code"] in (None, own_magic) else ["keep"]))


def _open_verified(folder: str, digest: str) -> Optional[int]:
    """A descriptor of the helper's file if its content has the digest that it is named by; else None."""
    import hashlib

    try:
        handle, _ = open_private(folder, digest + ".pyz")
        if hashlib.sha256(os.pread(handle, os.fstat(handle).st_size, 0)).hexdigest() == digest:
            return handle
        os.close(handle)
    except OSError:  # it is not there, or not ours alone: it is sent
        pass
    return None


def run_helper(handle: int, name: str, state: str, magic: str) -> None:
    """Say ``<magic> have`` and run the helper, if the file found is the one in the state folder; else return.

    Called by code_finder.py, which guessed where to look, with the file open. ``name`` is the digest of the code that
    was sent, followed by more where the host has compiled its own file from that code.
    """
    try:
        state_path = state_folder(state)
        folder = private_folder(state_path + "/helper")
        path = "%s/%s.pyz" % (folder, name)
        if not os.path.samestat(os.lstat(path), os.fstat(handle)):
            return
        from clusterddp_remote.helper import loop  # type: ignore[import-not-found,unused-ignore]  # noqa: F401

        _note_use(handle)
        if len(name) > 64:
            _note_use("%s/%s.pyz" % (folder, name[:64]))
    except (Refused, OSError, ImportError):  # receive_helper reports it, and mends a damaged file
        return
    _say(magic + " have")
    _run(path, state_path)


def _note_use(file: Union[int, str]) -> None:
    """Set a file's time of last use, by which cleanup/uninstall.py removes old helpers; errors are ignored."""
    try:
        os.utime(file)
    except OSError:  # the folder is read-only: nothing is removed from it either
        pass


def _run(path: str, state: str, *more: str) -> NoReturn:
    """Import the zipapp's entry point and run it as the helper; ``more`` are further arguments of its ``main``."""
    from clusterddp_remote.__main__ import main  # type: ignore[import-not-found,unused-ignore]

    sys.argv = [path, "helper", state]
    status = main([*sys.argv[1:], *more])
    sys.stderr.flush()
    os._exit(status)  # taking the interpreter apart takes as long as starting it


def _say(line: str) -> None:
    os.write(1, line.encode() + b"\n")
