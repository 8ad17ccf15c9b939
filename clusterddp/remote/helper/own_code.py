"""Byte code that a host keeps for its own Python, where the operator's is for another version.

Beside ``<digest>.pyz``, as it was sent, then lies ``<digest>-<magic number in hex>.pyz`` with the same sources: helpers
run from it (system/code_finder.py), and runs get it as their copy. A helper that ran from sources leaves a process
behind that makes it, once the connection has ended: nobody waits for it, and the next connection compiles nothing.
Where it cannot be kept the sources do as well.
"""

import errno
import fcntl
import os
import sys

from ..shared.code.code_archive import indexed_again, is_whole
from ..system.bootstrap import write_private
from ..system.descriptors import close_all_but


def keep_behind(zipapp: str) -> None:
    """Have a process of its own make it for ``zipapp``, the file as it was sent; returns at once."""
    try:
        if os.fork():
            return
    except OSError:  # no process is left: another helper will
        return
    try:
        os.setsid()  # the connection's end is not its own
        os.chdir("/")
        from ..shared.code import byte_code  # noqa: F401 - expensive; and it can't be once the code is closed

        close_all_but((), code=True)  # `down` sees no helper in this process
        for _ in range(3):
            os.open(os.devnull, os.O_RDWR)
        os.nice(10)
        keep(zipapp)
    finally:
        os._exit(0)


def keep(zipapp: str) -> None:
    """Make it, unless it is there or another process makes it just now.

    Raises:
        OSError: it cannot be kept.
    """
    own = "%s-%s.pyz" % (zipapp[: -len(".pyz")], sys.modules["_frozen_importlib_external"].MAGIC_NUMBER.hex())
    folder = os.open(os.path.dirname(zipapp), os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _is_first(folder) and not _is_kept(own):
            _make(own, zipapp)
    finally:
        os.close(folder)


def _is_first(folder: int) -> bool:
    """Lock the folder; False if another process has it."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # a file server may know no locks of folders: two make the same then
        return error.errno != errno.EWOULDBLOCK
    return True


def _is_kept(own: str) -> bool:
    try:
        with open(own, "rb") as stream:
            return is_whole(stream.read())
    except FileNotFoundError:
        return False


def _make(own: str, zipapp: str) -> None:
    with open(zipapp, "rb") as stream:
        code = stream.read()
    folder = os.path.dirname(zipapp)
    disk = os.statvfs(folder)
    if disk.f_bavail * disk.f_frsize < 2 * len(code):  # seen now, not after the work
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder)
    made = indexed_again(code)
    if not _is_kept(own):  # no two are byte for byte the same, and a helper may run from the first
        write_private(own, made, durable=False)
    if not os.path.exists(zipapp):  # `down` has removed all meanwhile
        os.unlink(own)
        os.rmdir(folder)
        os.rmdir(os.path.dirname(folder))
