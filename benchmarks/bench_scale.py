"""What commands cost the operator on 8 to 5,000 hosts: `up`, `exec`, `status`, `run` until it has begun, `stop`.

The hosts are simulated (tests/simulated): they answer at once, from a process of their own, over a socket each. So the
figures are the operator's alone, without SSH: seconds, and of the command's process CPU, the most memory, bytes both
ways. The exponent of growth is the slope of CPU less the smallest size's over the number of hosts, both logarithmic.
The dials between the hosts are asked for and read as of real ones. Last, on real hosts of the lab (root, Linux): `exec`
beside clush, and the CPU and memory with real logins.

    python benchmarks/bench_scale.py [SIZES [REAL]]     8,32,128,512,1000,5000 and 32: ten minutes on two quiet cores
    python benchmarks/bench_scale.py 8,128,1000 0       no real hosts
"""

from __future__ import annotations

import math
import os
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
    """How CPU grows with the number of hosts, beyond that of the smallest size: 1 is in proportion."""
    sizes = sorted(by_size)
    points = [
        (math.log(size - sizes[0]), math.log(max(1e-3, by_size[size].cpu - by_size[sizes[0]].cpu)))
        for size in sizes[1:]
    ]
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    slope: float = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return slope


def beside_clush(count: int, folder: Path) -> None:
    """`exec` and clush on real hosts, each three times in turn; the least counts."""
    with Lab(count) as lab:
        names = ",".join(host.name for host in lab.hosts)
        both = {
            "exec": [str(CLUSTERDDP), "exec", "-i", str(lab.inventory), "--bare", "hostname"],
            "clush": ["clush", "-f", str(count), "-o", f"-F {lab.folder / 'ssh_config'}", "-w", names, "hostname"],
        }
        both = {name: argv for name, argv in both.items() if shutil.which(argv[0])}
        found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in both}
        for _ in range(4):  # the first warms everything
            for name, argv in both.items():
                found[name].append(timed(argv, folder))
        for name, rounds in found.items():
            seconds, cpu, memory = min(rounds[1:])
            per_host = f"{cpu / count * 1000:.1f} ms a host"
            print(
                f"{name:18} {count:5} real   {seconds:7.2f} s, {cpu:6.2f} s of CPU ({per_host}), {memory / 1e6:4.0f} MB"
            )


def timed(argv: list[str], folder: Path) -> tuple[float, float, int]:
    """Seconds, seconds of CPU with all children, and the most memory of the process."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            out.seek(0)
            sys.exit(f"{argv}: {out.read().decode()}")
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu, used.ru_maxrss * 1024


def main() -> None:
    """Measure and print."""
    sizes = [int(size) for size in sys.argv[1].split(",")] if sys.argv[1:] else [*SIZES]
    real = int(sys.argv[2]) if sys.argv[2:] else 32
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text("print(1)\n")
        costs = {size: measure(size, folder) for size in sizes}
        if len(sizes) > 2:
            for command in COMMANDS:
                slope = exponent({size: found[command] for size, found in costs.items()})
                print(
                    f"{command:18} CPU grows with the number of hosts to the {slope:.2f} (aim at most {MOST_EXPONENT})"
                )
        if real:
            beside_clush(real, folder)


if __name__ == "__main__":
    main()
