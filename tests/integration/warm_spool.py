"""A spool whose fork server comes from a warm server, as the helper asks it; fence and supervisor only sleep here."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterddp.remote.preload.server_folder import SCRIPT, WISHES
from clusterddp.remote.shared.run.plan import FORK_SOCKET
from clusterddp.remote.supervisor.fork_server_process import LOG
from clusterddp.remote.worker.fork_client import ForkServerConnection, connect, decoded, send
from clusterddp.remote.worker.worker_env import fork_server_environment, script_environment
from tests.integration.fork_spool import OF_ONE_WORKER, torch_environment
from tests.integration.shim_spool import ShimSpool, shim_environment, wait_for
from tests.lab.system import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SLEEPS = "import sys, threading; threading.Event().wait(600)"


def common(spool: ShimSpool, told: str, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a fork server in the spool's folder."""
    given = fork_server_environment(shim_environment(env or torch_environment()), str(spool.folder), told)
    return {n: v for n, v in given.items() if n not in OF_ONE_WORKER and not n.startswith("TORCHELASTIC_")}


@contextlib.contextmanager
def warm_server(
    spool: ShimSpool,
    *,
    env: Mapping[str, str] | None = None,
    python: str = sys.executable,
    preload: tuple[str, ...] = (),
    secrets: tuple[str, ...] = (),
    run: tuple[str, ...] = ("",),
) -> Iterator[subprocess.Popen[bytes]]:
    """A warm server that has the spool's code and preloads ``preload``, ready in a folder of its own.

    ``run``: the working folder and the command line of the run that leaves it.
    """
    here = spool.folder / "cwd-0123456789"
    here.mkdir()
    (spool.folder / WISHES).write_text(
        json.dumps({"preload": preload, "secrets": secrets, "cwd": run[0], "argv": run[1:]})
    )
    with (spool.folder / "warm.log").open("wb") as log:
        server = subprocess.Popen(
            [python, "-c", "", "-u", SCRIPT],
            env={n: v for n, v in common(spool, "warm 600 0 0", env).items() if n != "CLUSTERDDP_RUN_ID"},
            cwd=here,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        there = spool.folder / FORK_SOCKET
        wait_until("the warm server", lambda: there.exists() or server.poll() is not None, 180 if preload else 60)
        yield server
    finally:
        server.kill()
        server.wait()


def ask(
    warm: ShimSpool, spool: ShimSpool, *args: str, env: Mapping[str, str] | None = None, python: str = sys.executable
) -> dict[str, Any]:
    """The warm server's answer to a request for a fork server of ``python args`` in the spool."""
    request = {
        "program": [sys.executable, "-c", SLEEPS],
        "spool": str(spool.folder),
        "env": dict(os.environ),
        "listening": [False, False],
        "score": int(Path("/proc/self/oom_score_adj").read_text()),
        "cwd": str(spool.cwd),
        "argv": [python, *args],
        "worker_env": script_environment(common(spool, "0", env)),
        "log": str(spool.folder / LOG),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock, Path(os.devnull).open("r+b") as null:
        sock.settimeout(30)
        connect(sock, str(warm.folder))
        send(sock, request, [null.fileno(), null.fileno()])
        answer = decoded(ForkServerConnection(sock).line())
        if "ready" in answer:
            sock.sendall(b"g")
        return answer


@contextlib.contextmanager
def begun(
    warm: ShimSpool, spool: ShimSpool, *args: str, env: Mapping[str, str] | None = None, python: str = sys.executable
) -> Iterator[None]:
    """The spool has a fork server from the warm one."""
    assert ask(warm, spool, *args, env=env, python=python) == {"ready": True}
    try:
        wait_for((spool.folder / FORK_SOCKET).exists, "the fork server")
        yield
    finally:
        (spool.folder / FORK_SOCKET).unlink(missing_ok=True)
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and os.fsencode(spool.folder) in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
