"""Seconds from a worker's failure to the verdict on the operator's terminal, 2 hosts; medians of ROUNDS.

Real `clusterddp run`s with torchrun; the other rank waits as in a collective. For each way to fail, and beside it the
seconds until the run's exit code is there for the shell. On the lab (root, Linux).

    python benchmarks/bench_verdict.py [ROUNDS]
"""

from __future__ import annotations

import os
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

AIM = 3.0  # seconds
WAYS = {"exception": 1, "SIGKILL": 137, "exit code 7": 7}
SCRIPT = """
import os, signal, sys, time
if os.environ["RANK"] == "1":
    time.sleep(1)
    print("fails at", time.time(), flush=True)
    if sys.argv[1] == "exception":
        raise ValueError("loss is NaN")
    if sys.argv[1] == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(7)
time.sleep(600)
"""


def seconds(folder: Path, way: str) -> tuple[float, float]:
    """From the failure to the verdict's line, and to the end of the command."""
    argv = [str(Path(sys.executable).with_name("clusterddp")), "run", "fails.py", way]
    with subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout
        assert child.stderr
        failed = next((float(line.split("fails at ")[1]) for line in child.stdout if "fails at" in line), 0.0)
        if not failed:
            sys.exit(child.stderr.read())
        told = next((time.time() for line in child.stderr if "failed first" in line), 0.0)
        child.communicate()
        if child.returncode != WAYS[way] or not told:
            sys.exit(f"{way}: exit code {child.returncode}, verdict {'seen' if told else 'not seen'}")
        return told - failed, time.time() - failed


def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with Lab(2, variables=WHOLE_TORCH) as lab, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "fails.py").write_text(SCRIPT)
        os.environ["CLUSTERDDP_INVENTORY"] = str(lab.inventory)
        for way in WAYS:
            verdicts, ends = zip(*[seconds(folder, way) for _ in range(rounds)], strict=True)
            print(
                f"a worker's failure ({way}) to the verdict, 2 hosts, median of {rounds}: "
                f"{statistics.median(verdicts):.2f} s, to the exit code {statistics.median(ends):.2f} s "
                f"(aim {AIM:.0f} s or less)"
            )


if __name__ == "__main__":
    main()
