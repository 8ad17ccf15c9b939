"""The state folder on a host, and how the helper itself gets into it.

This file stands alone (no relative import): where a connection's first code (find_code.py) does not find the helper,
the operator sends this source and calls ``receive_helper``. Later the same functions serve every other module here.
Every connection imports it, so what is dear is imported where it is used.
"""

import errno
import os
import stat
import sys
from typing import Any, BinaryIO, NoReturn, Optional

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


def home_folder() -> str:
    """The user's home by the password database; HOME may be wrong in a job's environment."""
    home = os.environ.get("HOME")
    if home:
        return home
    import pwd

    return pwd.getpwuid(os.getuid()).pw_dir


def state_folder(configured: Optional[str]) -> str:
    """Where spools and the helper live on this host, made and checked.

    Args:
        configured: ``clusterddp_state`` (in a folder that others use too it is ``clusterddp-<uid>`` there), or None
            for the default: ``~/.clusterddp``, and on a network
            filesystem ``/var/tmp/clusterddp-<uid>``, so that a hung file server cannot block a log write.

    Raises:
        Refused: the folder is another user's, or cannot be made.
    """
    if configured:
        folder = os.path.expanduser(configured)
        if _is_open(folder):
            folder = os.path.join(folder, "clusterddp-%d" % os.getuid())
    else:
        home = home_folder()
        folder = os.path.join(home, ".clusterddp")
        if filesystem_type(home) in NETWORK_FILESYSTEMS:
            folder = "/var/tmp/clusterddp-%d" % os.getuid()  # noqa: S108 - owner and mode are checked below
    return private_folder(folder)


def _is_open(folder: str) -> bool:
    """Whether others use an existing folder too: nothing in it is changed then, but a folder of our own added."""
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


def private_folder(path: str) -> str:
    """Make ``path`` (and its parents) as 0700, ours; returns it without links, for all that follows.

    Raises:
        Refused: it leads through another user's link, is no folder, another user's, or open and not to be closed.
    """
    try:
        real = _own_way(path)
        if not (os.path.islink(path) and not os.path.isdir(path)):
            os.makedirs(real, mode=0o700, exist_ok=True)
        info = os.lstat(real)
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
            raise Refused("%s is not a folder of this user" % path, "set clusterddp_state to a folder of your own")
        if info.st_mode & 0o077:
            os.chmod(real, 0o700)
    except OSError as error:
        raise Refused(
            "cannot make %s: %s" % (path, error.strerror), "set clusterddp_state to a folder that can be written"
        ) from error
    return real


