"""Seconds from the command to the first DDP step on two nodes of Slurm: `clusterddp run` beside sbatch by hand.

Ours without and with the fork server.

All in one run, in turn, on the lab (root, Linux, slurm-wlm); medians of ROUNDS. Ours comes from outside, over SSH,
with sync and submission; by hand it is a script with `srun torchrun`, submitted in an SSH session on the login host.

    python benchmarks/bench_slurm.py [ROUNDS]
"""

from __future__ import annotations

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
from tests.lab.slurm import Slurm, why_no_slurm  # noqa: E402
from tests.lab.system import wait_until  # noqa: E402
from tests.lean import WHOLE_TORCH  # noqa: E402

SCRIPT = ROOT / "examples" / "toy_ddp.py"
MARK = "step 0 "
BY_HAND = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --output=/home/trainer/bench/out
cd /home/trainer/bench
export GLOO_SOCKET_IFNAME=eth0
srun {python} -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --rdzv-id $SLURM_JOB_ID --rdzv-backend c10d \\
    --rdzv-endpoint {first}:29500 toy_ddp.py --steps 2
"""
SUBMIT = (
    f"cd bench; rm -f out; sbatch job.sh >/dev/null; until grep -qs '{MARK}' out; do sleep 0.02; done; echo {MARK} seen"
)


def first_step(slurm: Slurm, command: list[str], folder: Path) -> float:
    """Seconds until the command prints the first step; it and its job have ended then."""
    start = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder, text=True)
    stream = child.stdout
    assert stream
    seen = next((time.monotonic() - start for line in stream if MARK in line), None)
    child.communicate()
    wait_until("no job is left", lambda: not slurm.run("squeue", "--noheader"), timeout=120)
    slurm.wait_idle()
    if seen is None:
        sys.exit(f"no step seen: {shlex.join(command)}")
    return seen


def main() -> None:
    """Measure and print."""
    if reason := why_no_slurm():
        sys.exit(reason)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with Lab(3, variables=WHOLE_TORCH, shared_home=True) as lab, tempfile.TemporaryDirectory() as folder:
        slurm, project = Slurm(lab).start(), Path(folder) / "project"
        project.mkdir()
        shutil.copy(SCRIPT, project)
        first = slurm.compute[0].name
        texts = {"toy_ddp.py": SCRIPT.read_text(), "job.sh": BY_HAND.format(python=sys.executable, first=first)}
        for name, text in texts.items():
            slurm.controller.write(f"/home/trainer/bench/{name}", text)
        run = [str(Path(sys.executable).with_name("clusterddp")), "run", "--nnodes", "2"]
        words = ["toy_ddp.py", "--steps", "2"]
        plain, forking = (
            slurm.write_inventory({**WHOLE_TORCH, "clusterddp_fork_server": wanted}, project.parent / f"{wanted}.yaml")
            for wanted in (False, True)
        )
        commands = {
            "sbatch by hand": lab.ssh(slurm.controller.name, SUBMIT),
            "plainly": [*run, "-i", str(plain), *words],
            "with the fork server": [*run, "-i", str(forking), *words],
        }
        for command in commands.values():  # facts are cached from here on, as the page cache is
            first_step(slurm, command, project)
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for number in range(1, rounds + 1):
            for name, command in commands.items():
                taken[name].append(first_step(slurm, command, project))
            print(
                f"round {number}: " + ", ".join(f"{name} {all_[-1]:.2f} s" for name, all_ in taken.items()), flush=True
            )
    by_hand = taken.pop("sbatch by hand")
    for name, ours in taken.items():
        ratio = statistics.median(a / b for a, b in zip(ours, by_hand, strict=True))
        print(
            f"first step on 2 nodes of Slurm's, median of {rounds}: {name} {statistics.median(ours):.2f} s, "
            f"sbatch by hand {statistics.median(by_hand):.2f} s, ratio {ratio:.2f} (aim 0.8 or less)"
        )


if __name__ == "__main__":
    main()
