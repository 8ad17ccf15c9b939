"""What commands cost the operator on 8 to 5,000 hosts: `up`, `exec`, `status`, `run` until it has begun, `stop`.

The hosts are simulated (tests/simulated): they answer at once, from a process of their own, over a socket each. So the
figures are the operator's alone, without SSH: seconds, and of the command's process CPU, the most memory, bytes both
ways. The exponent of growth is that of the number of hosts where CPU is a fixed part and a part that grows.
The dials between the hosts are asked for and read as of real ones. Last, on real hosts of the lab (root, Linux), with
real logins: `exec` beside clush; then `up`, a run of one worker a host until all have begun, and `stop` with its proof.

    python benchmarks/bench_scale.py [SIZES [REAL [ROUNDS]]]    8,32,128,512,1000,5000 and 32, one round: ten minutes
    python benchmarks/bench_scale.py - 128                      real hosts alone
    python benchmarks/bench_scale.py 8,32,128,512,1000 0 3      no real hosts; medians of three rounds
"""

from __future__ import annotations

import math
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from clusterddp.inventory.ranges import expand  # noqa: E402 - as the other imports of the project
from tests.lab import Lab  # noqa: E402 - lab and simulation live in the project, not in site-packages
from tests.lean import lean_python  # noqa: E402
from tests.simulated.simulation import Simulation  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.simulated.simulation import Done

SIZES = (8, 32, 128, 512, 1000, 5000)
AIMS = {"up": 60.0, "exec": 10.0, "stop": 10.0}  # seconds on 1,000 hosts
MOST_EXPONENT = 1.1
COMMANDS = ("up", "exec", "status", "run", "status of the run", "stop")
CLUSTERDDP = Path(sys.executable).with_name("clusterddp")
BEGIN_PATIENCE = 300.0  # seconds
NO_RUN = 1  # the exit code of `status` where there is none


class Cost(NamedTuple):
    """Of one command."""

    seconds: float
    cpu: float
    memory: int  # bytes
    sent: int
    received: int


def words(command: str, inventory: str) -> tuple[str, ...]:
    """The command line."""
    where = ("-i", inventory)
    return {
        "up": ("up", inventory),
        "exec": ("exec", *where, "--bare", "hostname"),
        "status": ("status", *where),
        "run": ("run", *where, "--detach", "train.py"),
        "status of the run": ("status", *where),
        "stop": ("stop", *where),
    }[command]


def measure(count: int, folder: Path) -> dict[str, Cost]:
    """Every command once, on so many hosts."""
    costs = {}
    with Simulation(count, variables={"clusterddp_python": lean_python(), "clusterddp_nproc": 8}) as hosts:
        for command in COMMANDS:
            done = hosts.clusterddp(*words(command, str(hosts.inventory)), cwd=folder)
            if done.code != (NO_RUN if command == "status" else 0):
                sys.exit(f"{command} on {count} hosts: exit code {done.code}\n{done.err[-2000:]}")
            costs[command] = cost_of(done)
            show(command, count, costs[command])
    return costs