def _own_way(path: str) -> str:
    """The path without links; each on the way is this user's or root's: who made one may change where it leads.

    Raises:
        Refused: names another user's link.
    """
    way = os.path.abspath(path)
    for _ in range(40):  # as many as the kernel follows
        parts = way.split("/")
        found = ["/".join(parts[:count]) for count in range(2, len(parts) + 1)]
        link = next((part for part in found if os.path.islink(part)), "")
        if not link:
            return way
        if os.lstat(link).st_uid not in (0, os.getuid()):
            raise Refused("%s is another user's link" % link, "set clusterddp_state to a folder of your own")
        way = os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link)) + way[len(link) :])
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def write_private(path: str, data: bytes, mode: int = 0o600, *, durable: bool = True) -> None:
    """Write a whole file: temp name in the same folder, fsync, rename; never half a file under ``path``.

    Not ``durable``: without fsync, for what may be lost with the host, by writers that must not wait for a disk.
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


def remove_abandoned_temporaries(folder: str) -> None:
    """Remove the temporary files of ``write_private`` whose writing process is dead."""
    for name in os.listdir(folder):
        writer = name.rpartition(".tmp")[0].rpartition(".")[2].partition("-")[0]
        if name.endswith(".tmp") and writer.isdigit() and not os.path.exists("/proc/" + writer):
            try:
                os.unlink(os.path.join(folder, name))
            except FileNotFoundError:
                pass  # somebody else has


def write_json(path: str, value: Any, *, durable: bool = True) -> None:
    """``write_private`` of a JSON value."""
    import json

    write_private(path, json.dumps(value, indent=1, sort_keys=True).encode() + b"\n", durable=durable)


def read_json(path: str) -> Any:
    """The JSON value in ``path``, or None if there is no such file.

    Raises:
        OSError: it cannot be read; ValueError: it is no JSON, or nested too deep.
    """
    import json

    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise
    except RecursionError:
        raise ValueError("%s is nested too deep" % path) from None


def file_sha256(path: str) -> str:
    """The sha256 of a file in hex, or an empty string if it cannot be read."""
    import hashlib

    try:
        with open(path, "rb") as stream:
            return hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return ""


def receive_helper(stream: BinaryIO, magic: str) -> None:
    """Find the helper by its digest or take it from ``stream``; then run it. Called by what the operator sends.

    The operator's line is JSON ``{digest, size, state, byte_code}``: for which Python that is (its magic number in hex;
    null: none is wanted). We answer ``<magic> need`` where the code is to be sent, and last, once nothing of this can
    fail any more, ``<magic> have`` or ``<magic> refused <JSON>``. Code comes compressed, and is used only after its
    sha256 was compared.
    """
    import hashlib
    import json
    import zlib

    wanted = json.loads(stream.readline())
    path = ""
    try:
        path = helper_path(wanted["state"], wanted["digest"])
        if file_sha256(path) != wanted["digest"]:
            _say(magic + " need")
            code = zlib.decompress(stream.read(wanted["size"]))
            if hashlib.sha256(code).hexdigest() != wanted["digest"]:
                raise Refused("the helper came through the connection damaged")
            write_private(path, code)
    except (Refused, OSError, zlib.error) as error:
        if isinstance(error, Refused):
            message, remedy = error.message, error.remedy
        elif isinstance(error, OSError):
            message = "cannot keep the helper in %s: %s" % (os.path.dirname(path), error.strerror)
            remedy = "make room there, or set clusterddp_state"
        else:
            message, remedy = "the helper came through the connection damaged", ""
        _say("%s refused %s" % (magic, json.dumps({"message": message, "remedy": remedy})))
        sys.exit(96)
    _note_use(path)
    _say(magic + " have")
    sys.path.insert(0, path)
    known = (None, sys.modules["_frozen_importlib_external"].MAGIC_NUMBER.hex())
    _run(path, wanted["state"] or "", *([] if wanted["byte_code"] in known else ["keep"]))


def run_helper(handle: int, name: str, state: str, magic: str) -> None:
    """Say ``<magic> have`` and run the helper, if the file found is the one in the state folder; else return.

    Called by find_code.py, whose look was a guess, with the file open; ``name`` is the digest of what was sent, with
    more behind it where the host has made the file of that.
    """
    try:
        own = helper_path(state, name)
        if not os.path.samestat(os.stat(own), os.fstat(handle)):
            return
        from clusterddp_remote.helper import loop  # type: ignore[import-not-found,unused-ignore]  # noqa: F401

        for path in {own, helper_path(state, name[:64])}:
            _note_use(path)
    except (Refused, OSError, ImportError):  # said, and where it is damaged mended, by receive_helper
        return
    _say(magic + " have")
    _run(own, state)


def helper_path(state: Optional[str], name: str) -> str:
    """Where the helper is kept: in a folder of this user's alone.

    Raises:
        Refused: as for ``state_folder``.
    """
    return os.path.join(private_folder(os.path.join(state_folder(state), "helper")), name + ".pyz")


def _note_use(path: str) -> None:
    """Set the file's time of last use, by which cleanup/uninstall.py removes old helpers; no helper fails by that."""
    try:
        os.utime(path)
    except OSError:  # the folder is read-only: nothing is removed from it either
        pass


def _run(path: str, state: str, *more: str) -> NoReturn:
    """Import the zipapp's entry point and run it as the helper; ``more`` as its ``main`` takes it."""
    from clusterddp_remote.__main__ import main  # type: ignore[import-not-found,unused-ignore]

    sys.argv = [path, "helper", state]
    status = main([*sys.argv[1:], *more])
    sys.stderr.flush()
    os._exit(status)  # taking the interpreter apart takes as long as starting it


def _say(line: str) -> None:
    os.write(1, line.encode() + b"\n")
