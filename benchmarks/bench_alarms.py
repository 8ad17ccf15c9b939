"""Whether `up` and `doctor` are right on many hosts while the machine is busy: false alarms, and faults not named.

On healthy lab hosts each command runs ROUNDS times; then one host drops everything that reaches it, one host drops what
one peer sends, and one drops the ports of runs, each FAULTS times on another host, and `doctor` has to name the host.
Processes that only compute keep the load up meanwhile; the load is printed. On the lab (root, Linux).

    python benchmarks/bench_alarms.py [ROUNDS [HOSTS [FAULTS [BUSY]]]]      20 32 5 8: forty minutes on two cores
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import bench_doctor  # noqa: E402 - benchmarks are no installed package
from benchmarks.bench_doctor import CLUSTERDDP, timed  # noqa: E402
from tests.lab import Lab  # noqa: E402 - the lab lives in the project, not in site-packages
from tests.lean import training_python  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.lab.host import LabHost

WORKER_PORTS = "29400:29499"  # clusterddp_ports, as it is if nothing else is said


class Look(NamedTuple):
    """One command: its seconds, the load after it, and each complaint with the hosts that it names."""

    seconds: float
    load: float
    complaints: list[tuple[str, tuple[str, ...]]]


def up(lab: Lab, project: Path) -> Look:
    """Run `up`; if it fails, each line on stderr is a complaint."""
    seconds, done = timed([CLUSTERDDP, "up", str(lab.inventory)], project)
    lines = done.stderr.splitlines() if done.returncode else []
    return Look(seconds, os.getloadavg()[0], [(line, ()) for line in lines])


def doctor(lab: Lab, project: Path, *options: str) -> Look:
    """Run `doctor`; each check that neither passed nor was skipped is a complaint."""
    seconds, found = bench_doctor.doctor(lab.inventory, project, *options)
    told = [(f"{one['name']} {one['verdict']}: {one['message']}", tuple(one["hosts"])) for one in found]
    return Look(seconds, os.getloadavg()[0], told)


def healthy(lab: Lab, project: Path, rounds: int) -> None:
    """Run both commands in turn, and print every complaint."""
    looks: dict[str, list[Look]] = {"up": [], "doctor": []}
    for _ in range(rounds):
        looks["up"].append(up(lab, project))
        looks["doctor"].append(doctor(lab, project))
    for name, of_name in looks.items():
        alarms = Counter(complaint for look in of_name for complaint in look.complaints)
        said = f"{sum(alarms.values())} complaints, {_ran(of_name)}"
        print(f"{name:7} {len(lab.hosts)} healthy hosts, {rounds} times: {said}")
        for (text, hosts), count in alarms.most_common():
            print(f"    {count} × {text}  {','.join(hosts)}", flush=True)


def _ran(looks: list[Look]) -> str:
    seconds, loads = [look.seconds for look in looks], [look.load for look in looks]
    return f"{statistics.median(seconds):.1f} s (at most {max(seconds):.1f}), load {min(loads):.0f} to {max(loads):.0f}"


def _drops_all(lab: Lab, host: LabHost) -> None:
    for peer in lab.hosts:  # the operator still reaches it
        host.drop(proto="all", peer=peer.address)


def _drops_one_peer(lab: Lab, host: LabHost) -> None:
    host.drop(proto="all", peer=lab.hosts[0 if host is not lab.hosts[0] else 1].address)


def _drops_ports(_: Lab, host: LabHost) -> None:
    host.drop(port=WORKER_PORTS, direction="in")


FAULTS: dict[str, Callable[[Lab, LabHost], None]] = {
    "drops what all peers send": _drops_all,
    "drops what one peer sends": _drops_one_peer,
    "drops the ports of runs": _drops_ports,
}


def faulty(lab: Lab, project: Path, rounds: int) -> None:
    """Make each fault on one host after another, and count how often `doctor` names that host, or a healthy one."""
    for name, make in FAULTS.items():
        named, wrongly, looks = 0, Counter[str](), []
        for number in range(rounds):
            host = lab.hosts[(3 + 7 * number) % len(lab.hosts)]
            make(lab, host)
            looks.append(doctor(lab, project, "--only", "network"))
            host.heal()
            named += any(host.name in f"{text} {' '.join(hosts)}" for text, hosts in looks[-1].complaints)
            wrongly.update(text for text, hosts in looks[-1].complaints if host.name not in f"{text} {' '.join(hosts)}")
        print(f"a host {name}: named {named} of {rounds}, {_ran(looks)}", flush=True)
        for text, count in wrongly.most_common():
            print(f"    {count} × {text}")


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep the given number of processes computing in endless loops."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main() -> None:
    """Measure and print."""
    given = [int(word) for word in sys.argv[1:]]
    rounds, count, faults, computing = (*given, *(20, 32, 5, 8)[len(given) :])
    python = {"clusterddp_python": training_python()}  # whole enough for the doctor's rehearsal
    with tempfile.TemporaryDirectory() as name, Lab(count, variables=python) as lab, busy(computing):
        project = Path(name)
        (project / "train.py").write_text("print(1)\n")
        healthy(lab, project, rounds)
        if faults:
            faulty(lab, project, faults)


if __name__ == "__main__":
    main()
