"""A node's spool is made: its folders, our code, the start-up hook, room for what is written on a full disk too."""

import os
import sys
from typing import List

from ..shared.run.plan import NodePlan
from ..system import disk_space
from ..system.bootstrap import private_folder, write_private
from ..system.descriptors import keep_file, whole
from .layout import RECORDS, Spool

FOLDERS = ("logs", "errors", "stacks", "hook", "hook/__pycache__", "torch")  # Python would ask the umask
PROGRAM = "program"  # a program of ours that the run starts in place of a script, and its working folder
HOOK = "clusterddp_remote/worker/hook/sitecustomize.py"  # in the zipapp
RECORD_ROOM = 16 << 10  # bytes of each


def create_spool(spool: Spool, plan: NodePlan, code: int) -> bool:
    """Make the spool of ``plan`` with the remote code that is open as ``code``; False if an earlier start made it.

    That is the run's own from then on: whatever becomes of other names of the file, the run's stays. The plan alone is
    on disk then: what only the run's own processes read ends with the host as they do.
    """
    attempt = os.path.dirname(spool.folder)
    run = os.path.dirname(attempt)
    for folder in (os.path.dirname(run), run, attempt):
        private_folder(folder)
    try:
        os.mkdir(spool.folder, 0o700)
    except FileExistsError:
        return False
    for name in FOLDERS:
        os.mkdir(spool.path(name), 0o700)
    keep_file(code, spool.code)
    place_hook(code, spool.path("hook"))
    if plan.program:
        os.mkdir(spool.path(PROGRAM), 0o700)
        text = zip_members(code, "clusterddp_remote/builtin/%s" % plan.program)
        write_private(spool.path(PROGRAM, plan.program), text[0], durable=False)
    for name in RECORDS:
        disk_space.reserve_record(spool.path(name), RECORD_ROOM)
    spool.write_plan(plan)
    return True


def place_hook(code: int, folder: str) -> None:
    """Put the start-up hook into a folder, with byte code for this Python, which is often that of the workers too.

    Then none of them compiles it, not even where PYTHONDONTWRITEBYTECODE lets each worker do so.
    """
    source, *compiled = zip_members(code, HOOK, HOOK + "c")
    write_private(os.path.join(folder, "sitecustomize.py"), source, durable=False)
    name = "sitecustomize.%s.pyc" % sys.implementation.cache_tag
    for data in compiled:
        if data.startswith(sys.modules["_frozen_importlib_external"].MAGIC_NUMBER):
            write_private(os.path.join(folder, "__pycache__", name), data, durable=False)


def zip_members(code: int, *names: str) -> List[bytes]:
    """Files of an open zipapp, as far as they are there."""
    import io
    import zipfile

    with zipfile.ZipFile(io.BytesIO(whole(code))) as archive:  # its position is other processes' too
        there = set(archive.namelist())
        return [archive.read(name) for name in names if name in there]
