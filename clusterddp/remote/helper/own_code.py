"""Store byte code for this host's Python, where the operator sent byte code for another version.

The file ``<digest>-<magic number in hex>.pyz`` beside the received ``<digest>.pyz`` has the same sources: helpers
run from it (system/code_finder.py), and runs get a copy of it. A helper that ran from sources leaves a process behind
that makes it after the connection has ended: nobody waits for it, and the next connection compiles nothing. Where it
cannot be stored, the sources are used.
"""

import errno
import fcntl
import os
import sys

from ..shared.code.code_archive import is_whole, rebuild_with_index
from ..shared.wire.partial_files import free_bytes
from ..system.bootstrap import write_private
from ..system.descriptors import close_all_but


def compile_in_background(zipapp: str) -> None:
    """Start a process that makes the file for ``zipapp``, the file as received; return at once."""
    try:
        if os.fork():
            return
    except OSError:  # the process limit is reached: a later helper will do it
        return
    try:
        os.setsid()  # it must survive the connection
        os.chdir("/")
        from ..shared.code import byte_code  # noqa: F401 - an expensive import, impossible once the code is closed

        close_all_but((), code=True)  # so that `down` does not count this process as a helper
        for _ in range(3):
            os.open(os.devnull, os.O_RDWR)
        os.nice(10)
        compile_code(zipapp)
    finally:
        os._exit(0)


def compile_code(zipapp: str) -> None:
    """Make the file, unless it exists or another process is making it; raises OSError if it cannot be stored."""
    compiled = "%s-%s.pyz" % (zipapp[: -len(".pyz")], sys.modules["_frozen_importlib_external"].MAGIC_NUMBER.hex())
    folder = os.open(os.path.dirname(zipapp), os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _lock_folder(folder) and not _is_stored(compiled):
            _compile(compiled, zipapp)
    finally:
        os.close(folder)


def _lock_folder(folder: int) -> bool:
    """Lock the folder; False if another process holds the lock."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # a file server may not support locks on folders: then two processes make the same file
        return error.errno != errno.EWOULDBLOCK
    return True


def _is_stored(compiled: str) -> bool:
    try:
        with open(compiled, "rb") as stream:
            return is_whole(stream.read())
    except FileNotFoundError:
        return False


def _compile(compiled: str, zipapp: str) -> None:
    with open(zipapp, "rb") as stream:
        code = stream.read()
    folder = os.path.dirname(zipapp)
    free = free_bytes(folder)
    if free is not None and free < 2 * len(code):  # checked before the work, not after
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder)
    archive = rebuild_with_index(code)
    if not _is_stored(compiled):  # two results differ in bytes, and a helper may already run from the first
        write_private(compiled, archive, durable=False)
    if not os.path.exists(zipapp):  # `down` has removed everything meanwhile
        os.unlink(compiled)
        os.rmdir(folder)
        os.rmdir(os.path.dirname(folder))
