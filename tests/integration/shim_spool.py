"""A spool as the supervisor makes it, and a program run twice: as `python -u …` and as torchrun runs it with our shim.

Not covered here: the agent (tests with real torchrun pass `spool.worker` as PYTHON_EXEC).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterddp.remote.shared.run.event_schema import event_json, of_kind
from clusterddp.remote.spool.events import read_events
from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.worker.worker_env import shim_script
from tests.lab.system import PATIENCE, wait_until
from tests.unit.plan_made import PLAN, changed, made_spool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PROBES = Path(__file__).parent / "shim_probes"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a program ended and what it wrote."""

    returncode: int
    out: bytes
    err: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class ShimSpool:
    """One node's spool with the shim ready to start."""

    folder: Path
    cwd: Path

    @property
    def worker(self) -> str:
        """What torchrun gets as PYTHON_EXEC."""
        return str(self.folder / "worker")

    def popen(self, *args: str, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
        """Start the shim as torchrun does: a session of its own, nothing to read."""
        options = {"stdin": subprocess.DEVNULL, "start_new_session": True, "cwd": self.cwd, **options}
        return subprocess.Popen([self.worker, *args], env=shim_environment(env or environment()), **options)

    def run(self, *args: str, env: Mapping[str, str] | None = None, **options: Any) -> Ended:
        """Run the shim to its end."""
        start = len(list((self.folder / "logs").glob("*.0.out")))
        with self.popen(*args, env=env, **options) as process:
            code = process.wait(PATIENCE)
        return Ended(
            returncode=code,
            out=(self.folder / "logs" / f"{start}.0.out").read_bytes(),
            err=(self.folder / "logs" / f"{start}.0.err").read_bytes(),
        )

    def events(self, name: str) -> list[dict[str, Any]]:
        """All events of that name."""
        return [event_json(event) for event in of_kind(read_events(str(self.folder / "events.jsonl")), name)]

    def event(self, name: str) -> dict[str, Any]:
        """The one event of that name, waited for."""
        wait_for(lambda: self.events(name), f"event {name}")
        return self.events(name)[0]


def make_spool(
    folder: Path,
    *,
    python: str = sys.executable,
    helper: str = sys.executable,
    elastic: bool = False,
    preload: tuple[str, ...] = (),
    comm_trace: bool = True,
) -> ShimSpool:
    """A spool under ``folder``: workers run on ``python``, the shim on ``helper``; four of them, or any if elastic.

    Its fork server preloads ``preload``. Workers get a server for traces if ``comm_trace``.
    """
    spool = Spool(str(folder / "runs" / "r1" / "0" / "0-here"))
    cwd = folder / "work"
    cwd.mkdir()
    plan = PLAN._replace(run="r1", python=python, cwd=str(cwd), workdir=str(cwd), world_size=4)
    plan = changed(plan, elastic=elastic, min_nodes=1, preload=preload, comm_trace=comm_trace)
    assert made_spool(spool, plan)
    worker = Path(spool.path("worker"))
    worker.write_text(shim_script(helper, spool.path("remote.pyz"), spool.folder))
    worker.chmod(0o700)
    return ShimSpool(folder=Path(spool.folder), cwd=cwd)


def environment(**extra: str) -> dict[str, str]:
    """A worker's environment as torchrun makes it."""
    names = ("PATH", "HOME", "LANG")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    worker = {"RANK": "3", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "GROUP_RANK": "1", "MASTER_ADDR": "10.0.0.1"}
    torch = {
        "MASTER_PORT": "29511",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_ERROR_FILE": "/nowhere/error.json",
    }
    return {**kept, **worker, **torch, "CLUSTERDDP_RUN_ID": "r1", **extra}


def shim_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The same environment with what our launch adds to an agent's."""
    ours = {"PYTHON_EXEC": "/of/torchrun", "PET_NPROC_PER_NODE": "2", "PET_RDZV_CONF": "is_host=false"}
    ours["CLUSTERDDP_ROUND"] = "3"
    if "PYTHONPATH" in env:
        ours["CLUSTERDDP_USER_PYTHONPATH"] = env["PYTHONPATH"]
    return {**env, **ours, "PYTHONPATH": "/of/the/agent"}


def run_plain(spool: ShimSpool, python: str, *args: str, env: Mapping[str, str] | None = None) -> Ended:
    """Run the same without the shim: `python -u …` with files as output."""
    out, err = spool.cwd.parent / "plain.out", spool.cwd.parent / "plain.err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        done = subprocess.run(
            [python, *args],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=spool.cwd,
            env=dict(env or environment()),
            start_new_session=True,
            timeout=PATIENCE,  # some import torch twice, beside other tests
            check=False,
        )
    return Ended(returncode=done.returncode, out=out.read_bytes(), err=err.read_bytes())


def without_addresses(text: bytes) -> bytes:
    """The text without objects' and threads' addresses, which no two runs share."""
    return re.sub(rb"0x[0-9a-f]{8,}", b"0x", text)


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Poll until ``condition`` holds."""
    wait_until(what, condition)
