"""Labelled lines a second of two nodes of Slurm, at the operator's terminal: `clusterddp run` beside `srun --label`.

Eight workers print as fast as they can. Both come from outside: ours over its one SSH connection to the login host,
srun in an SSH session there. All in one run, in turn, on the lab (root, Linux, slurm-wlm); counted from the first
line that arrives to the last. srun tears some lines in two, which counts as one.

    python benchmarks/bench_slurm_lines.py [ROUNDS [LINES OF EACH]]
"""

from __future__ import annotations

import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.lab import Lab  # noqa: E402 - the lab lives in the project, not in site-packages
from tests.lab.slurm import Slurm, why_no_slurm  # noqa: E402
from tests.lab.system import wait_until  # noqa: E402
from tests.lean import lean_python  # noqa: E402

WORKERS = 4  # on each of two nodes
FLOOD = """\
import os, sys
for number in range(0, int(sys.argv[1]), 100):
    os.write(1, b"".join(b"%-79d\\n" % line for line in range(number, number + 100)))
"""


def lines_a_second(slurm: Slurm, command: list[str], folder: Path, lines: int) -> float:
    """Of a command that prints so many labelled lines; its job has ended then."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder)
    assert child.stdout
    seen, first = 0, 0.0
    while data := os.read(child.stdout.fileno(), 1 << 20):
        first = first or time.monotonic()
        seen += data.count(b"\n")
        last = time.monotonic()
    child.wait()
    wait_until("no job is left", lambda: not slurm.run("squeue", "--noheader"), timeout=120)
    slurm.wait_idle()
    if not lines <= seen < lines * 1.01:
        sys.exit(f"{seen} lines in place of {lines}: {shlex.join(command)}")
    return lines / (last - first)


def main() -> None:
    """Measure and print."""
    if reason := why_no_slurm():
        sys.exit(reason)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    each = int(sys.argv[2]) if len(sys.argv) > 2 else 200_000
    lines = each * 2 * WORKERS
    with Lab(3, shared_home=True) as lab, tempfile.TemporaryDirectory() as folder:
        slurm, project = Slurm(lab).start(), Path(folder) / "project"
        project.mkdir()
        (project / "flood.py").write_text(FLOOD)
        slurm.controller.write("/home/trainer/bench/flood.py", FLOOD)
        inventory = slurm.write_inventory({"clusterddp_python": lean_python()})
        size = f"-N2 --ntasks-per-node={WORKERS}"
        by_srun = f"srun {size} --label --mpi=none {sys.executable} bench/flood.py {each}"
        ours = [str(Path(sys.executable).with_name("clusterddp")), "run", "-i", str(inventory), "--nnodes", "2"]
        commands = {
            "srun --label": lab.ssh(slurm.controller.name, by_srun),
            "clusterddp": [*ours, "--nproc-per-node", str(WORKERS), "flood.py", str(each)],
        }
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for number in range(rounds + 1):  # the first for the caches
            for name, command in commands.items():
                taken[name].append(lines_a_second(slurm, command, project, lines))
            told = ", ".join(f"{name} {all_[-1] / 1e3:,.0f} k lines/s" for name, all_ in taken.items())
            print(f"round {number}: {told} (load {os.getloadavg()[0]:.1f})", flush=True)
    theirs, own = (all_[1:] for all_ in taken.values())
    ratio = statistics.median(a / b for a, b in zip(own, theirs, strict=True))
    both = ", ".join(f"{name} {statistics.median(all_[1:]) / 1e3:,.0f} k lines/s" for name, all_ in taken.items())
    print(f"{lines} labelled lines of 80 bytes, median of {rounds}: {both}, ratio {ratio:.2f} (aim 1.2 or more)")


if __name__ == "__main__":
    main()
