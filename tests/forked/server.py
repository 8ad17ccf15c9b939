"""The process whose forks are commands: it imports what they need, then forks at each request, until nobody asks.

A fork is a child of the asking process, not of this one (CLONE_PARENT), so that whoever asked waits for it as for any
child. It leaves this file's loop and becomes the script: what it sees is what the request says.

    python server.py SOCKET NUMBER    # a descriptor; clone's number
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import signal
import socket
import sys
import termios
import threading
import time
import types
from pathlib import Path
from typing import Any, cast

CLONE_PARENT = 0x8000
NEVER = (
    "clusterddp.remote.",
    "clusterddp.fabfile",
    "clusterddp.tasks",
    "clusterddp.api.fabfile",
    "clusterddp.api.tasks",
)  # what is on hosts; what fab imports
LATER = (  # what commands import in the midst of their work
    "calendar csv fabric glob importlib.metadata importlib.resources getpass paramiko pathspec rich.console rich.live "
    "rich.markup rich.progress rich.table rich.text tomllib yaml zipfile"
)


def prepare() -> None:
    """Import the command line and all that it may import."""
    import clusterddp  # noqa: PLC0415 - nothing else here needs it

    for module in pkgutil.walk_packages(clusterddp.__path__, "clusterddp."):
        if not module.name.startswith(NEVER) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in LATER.split():
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what all forks share stays shared


def serve(asked: socket.socket, number: int) -> dict[str, Any]:
    """Fork at each request; returns in each fork, with its request, and ends this process when nobody asks any more."""
    while True:
        data, files, _, _ = socket.recv_fds(asked, 1 << 20, 3)
        if not data:
            sys.exit()
        pid = fork(number)
        if not pid:
            asked.close()
            request: dict[str, Any] = json.loads(data)
            become(request, files)
            return request
        for each in files:
            os.close(each)
        asked.send(str(pid).encode())


def fork(number: int) -> int:
    """`os.fork`, but the child's parent is this process's own."""
    python, known_number = ctypes.pythonapi, main_thread_number()
    python.PyOS_BeforeFork()
    pid = int(ctypes.PyDLL(None).syscall(number, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if pid:
        python.PyOS_AfterFork_Parent()
    else:
        known_number.value = os.getpid()
        python.PyOS_AfterFork_Child()
    if pid < 0:
        raise OSError("clone failed")
    return pid


def main_thread_number() -> ctypes.c_int:
    """The main thread's number in the C library's record of it, by which other threads send it signals."""
    record = (ctypes.c_int * 256).from_address(threading.get_ident())
    at = ctypes.sizeof(ctypes.c_int) * list(record).index(os.getpid())
    return ctypes.c_int.from_buffer(record, at)


def become(request: dict[str, Any], files: list[int]) -> None:
    """A process as it is right after its interpreter's start."""
    os.setsid()
    for target, given in enumerate(files):
        os.dup2(given, target)
        os.close(given)
    if request["terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    sys.argv = request["argv"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    for target, name in enumerate(("stdin", "stdout", "stderr")):
        stream = text(target, f"<{name}>", getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def text(number: int, name: str, before: io.TextIOWrapper) -> io.TextIOWrapper:
    """A standard stream as an interpreter makes it."""
    raw = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
    raw.name = name
    buffered = io.BufferedReader(raw) if number == 0 else io.BufferedWriter(raw)
    lines = number == 2 or os.isatty(number)
    stream = io.TextIOWrapper(buffered, before.encoding, before.errors, newline="\n", line_buffering=lines)
    vars(stream)["mode"] = "r" if number == 0 else "w"
    return stream


def run(path: str) -> None:
    """Run a script as the main module, and end as an interpreter does."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=__builtins__, __annotations__={})
    sys.modules["__main__"] = main
    with io.open_code(path) as script:
        code = compile(script.read(), path, "exec")
    try:
        exec(code, main.__dict__)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            end(ended.code or 0)
        raise


def end(code: int) -> None:
    """End with all that can be seen of an interpreter's end, but for taking hundreds of shared modules apart.

    Returns where threads are left behind: whether the interpreter's end stands them is for it to show.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    if threading.active_count() == 1:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)


if __name__ == "__main__":
    prepare()
    run(cast("str", serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))["argv"][0]))
