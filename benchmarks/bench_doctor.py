"""Wall time of `doctor` without its rehearsal, beside ansible gathering facts of the same hosts; and false alarms.

In turn in the same minutes, on healthy lab hosts, medians of ROUNDS. Ansible gets a fork for every host. The doctor's
first run, which imports torch on every host, is printed apart. On the lab (root, Linux).

    python benchmarks/bench_doctor.py [ROUNDS [HOSTS …]]      `2 32`: two to three minutes on two quiet cores
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.lab import Lab  # noqa: E402 - the lab lives in the project, not in site-packages
from tests.lean import WHOLE_TORCH  # noqa: E402

AIM = 3.0  # seconds, on 32 hosts
PLAY = "- hosts: all\n  gather_facts: true\n  tasks: []\n"
BIN = Path(sys.executable).parent
CLUSTERDDP = str(BIN / "clusterddp")


def timed(argv: list[str], folder: Path) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Seconds of a command, and its exit code and output."""
    begin = time.monotonic()
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    return time.monotonic() - begin, done


def doctor(inventory: Path, folder: Path, *options: str) -> tuple[float, list[dict[str, Any]]]:
    """Seconds, and the checks that neither passed nor were skipped."""
    seconds, done = timed([CLUSTERDDP, "doctor", "-i", str(inventory), "--json", *options], folder)
    if done.returncode not in (0, 1):
        sys.exit(done.stderr)
    return seconds, [one for one in json.loads(done.stdout)["checks"] if one["verdict"] not in ("pass", "skipped")]


def gathered(inventory: Path, folder: Path, count: int) -> float:
    """Seconds of ansible."""
    (folder / "play.yaml").write_text(PLAY)
    argv = [str(BIN / "ansible-playbook"), "-i", str(inventory), "--forks", str(count), "play.yaml"]
    seconds, done = timed(argv, folder)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return seconds


def measure(count: int, rounds: int, folder: Path) -> None:
    """One line of medians for so many hosts, and every false alarm."""
    ours, theirs, alarms = [], [], []
    with Lab(count, variables=WHOLE_TORCH) as lab:
        first, wrong = doctor(lab.inventory, folder, "--skip", "rehearsal")
        alarms += wrong
        for _ in range(rounds):
            seconds, wrong = doctor(lab.inventory, folder, "--skip", "rehearsal")
            ours.append(seconds)
            alarms += wrong
            theirs.append(gathered(lab.inventory, folder, count))
    ratio = statistics.median(one / other for one, other in zip(ours, theirs, strict=True))
    print(
        f"doctor, {count} hosts, median of {rounds}: {statistics.median(ours):.2f} s (first {first:.2f} s), "
        f"ansible gathering facts {statistics.median(theirs):.2f} s, ratio {ratio:.2f}; "
        f"false alarms {len(alarms)} in {rounds + 1} runs" + (f" (aim {AIM:.0f} s or less)" if count >= 32 else "")
    )
    for one in alarms:
        print(f"  {one['name']} {one['verdict']}: {', '.join(one['hosts'])}: {one['message']}")


def main() -> None:
    """Measure and print."""
    words = [int(word) for word in sys.argv[1:]] or [5]
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(HOME=folder, ANSIBLE_LOCALHOST_WARNING="False")
        for count in words[1:] or (3, 32):
            measure(count, words[0], Path(folder))


if __name__ == "__main__":
    main()
