"""Seconds from the command to the first DDP step on two hosts: `clusterddp run` beside torchrun by hand over ssh.

Ours from a warm server, with a fork server of the run's own ("cold"), and plainly; all in one run, in turn, on the lab
(root, Linux); medians of ROUNDS with WORKERS a host. Ours includes connecting, preflight and sync.

    python benchmarks/bench_first_step.py [ROUNDS [WORKERS]]
"""

from __future__ import annotations

import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.lab import Lab  # noqa: E402 - the lab lives in the project, not in site-packages
from tests.lab.system import wait_until  # noqa: E402
from tests.lean import WHOLE_TORCH  # noqa: E402

if TYPE_CHECKING:
    from tests.lab.host import LabHost

SCRIPT = ROOT / "examples" / "toy_ddp.py"
MARK = b"step 0 "


def first_step(commands: list[list[str]], folder: Path) -> float:
    """Seconds until any of the commands prints its first step; all are run to their end."""
    start = time.monotonic()
    children = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder) for command in commands
    ]
    stream = children[0].stdout
    assert stream
    seen = next((time.monotonic() - start for line in stream if MARK in line), None)
    for child in children:
        child.communicate()
    if seen is None:
        sys.exit(f"no step seen: {shlex.join(commands[0])}")
    return seen


def by_hand(lab: Lab, number: int, workers: int) -> list[list[str]]:
    """One ssh a host, as one would type them: rank 0's host holds the rendezvous."""
    commands = []
    for rank, host in enumerate(lab.hosts):
        words = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", str(workers),
            "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{lab.hosts[0].address}:29777", "--rdzv-id", f"bench{number}",
            "--rdzv-conf", f"is_host={'true' if rank == 0 else 'false'}", "--local-addr", host.address,
            "toy_ddp.py", "--steps", "2",
        ]  # fmt: skip
        environment = "GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1"
        commands.append(lab.ssh(host.name, f"cd bench && {environment} exec {shlex.join(words)}"))
    return commands


def has_warm_server(host: LabHost) -> bool:
    """Whether one is ready there."""
    return host.run(["sh", "-c", "test -S ~/.clusterddp/warm/*/fork.sock"], check=False).returncode == 0


def main() -> None:
    """Measure and print."""
    rounds, workers = (int(word) for word in [*sys.argv[1:], *("5", "1")[len(sys.argv) - 1 :]][:2])
    variables = {**WHOLE_TORCH, "clusterddp_fork_server": True, "clusterddp_nproc": workers}
    cold = {"all": {"clusterddp_warm": 0}}
    with Lab(2, variables=variables) as lab, tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        shutil.copy(SCRIPT, project)
        for host in lab.hosts:
            host.write("/home/trainer/bench/toy_ddp.py", SCRIPT.read_text(), user="trainer")
        os.environ["CLUSTERDDP_INVENTORY"] = str(lab.inventory)
        inventory = lab.write_inventory(project / "cold.yaml", more=cold)
        ours = [str(Path(sys.executable).with_name("clusterddp")), "run"]
        script = ["toy_ddp.py", "--steps", "2"]
        taken: dict[str, list[float]] = {"warm": [], "cold": [], "plain": [], "by hand": []}
        for number in range(rounds + 1):
            commands = {
                "warm": [[*ours, *script]],
                "cold": [[*ours, "-i", str(inventory), *script]],
                "plain": [[*ours, "--no-fork-server", *script]],
                "by hand": by_hand(lab, number, workers),
            }
            seconds = {}
            for name, command in commands.items():
                seconds[name] = first_step(command, project)
                if name == "warm":  # the next round's
                    for host in lab.hosts:
                        wait_until("a warm server", partial(has_warm_server, host))
            print(f"round {number}: " + ", ".join(f"{name} {took:.2f} s" for name, took in seconds.items()), flush=True)
            for name, took in seconds.items() if number else ():  # facts and pages are cached from the first one on
                taken[name].append(took)
    for name, own in taken.items():
        ratio = statistics.median(a / b for a, b in zip(own, taken["by hand"], strict=True))
        print(
            f"2 hosts × {workers}, first step, median of {rounds}: {name} {statistics.median(own):.2f} s, {ratio:.2f}×"
        )


if __name__ == "__main__":
    main()
