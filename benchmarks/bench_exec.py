"""Wall time and CPU of `hostname` on 32 hosts: `exec`, beside clush, pdsh, ansible and fab where they are installed.

And of `status` where there is no run. "kept": over the connections of `up --keep`, clush over OpenSSH masters of its
own. In turn in the same minutes on the lab (root, Linux), medians of ROUNDS after one round that warms everything; the
peers get a process for every host at once (`fab` has only one host after the other). CPU is what the command and all
its children here took, and what one host's sshd and all below it took (in ticks of 10 ms, so it wants many hosts). Of
an output that three groups of hosts have alike, `--gather` must make the groups that `clush -b` makes. Names of
commands after HOSTS leave out all others but clush.

    apt-get install clustershell pdsh
    python benchmarks/bench_exec.py [ROUNDS [HOSTS [COMMAND …]]]      two minutes and a half on two quiet cores
    python benchmarks/bench_exec.py 7 32 status exec                  one minute
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
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.kept import kept_connections, own_masters  # noqa: E402
from tests.lab import Lab  # noqa: E402 - the lab lives in the project, not in site-packages
from tests.lab.observe import cpu_ticks  # noqa: E402

GROUPS = 3
AIM = 0.5  # of clush's time
AIM_KEPT = 0.4  # the same, over kept connections, of clush without
KEPT = ", kept"  # in the names of what uses kept connections
NO_RUN = "no run on these hosts"  # status ends with 1 then
SETTLE = 0.5  # seconds after a command for what it began on hosts to end
BIN = Path(sys.executable).parent
HOSTNAME = ["hostname"]
# Three outputs of two lines, each of every third host.
IN_THREES = 'n=$(hostname | tr -dc 0-9 | sed s/^0*//); echo "group $((${n:-0} % 3))"; echo of three'


class Took(NamedTuple):
    """Seconds, seconds of CPU here, milliseconds of it on a host, and what was printed."""

    wall: float
    here: float
    host: float
    text: str


def commands(lab: Lab, count: int, masters: str) -> dict[str, list[str]]:
    """Name → command line, of those that are installed; ``masters``: ssh's arguments for clush's own."""
    ssh = f"-F {lab.folder / 'ssh_config'}"
    names, forks = ",".join(host.name for host in lab.hosts), str(count)
    program = str(BIN / "clusterddp")
    ours = [program, "exec", "-i", str(lab.inventory)]
    clush = ["clush", "-f", forks, "-o", ssh, "-w", names]
    status = [program, "status", "-i", str(lab.inventory)]
    own = f"{ssh} {masters.replace('%', '%%')}"  # clush reads %% as %
    found = {
        "status": status,
        "exec": [*ours, *HOSTNAME],
        "exec --bare": [*ours, "--bare", *HOSTNAME],
        "exec --gather": [*ours, "--gather", "--shell", IN_THREES],
        "clush": [*clush, *HOSTNAME],
        "clush -b": [*clush, "-b", IN_THREES],
        f"status{KEPT}": status,
        f"exec{KEPT}": [*ours, *HOSTNAME],
        f"clush{KEPT}": ["clush", "-f", forks, "-o", own, "-w", names, *HOSTNAME],
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


def ticks(lab: Lab) -> int:
    """Of CPU that the hosts' sshds and all below them took."""
    return sum(cpu_ticks(host.init.pid) for host in lab.hosts)


def timed(lab: Lab, argv: list[str], folder: Path, env: dict[str, str]) -> Took:
    """Run it once."""
    ticked, before, begin = ticks(lab), resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    seconds, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode and NO_RUN not in done.stderr:
        sys.exit(f"{argv}: {done.stdout}{done.stderr}")
    time.sleep(SETTLE)
    host = (ticks(lab) - ticked) * 1000 / os.sysconf("SC_CLK_TCK") / len(lab.hosts)
    return Took(seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, host, done.stdout)


def measure(rounds: int, count: int, only: list[str], folder: Path) -> None:
    """Print a line for each command."""
    with Lab(count) as lab, kept_connections(lab.inventory, folder) as kept, own_masters() as masters:
        env = {**os.environ, "PDSH_SSH_ARGS_APPEND": f"-F {lab.folder / 'ssh_config'}"}
        every = commands(lab, count, masters)
        every = {name: argv for name, argv in every.items() if not only or name.removesuffix(KEPT) in {*only, "clush"}}
        took: dict[str, list[Took]] = {name: [] for name in every}
        for _ in range(rounds + 1):
            for name, argv in every.items():
                took[name].append(timed(lab, argv, folder, {**env, **(kept if name.endswith(KEPT) else {})}))
    clush = statistics.median(one.wall for one in took["clush"][1:]) if "clush" in took else None
    for name, found in took.items():
        wall = statistics.median(one.wall for one in found[1:])
        here, host = (statistics.median(one) for one in zip(*[(one.here, one.host) for one in found[1:]], strict=True))
        aim = AIM_KEPT if name.endswith(KEPT) else AIM
        ratio = f", {wall / clush:.2f} of clush (aim {aim})" if clush and name.startswith(("exec", "status")) else ""
        if clush and name == f"clush{KEPT}":
            ratio = f", {wall / clush:.2f} of clush"
        print(f"{name:14} {wall:6.2f} s, {here:6.2f} s of CPU here, {host:5.1f} ms on a host{ratio}")
    if "clush -b" in took:
        compare(took["exec --gather"][-1].text, took["clush -b"][-1].text)


def compare(ours: str, theirs: str) -> None:
    """Say whether both have made the same groups of the same outputs."""
    made, wanted = ours_gathered(ours), clush_gathered(theirs)
    if made != wanted or len(made) != GROUPS:
        sys.exit(f"--gather makes other groups than clush -b:\n{ours}\n{theirs}")
    sizes = ", ".join(str(len(hosts)) for hosts in made.values())
    print(f"--gather and clush -b: the same {len(made)} groups ({sizes} hosts)")


def main() -> None:
    """Measure and print."""
    words = [int(word) for word in sys.argv[1:3]]
    rounds, count = (words + [5, 32][len(words) :])[:2]
    with tempfile.TemporaryDirectory() as folder:
        measure(rounds, count, sys.argv[3:], Path(folder))


if __name__ == "__main__":
    main()
