"""Wall time and CPU of `hostname` on 32 hosts: `exec`, beside clush, pdsh, ansible and fab where they are installed.

In turn in the same minutes on the lab (root, Linux), medians of ROUNDS after one round that warms everything; the
peers get a process for every host at once (`fab` has only one host after the other). CPU is what the command and all
its children here took, and the hosts' own work is left out. Of an output that three groups of hosts have alike,
`--gather` must make the groups that `clush -b` makes.

    apt-get install clustershell pdsh
    python benchmarks/bench_exec.py [ROUNDS [HOSTS]]
"""

from __future__ import annotations

import os
import re
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

GROUPS = 3
AIM = 0.5  # of clush's time
BIN = Path(sys.executable).parent
HOSTNAME = ["hostname"]
# Three outputs of two lines, each of every third host.
IN_THREES = 'n=$(hostname | tr -dc 0-9 | sed s/^0*//); echo "group $((${n:-0} % 3))"; echo of three'


def commands(lab: Lab, count: int) -> dict[str, list[str]]:
    """Name → command line, of those that are installed."""
    ssh = f"-F {lab.folder / 'ssh_config'}"
    names, forks = ",".join(host.name for host in lab.hosts), str(count)
    ours = [str(BIN / "clusterddp"), "exec", "-i", str(lab.inventory)]
    clush = ["clush", "-f", forks, "-o", ssh, "-w", names]
    found = {
        "exec": [*ours, *HOSTNAME],
        "exec --bare": [*ours, "--bare", *HOSTNAME],
        "exec --gather": [*ours, "--gather", "--shell", IN_THREES],
        "clush": [*clush, *HOSTNAME],
        "clush -b": [*clush, "-b", IN_THREES],
        "pdsh": ["pdsh", "-R", "ssh", "-f", forks, "-w", names, *HOSTNAME],
        "ansible": [str(BIN / "ansible"), "-i", str(lab.inventory), "--forks", forks, "all", "-a", "hostname"],
        "fab": [str(BIN / "fab"), "-S", str(lab.folder / "ssh_config"), "-H", names, "--", *HOSTNAME],
    }
    return {name: argv for name, argv in found.items() if shutil.which(argv[0])}


def ours_gathered(text: str) -> dict[str, set[str]]:
    """Output → hosts, of `exec --gather`: ``gpu[00,03] (2):`` before its lines."""
    return _gathered(re.split(r"^(.+) \(\d+\):\s*", text, flags=re.MULTILINE)[1:])


def clush_gathered(text: str) -> dict[str, set[str]]:
    """The same of `clush -b`: the hosts between two lines of dashes."""
    return _gathered(re.split(r"^-+\n(\S+) \(\d+\)\n-+\n", text, flags=re.MULTILINE)[1:])


def _gathered(parts: list[str]) -> dict[str, set[str]]:
    return {output.strip(): hosts_of(names) for names, output in zip(parts[::2], parts[1::2], strict=True)}


def hosts_of(names: str) -> set[str]:
    """The hosts that folded names stand for: ``gpu[00:02,04]`` (ours), ``gpu[00-02,04]`` (clush)."""
    found = set()
    for stem, inside, whole in re.findall(r"(\w+)\[([^]]*)\]|(\w+)", names):
        for part in inside.split(",") if stem else []:
            first, last = (re.split("[-:]", part) * 2)[:2]
            found |= {f"{stem}{number:0{len(first)}}" for number in range(int(first), int(last) + 1)}
        found |= {whole} - {""}
    return found


def timed(argv: list[str], folder: Path, env: dict[str, str]) -> tuple[float, float, str]:
    """Seconds, seconds of CPU, and what it printed."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    seconds, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{argv}: {done.stdout}{done.stderr}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def measure(rounds: int, count: int, folder: Path) -> None:
    """Print a line for each command."""
    with Lab(count) as lab:
        env = {**os.environ, "PDSH_SSH_ARGS_APPEND": f"-F {lab.folder / 'ssh_config'}"}
        every = commands(lab, count)
        took: dict[str, list[tuple[float, float, str]]] = {name: [] for name in every}
        for _ in range(rounds + 1):
            for name, argv in every.items():
                took[name].append(timed(argv, folder, env))
    clush = statistics.median(one[0] for one in took["clush"][1:]) if "clush" in took else None
    for name, found in took.items():
        wall, cpu = statistics.median(one[0] for one in found[1:]), statistics.median(one[1] for one in found[1:])
        ratio = f", {wall / clush:.2f} of clush (aim {AIM})" if clush and name.startswith("exec") else ""
        print(f"{name:14} {wall:6.2f} s, {cpu:6.2f} s of CPU here{ratio}")
    if clush:
        compare(took["exec --gather"][-1][2], took["clush -b"][-1][2])


def compare(ours: str, theirs: str) -> None:
    """Say whether both have made the same groups of the same outputs."""
    made, wanted = ours_gathered(ours), clush_gathered(theirs)
    if made != wanted or len(made) != GROUPS:
        sys.exit(f"--gather makes other groups than clush -b:\n{ours}\n{theirs}")
    sizes = ", ".join(str(len(hosts)) for hosts in made.values())
    print(f"--gather and clush -b: the same {len(made)} groups ({sizes} hosts)")


def main() -> None:
    """Measure and print."""
    words = [int(word) for word in sys.argv[1:]]
    rounds, count = (words + [5, 32][len(words) :])[:2]
    with tempfile.TemporaryDirectory() as folder:
        measure(rounds, count, Path(folder))


if __name__ == "__main__":
    main()
