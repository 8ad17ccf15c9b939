"""Seconds from a worker's SIGKILL to the next DDP step on two hosts: `clusterddp run` beside torchrun by hand over ssh.

Both in one run, in turn, on the lab (root, Linux), with --max-restarts. torchrun by hand is given
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which it loses about half of its restarts; a recovery that has not come
after PATIENCE counts as lost.

    python benchmarks/bench_recovery.py [ROUNDS] [--forked]

With ``--forked`` ours has the fork server. torchrun by hand takes part in the first seven rounds.
"""

from __future__ import annotations

import os
import queue
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Seen = dict[int, tuple[int, int]]  # rank → (pid, step)

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.lab import Lab  # noqa: E402 - the lab lives in the project, not in site-packages
from tests.lean import WHOLE_TORCH  # noqa: E402

PATIENCE = 60.0
BY_HAND = 7  # rounds
TRAIN = """
import os, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
for step in range(100000):
    model(torch.randn(8, 1)).sum().backward()
    print(f"rank {dist.get_rank()} pid {os.getpid()} step {step}", flush=True)
    time.sleep(0.02)
"""
STEP = re.compile(rb"rank (\d+) pid (\d+) step (\d+)")


def recovery(lab: Lab, commands: list[list[str]], folder: Path) -> float | None:
    """Seconds until rank 0 steps again after rank 1's worker was killed; None when it never does."""
    children = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder) for command in commands
    ]
    lines: queue.Queue[bytes] = queue.Queue()
    for child in children:
        threading.Thread(target=_read, args=(child, lines), daemon=True).start()
    try:
        before = _steps(lines, lambda seen: {0, 1} <= set(seen) and min(step for _, step in seen.values()) > 20)
        if not before:
            sys.exit(f"no step seen: {shlex.join(commands[0])}")
        killed = time.monotonic()
        lab.hosts[1].run(["kill", "-9", str(before[1][0])], user="root")
        again = _steps(lines, lambda seen: 0 in seen and seen[0][0] != before[0][0])
        return time.monotonic() - killed if again else None
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()


def _read(child: subprocess.Popen[bytes], lines: queue.Queue[bytes]) -> None:
    for line in child.stdout or ():
        lines.put(line)


def _steps(lines: queue.Queue[bytes], enough: Callable[[Seen], bool]) -> Seen | None:
    """Each rank's newest (pid, step) once that is ``enough``; None when it takes too long."""
    seen: Seen = {}
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            found = STEP.search(lines.get(timeout=1.0))
        except queue.Empty:
            continue
        if found:
            seen[int(found[1])] = (int(found[2]), int(found[3]))
            if enough(seen):
                return seen
    return None


def by_hand(lab: Lab, number: int) -> list[list[str]]:
    """One ssh a host; with a terminal, so that the agents end with it."""
    commands = []
    for rank, host in enumerate(lab.hosts):
        words = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1",
            "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{lab.hosts[0].address}:{29700 + number}",
            "--rdzv-id", f"bench{number}", "--rdzv-conf", f"is_host={'true' if rank == 0 else 'false'}",
            "--local-addr", host.address, "--max-restarts", "3", "train.py",
        ]  # fmt: skip
        environment = "GLOO_SOCKET_IFNAME=eth0 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
        ssh = lab.ssh(host.name, f"cd bench && {environment} exec {shlex.join(words)}")
        commands.append([ssh[0], "-tt", *ssh[1:]])
    return commands


def main() -> None:
    """Measure and print."""
    rounds = next((int(word) for word in sys.argv[1:] if word.isdigit()), 5)
    variables = {**WHOLE_TORCH, "clusterddp_fork_server": "--forked" in sys.argv}
    with Lab(2, variables=variables) as lab, tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        (project / "train.py").write_text(TRAIN)
        for host in lab.hosts:
            host.write("/home/trainer/bench/train.py", TRAIN, user="trainer")
        os.environ["CLUSTERDDP_INVENTORY"] = str(lab.inventory)
        command = [str(Path(sys.executable).with_name("clusterddp")), "run", "--max-restarts", "3", "train.py"]
        ours, theirs = [], []
        for number in range(rounds):
            ours.append(recovery(lab, [command], project))
            shown = f"clusterddp {_shown(ours[-1])}"
            if number < BY_HAND:
                theirs.append(recovery(lab, by_hand(lab, number), project))
                shown += f", torchrun by hand {_shown(theirs[-1])}"
            print(f"round {number + 1} (load {os.getloadavg()[0]:.0f}): {shown}", flush=True)
    mine = [seconds for seconds in ours if seconds is not None]
    peer = [seconds for seconds in theirs if seconds is not None]
    if not mine or not peer:
        sys.exit(f"recovered: clusterddp {len(mine)} of {rounds}, torchrun by hand {len(peer)} of {len(theirs)}")
    ratio = statistics.median(mine) / statistics.median(peer)
    print(
        f"worker killed → next step on 2 hosts, medians: clusterddp {statistics.median(mine):.2f} s"
        f" ({min(mine):.2f} to {max(mine):.2f}, {len(mine)} of {rounds} recovered), torchrun by hand"
        f" {statistics.median(peer):.2f} s ({len(peer)} of {len(theirs)}), ratio {ratio:.2f}"
        f" (aim {0.35 if '--forked' in sys.argv else 0.6} or less)"
    )


def _shown(seconds: float | None) -> str:
    return "lost" if seconds is None else f"{seconds:.2f} s"


if __name__ == "__main__":
    main()
