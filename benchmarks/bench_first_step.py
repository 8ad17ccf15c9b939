"""Seconds from the command to the first DDP step on two hosts: `clusterddp run` beside torchrun by hand over ssh.

Both in one run, in turn, on the lab (root, Linux); medians of ROUNDS. Ours includes connecting, preflight and sync.

    python benchmarks/bench_first_step.py [ROUNDS]
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
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.lab import Lab  # noqa: E402 - the lab lives in the project, not in site-packages
from tests.lean import WHOLE_TORCH  # noqa: E402

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


def by_hand(lab: Lab, number: int) -> list[list[str]]:
    """One ssh a host, as one would type them: rank 0's host holds the rendezvous."""
    commands = []
    for rank, host in enumerate(lab.hosts):
        words = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1",
            "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{lab.hosts[0].address}:29777", "--rdzv-id", f"bench{number}",
            "--rdzv-conf", f"is_host={'true' if rank == 0 else 'false'}", "--local-addr", host.address,
            "toy_ddp.py", "--steps", "2",
        ]  # fmt: skip
        environment = "GLOO_SOCKET_IFNAME=eth0"
        commands.append(lab.ssh(host.name, f"cd bench && {environment} exec {shlex.join(words)}"))
    return commands


def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with Lab(2, variables=WHOLE_TORCH) as lab, tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        shutil.copy(SCRIPT, project)
        for host in lab.hosts:
            host.write("/home/trainer/bench/toy_ddp.py", SCRIPT.read_text(), user="trainer")
        os.environ["CLUSTERDDP_INVENTORY"] = str(lab.inventory)
        ours_command = [str(Path(sys.executable).with_name("clusterddp")), "run", "toy_ddp.py", "--steps", "2"]
        first_step([ours_command], project)  # facts are cached from here on, as torchrun's page cache is
        first_step(by_hand(lab, 0), project)
        ours, theirs = [], []
        for number in range(1, rounds + 1):
            ours.append(first_step([ours_command], project))
            theirs.append(first_step(by_hand(lab, number), project))
            print(f"round {number}: clusterddp {ours[-1]:.2f} s, torchrun by hand {theirs[-1]:.2f} s")
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    print(
        f"first step on 2 hosts, median of {rounds}: clusterddp {statistics.median(ours):.2f} s, "
        f"torchrun by hand {statistics.median(theirs):.2f} s, ratio {ratio:.2f} (aim 1.0 or less)"
    )


if __name__ == "__main__":
    main()
