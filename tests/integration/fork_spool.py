"""A spool with a fork server, as the supervisor starts one: what its shim starts then is forked."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

from clusterddp.remote.supervisor.fork_server_process import LOG
from clusterddp.remote.worker.worker_env import fork_server_environment
from tests.integration.shim_spool import ShimSpool, environment, shim_environment
from tests.lab.system import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

LOADED = "import torch.distributed.run, torch._dynamo\n"  # what a forked worker has loaded at its first line
OF_ONE_WORKER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


EMPTY_TORCH = """
import ctypes, importlib.util, json, logging, multiprocessing.process, queue, select, signal, socket, threading
for name in ("numpy", "dill"):
    importlib.util.find_spec(name)
__version__ = "2.13.0"
class default_generator:
    seed = staticmethod(lambda: 0)
"""


def empty_torch(folder: Path) -> str:
    """A folder for PYTHONPATH with a torch that is imported in no time, and looks for what torch looks for."""
    package = folder / "path" / "torch"
    (package / "distributed").mkdir(parents=True)
    (package / "__init__.py").write_text(EMPTY_TORCH)
    for name in ("_dynamo.py", "distributed/__init__.py", "distributed/run.py"):
        (package / name).write_text("")
    return str(package.parent)


def torch_environment(**extra: str) -> dict[str, str]:
    """A worker's environment, with its share of the cores."""
    return environment(**{"OMP_NUM_THREADS": "1", **extra})


@contextlib.contextmanager
def fork_server(
    spool: ShimSpool, *args: str, env: Mapping[str, str] | None = None, python: str = sys.executable
) -> Iterator[str]:
    """A fork server for ``python args``; yields what it says: ``ready`` at its end, or why it has ended."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    given = fork_server_environment(shim_environment(env or torch_environment()), str(spool.folder), its.fileno())
    given = {n: v for n, v in given.items() if n not in OF_ONE_WORKER and not n.startswith("TORCHELASTIC_")}
    log = os.open(spool.folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    server = subprocess.Popen(
        [python, "-c", "", *args],
        env=given,
        cwd=spool.cwd,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=[its.fileno()],
    )
    its.close()
    os.close(log)
    ours.settimeout(PATIENCE)
    said = b""
    try:
        while not said.endswith(b"ready\n") and (more := ours.recv(4096)):
            said += more
        yield said.decode()
    finally:
        server.kill()
        server.wait()
        ours.close()