def median_of(rounds: int, count: int, folder: Path) -> dict[str, Cost]:
    """Of each command on so many hosts, the round with the median of CPU."""
    found = [measure(count, folder) for _ in range(rounds)]
    return {
        command: sorted((costs[command] for costs in found), key=lambda cost: cost.cpu)[rounds // 2]
        for command in COMMANDS
    }


def cost_of(done: Done) -> Cost:
    """Of a command that has ended."""
    return Cost(
        done.seconds, done.cpu, done.memory, done.counts["bytes to hosts"], done.counts.get("bytes from hosts", 0)
    )


def show(command: str, count: int, cost: Cost) -> None:
    """Print a line."""
    aim = f" (aim {AIMS[command]:.0f})" if count == 1000 and command in AIMS else ""
    print(
        f"{command:18} {count:5} hosts  {cost.seconds:7.2f} s{aim}, {cost.cpu:6.2f} s of CPU"
        f" ({cost.cpu / count * 1000:5.2f} ms a host), {cost.memory / 1e6:4.0f} MB,"
        f" {cost.sent / 1e6:6.2f} MB sent, {cost.received / 1e6:6.2f} MB received",
        flush=True,
    )


def exponent(by_size: Mapping[int, Cost]) -> float:
    """How CPU grows with the number of hosts: the k of ``fixed + each * hosts ** k`` that fits best, with fixed ≥ 0.

    Deviations count in proportion to the CPU that was measured. 1 is in proportion to the number of hosts.
    """
    return min((number / 100 for number in range(50, 251)), key=lambda power: deviation(by_size, power))


def deviation(by_size: Mapping[int, Cost], power: float) -> float:
    """Sum of the squares of relative deviations from the best ``fixed + each * hosts ** power``."""
    # The two terms of what should be 1.
    points = [(1 / cost.cpu, math.pow(size, power) / cost.cpu) for size, cost in by_size.items()]
    ones, mixed, powers = (sum(one[a] * one[b] for one in points) for a, b in ((0, 0), (0, 1), (1, 1)))
    sum_ones, sum_powers = (sum(column) for column in zip(*points, strict=True))
    fixed = max(0.0, (sum_ones * powers - sum_powers * mixed) / (ones * powers - mixed**2))
    each = (sum_powers - fixed * mixed) / powers
    return math.fsum(math.pow(fixed * one + each * other - 1, 2) for one, other in points)


def on_real_hosts(count: int, folder: Path) -> None:
    """Measure whole commands on real hosts of the lab; exit if a result is wrong."""
    with Lab(count) as lab:
        beside_clush(lab, folder)
        inventory = ("-i", str(lab.inventory))
        commands = {
            "up": ("up", str(lab.inventory)),
            "run": ("run", *inventory, "--detach", "wait.py"),
            "status of the run": ("status", *inventory, "--json"),
            "stop": ("stop", *inventory),
        }
        (folder / "wait.py").write_text("import signal\nprint('begun', flush=True)\nsignal.pause()\n")
        for name, words in commands.items():
            (seconds, cpu, memory), text = timed_with_output([str(CLUSTERDDP), *words], folder)
            show_real(name, count, seconds, cpu, memory)
            if name == "run":
                print(f"{'all have begun':18} {count:5} real   {until_begun(count, inventory, folder):7.2f} s after it")
            if name == "stop" and (proved := proved_empty(text)) != count:
                sys.exit(f"stop proved {proved} of {count} hosts empty:\n{text}")


def proved_empty(text: str) -> int:
    """How many hosts `stop` has proved empty; hosts alike share a line."""
    lines = re.findall(r"^clusterddp: \w+: (.+): \d+ process.*, proved empty$", text, re.MULTILINE)
    return sum(len(expand(term, "stop")[0]) for hosts in lines for term in hosts.split(", "))


def until_begun(count: int, inventory: tuple[str, ...], folder: Path) -> float:
    """Seconds until every worker has printed its line."""
    began = time.monotonic()
    while time.monotonic() - began < BEGIN_PATIENCE:
        _, text = timed_with_output([str(CLUSTERDDP), "logs", *inventory], folder)
        if text.count("] begun") == count:
            return time.monotonic() - began
    sys.exit(f"{text.count('] begun')} of {count} workers have begun after {BEGIN_PATIENCE:.0f} s")


def beside_clush(lab: Lab, folder: Path) -> None:
    """Measure `exec` and clush on real hosts, three times in turn, and print the fastest of each."""
    count, names = len(lab.hosts), ",".join(host.name for host in lab.hosts)
    both = {
        "exec": [str(CLUSTERDDP), "exec", "-i", str(lab.inventory), "--bare", "hostname"],
        "clush": ["clush", "-f", str(count), "-o", f"-F {lab.folder / 'ssh_config'}", "-w", names, "hostname"],
    }
    both = {name: argv for name, argv in both.items() if shutil.which(argv[0])}
    found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in both}
    for _ in range(4):  # the first warms everything
        for name, argv in both.items():
            found[name].append(timed_with_output(argv, folder)[0])
    for name, rounds in found.items():
        show_real(name, count, *min(rounds[1:]))


def show_real(name: str, count: int, seconds: float, cpu: float, memory: int) -> None:
    """Print a line."""
    per_host = f"{cpu / count * 1000:.1f} ms a host"
    print(
        f"{name:18} {count:5} real   {seconds:7.2f} s, {cpu:6.2f} s of CPU ({per_host}), {memory / 1e6:4.0f} MB",
        flush=True,
    )


def timed_with_output(argv: list[str], folder: Path) -> tuple[tuple[float, float, int], str]:
    """Seconds, seconds of CPU with all children, and the most memory of the process; and what it printed."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read().decode()
        if process.returncode:
            state = subprocess.run(
                [argv[0], "wait", *argv[2:]], cwd=folder, capture_output=True, text=True, check=False
            )
            sys.exit(f"{argv}: {text}\n{state.stderr}")
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (seconds, cpu, used.ru_maxrss * 1024), text


def main() -> None:
    """Measure and print."""
    given = sys.argv[1] if sys.argv[1:] else ",".join(map(str, SIZES))
    sizes = [] if given == "-" else [int(size) for size in given.split(",")]
    real = int(sys.argv[2]) if sys.argv[2:] else 32
    rounds = int(sys.argv[3]) if sys.argv[3:] else 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text("print(1)\n")
        costs = {size: median_of(rounds, size, folder) for size in sizes}
        if len(sizes) > 2:
            for command in COMMANDS:
                slope = exponent({size: found[command] for size, found in costs.items()})
                print(
                    f"{command:18} CPU grows with the number of hosts to the {slope:.2f} (aim at most {MOST_EXPONENT})"
                )
        if real:
            on_real_hosts(real, folder)


if __name__ == "__main__":
    main()
