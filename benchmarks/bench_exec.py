"""Wall time and CPU of `hostname` on 32 hosts: `exec`, beside clush, pdsh and ansible where they are installed.

In turn in the same minutes on the lab (root, Linux), medians of ROUNDS after one round that warms everything; the
peers get a process for every host at once. CPU is what the command and all its children here took, and the hosts' own
work is left out. `--gather` is compared with `clush -b`: both must fold the hosts into one group.

    apt-get install clustershell pdsh
    python benchmarks/bench_exec.py [ROUNDS [HOSTS]]
"""

from __future__ import annotations

import os
import resource
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

AIM = 0.5  # of clush's time
BIN = Path(sys.executable).parent
HOSTNAME = ["hostname"]


def commands(lab: Lab, count: int) -> dict[str, list[str]]:
    """Name → command line, of those that are installed."""
    ssh = f"-F {lab.folder / 'ssh_config'}"
    names, forks = ",".join(host.name for host in lab.hosts), str(count)
    ours = [str(BIN / "clusterddp"), "exec", "-i", str(lab.inventory)]
    clush = ["clush", "-f", forks, "-o", ssh, "-w", names]
    found = {
        "exec": [*ours, *HOSTNAME],
        "exec --bare": [*ours, "--bare", *HOSTNAME],
        "exec --gather": [*ours, "--gather", "echo", "same"],
        "clush": [*clush, *HOSTNAME],
        "clush -b": [*clush, "-b", "echo", "same"],
        "pdsh": ["pdsh", "-R", "ssh", "-f", forks, "-w", names, *HOSTNAME],
        "ansible": [str(BIN / "ansible"), "-i", str(lab.inventory), "--forks", forks, "all", "-a", "hostname"],
    }
    return {name: argv for name, argv in found.items() if shutil.which(argv[0])}


def timed(argv: list[str], folder: Path, env: dict[str, str]) -> tuple[float, float]:
    """Seconds, and seconds of CPU."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    seconds, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{argv}: {done.stdout}{done.stderr}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(rounds: int, count: int, folder: Path) -> None:
    """Print a line for each command."""
    with Lab(count) as lab:
        env = {**os.environ, "PDSH_SSH_ARGS_APPEND": f"-F {lab.folder / 'ssh_config'}"}
        every = commands(lab, count)
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in every}
        for _ in range(rounds + 1):
            for name, argv in every.items():
                took[name].append(timed(argv, folder, env))
    clush = statistics.median(one[0] for one in took["clush"][1:]) if "clush" in took else None
    for name, found in took.items():
        wall, cpu = (statistics.median(one[place] for one in found[1:]) for place in (0, 1))
        ratio = f", {wall / clush:.2f} of clush (aim {AIM})" if clush and name.startswith("exec") else ""
        print(f"{name:14} {wall:6.2f} s, {cpu:6.2f} s of CPU here{ratio}")


def main() -> None:
    """Measure and print."""
    words = [int(word) for word in sys.argv[1:]]
    rounds, count = (words + [5, 32][len(words) :])[:2]
    with tempfile.TemporaryDirectory() as folder:
        measure(rounds, count, Path(folder))


if __name__ == "__main__":
    main()
