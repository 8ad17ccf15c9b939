"""Make a node's spool: its folders, our code, the start-up hook, and space for records written even on a full disk."""

import contextlib
import os
import shutil
import sys
from typing import List

from ..shared.run.plan import NodePlan
from ..system import disk_space
from ..system.bootstrap import private_folder, write_private
from ..system.descriptors import link_or_copy, read_whole
from .layout import RECORDS, Spool

FOLDERS = (
    "logs",
    "errors",
    "stacks",
    "hook",
    "hook/__pycache__",
    "torch",
    "debug",
)  # made by us: Python would use the umask
PROGRAM = "program"  # folder of a built-in program that runs in place of a script; its working folder too
HOOK = "clusterddp_remote/worker/hook/sitecustomize.py"  # in the zipapp
BESIDE_HOOK = "clusterddp_remote/worker/hook/rank_debugger.py", "clusterddp_remote/worker/hook/break_in.py"
UNCAUGHT = "uncaught"  # file that lets the hook stop at an uncaught exception too
RECORD_BYTES = 16 << 10  # reserved for each of RECORDS


def create_spool(spool: Spool, plan: NodePlan, code: int) -> bool:
    """Make the node's spool with its plan and the code that ``code`` has open; False if an earlier start made it.

    The spool gets its own name of the code's file, so the run keeps it whatever happens to its other names. Only the
    plan is synced to disk: the run's other files are read by processes that end with the host. After an OSError, such
    as a full disk, nothing of it is left.
    """
    attempt = os.path.dirname(spool.folder)
    run = os.path.dirname(attempt)
    for folder in (os.path.dirname(run), run, attempt):
        private_folder(folder)
    try:
        os.mkdir(spool.folder, 0o700)
    except FileExistsError:
        return False
    try:
        _fill(spool, plan, code)
    except OSError:
        shutil.rmtree(spool.folder, ignore_errors=True)
        for folder in (attempt, run):
            with contextlib.suppress(OSError):  # another node's spool is in it
                os.rmdir(folder)
        raise
    return True


def _fill(spool: Spool, plan: NodePlan, code: int) -> None:
    """Make what the spool holds; the plan comes last."""
    for name in FOLDERS:
        os.mkdir(spool.path(name), 0o700)
    if plan.host_settings.comm_trace and not plan.settings.no_comm_trace:
        os.mkdir(spool.traces, 0o700)  # where the hook finds it, it starts a server
        os.mkdir(spool.ended_traces, 0o700)
    if plan.settings.pdb:
        write_private(spool.path("debug", UNCAUGHT), b"", durable=False)
    link_or_copy(code, spool.code)
    write_hook(code, spool.path("hook"))
    if plan.settings.program:
        os.mkdir(spool.path(PROGRAM), 0o700)
        (program,) = zip_members(code, "clusterddp_remote/builtin/%s" % plan.settings.program)
        write_private(spool.path(PROGRAM, plan.settings.program), program, durable=False)
    for name in RECORDS:
        disk_space.reserve_record(spool.path(name), RECORD_BYTES)
    spool.write_plan(plan)


def write_hook(code: int, folder: str) -> None:
    """Put the start-up hook into a folder, with byte code for this Python, which is often the workers' too.

    Then no worker compiles it, not even with PYTHONDONTWRITEBYTECODE, where each would compile it again.
    """
    source, debugger, break_in, *compiled = zip_members(code, HOOK, *BESIDE_HOOK, HOOK + "c")
    write_private(os.path.join(folder, "sitecustomize.py"), source, durable=False)
    write_private(os.path.join(folder, "rank_debugger.py"), debugger, durable=False)
    write_private(os.path.join(folder, "break_in.py"), break_in, durable=False)
    name = "sitecustomize.%s.pyc" % sys.implementation.cache_tag
    for data in compiled:
        if data.startswith(sys.modules["_frozen_importlib_external"].MAGIC_NUMBER):
            write_private(os.path.join(folder, "__pycache__", name), data, durable=False)


def zip_members(code: int, *names: str) -> List[bytes]:
    """The contents of those named files that an open zipapp has."""
    import io
    import zipfile

    with zipfile.ZipFile(io.BytesIO(read_whole(code))) as archive:  # other processes share the descriptor's position
        existing = set(archive.namelist())
        return [archive.read(name) for name in names if name in existing]
