"""Whom `clusterddp top` names: nobody in CLEAN runs of three equal ranks, and in LATE runs the rank that is 10 ms late.

On the lab (root, Linux), one rank a host. Steps take 50 ms and an all_reduce. The clean runs go AT_ONCE side by side,
and each is looked at LOOKS times; every name is wrong there. In a late run rank 1's step takes 10 ms longer, and looks
follow each other until one names it: the seconds count from the run's first step.

    python benchmarks/bench_top.py [CLEAN] [LATE]
"""

from __future__ import annotations

import collections
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.lab import Lab  # noqa: E402 - the lab lives in the project, not in site-packages
from tests.lean import training_python  # noqa: E402

CLUSTERDDP = str(Path(sys.executable).with_name("clusterddp"))
RANKS = 3
AT_ONCE = 3  # clean runs
LOOKS = 3  # at a clean run
BETWEEN = 4.0  # seconds from look to look
PATIENCE = 120.0  # seconds until a run's first step, or a name
AIM = 30.0  # seconds until the late rank is named
NAMED = ("always", "in-turn")
TRAIN = """
import os, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
late = float(os.environ.get("LATE_MS", "0")) if dist.get_rank() == 1 else 0
dist.barrier()
print("first step", flush=True)
while True:
    time.sleep((50 + late) / 1000)
    dist.all_reduce(torch.ones(1000))
"""


def command(folder: Path, *words: str) -> str:
    """What a command prints; it must end well."""
    done = subprocess.run([CLUSTERDDP, *words], cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr[-500:]}")
    return done.stdout.strip()


def started(folder: Path, part: int, *words: str) -> str:
    """A detached run on the hosts of that part of the lab, at its first step."""
    hosts = ",".join(f"gpu{RANKS * part + rank:02}" for rank in range(RANKS))
    run = command(folder, "run", "--detach", "--no-doctor", "--limit", hosts, *words, "train.py")
    deadline = time.monotonic() + PATIENCE
    while command(folder, "logs", run).count("first step") < RANKS:
        if time.monotonic() > deadline:
            sys.exit(f"run {run} takes no step")
    return run


def clean(folder: Path, part: int) -> list[dict[str, Any]]:
    """What is said of a run of equal ranks, look by look."""
    run = started(folder, part)
    said = []
    for _ in range(LOOKS):
        time.sleep(BETWEEN)
        said.append(json.loads(command(folder, "top", run, "--json"))["late"])
    command(folder, "stop", run, "--grace", "0")
    return said


def late(folder: Path) -> tuple[float, list[int]]:
    """The seconds until the late rank is named alone (infinite: never), and all ranks that were named wrongly."""
    run = started(folder, 0, "--env", "LATE_MS=10")
    began, seconds = time.monotonic(), float("inf")
    wrong: list[int] = []
    while seconds == float("inf") and time.monotonic() < began + PATIENCE:
        said = json.loads(command(folder, "top", run, "--json"))["late"]
        if said["kind"] == "always" and said["ranks"] == [1]:
            seconds = time.monotonic() - began
        wrong += [rank for rank in said["ranks"] if rank != 1]
    command(folder, "stop", run, "--grace", "0")
    return seconds, wrong


def measure_clean(folder: Path, runs: int) -> None:
    """Run the clean ones, some at once, and print what was said of them."""
    kinds: collections.Counter[str] = collections.Counter()
    named = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for first in range(0, runs, AT_ONCE):
            parts = range(min(AT_ONCE, runs - first))
            for said in pool.map(lambda part: clean(folder, part), parts):
                kinds.update(look["kind"] for look in said)
                wrong = [look["sentence"] for look in said if look["kind"] in NAMED]
                named += bool(wrong)
                print(*wrong, sep="\n", end="\n" if wrong else "")
            looks = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
            done, load = first + len(parts), os.getloadavg()[1]
            print(f"{done} clean runs: {named} with a name (aim 0); looks: {looks}; load {load:.0f}", flush=True)


def measure_late(folder: Path, runs: int) -> None:
    """Run the late ones, one after the other, and print when the rank was named."""
    found = [late(folder) for _ in range(runs)]
    seconds = sorted(each for each, _ in found)
    soon, wrong = sum(each <= AIM for each in seconds), sum(bool(names) for _, names in found)
    took = f"median {statistics.median(seconds):.1f} s, longest {seconds[-1]:.1f} s"
    print(
        f"{runs} runs with a rank 10 ms late: named within {AIM:.0f} s in {soon}; {took}; "
        f"another rank named in {wrong}; load {os.getloadavg()[1]:.0f}"
    )


def main() -> None:
    """Measure and print."""
    runs = [int(word) for word in sys.argv[1:3]] + [10, 5][len(sys.argv[1:3]) :]
    variables = {"clusterddp_python": training_python()}
    with tempfile.TemporaryDirectory() as name, Lab(RANKS * AT_ONCE, variables=variables) as lab:
        os.environ["CLUSTERDDP_INVENTORY"] = str(lab.inventory)
        folder = Path(name)
        (folder / "train.py").write_text(TRAIN)
        command(folder, "up", str(lab.inventory))
        if runs[0]:
            measure_clean(folder, runs[0])
        if runs[1]:
            measure_late(folder, runs[1])


if __name__ == "__main__":
    main()
