"""Seconds from `stop` with grace 0 to the proof that nothing is left, on 3 and on 32 hosts; medians of ROUNDS.

Real supervisors, connected by run control; a small program with WORKERS children stands for torchrun, because 32 of
those do not start on one machine. `command` is a new `clusterddp stop`, connecting included; `open` is the same over
connections that are open already. On the lab (root, Linux).

    python benchmarks/bench_stop.py [ROUNDS]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from clusterddp import Cluster, Run  # noqa: E402 - the project's, wherever this is started
from clusterddp.hosts.fanout import each, values  # noqa: E402
from clusterddp.launch.make_plan import make_plan, run_settings  # noqa: E402
from clusterddp.launch.options import RunOptions  # noqa: E402
from clusterddp.launch.prepare import new_run_id  # noqa: E402
from clusterddp.launch.ssh import over_ssh  # noqa: E402
from clusterddp.project.project import find  # noqa: E402
from clusterddp.remote.shared.run.host_settings import HostSettings  # noqa: E402
from clusterddp.remote.shared.run.node_env import Node  # noqa: E402
from clusterddp.remote.shared.run.run_record import RunRecord  # noqa: E402
from tests.lab import Lab  # noqa: E402 - the lab lives in the project, not in site-packages

if TYPE_CHECKING:
    from clusterddp.hosts.client import Host

WORKERS = 8
AIM = 1.0  # seconds, of 3 hosts
SETTLED = 3.0  # seconds until all supervisors know each other; a stop sooner waits for them up to 5 s
AGENT = f"""
import signal, subprocess
workers = [subprocess.Popen(["sleep", "9999"]) for _ in range({WORKERS})]
signal.pause()
"""


def start(cluster: Cluster, hosts: list[Host]) -> Run:
    """A run under way on all hosts."""
    run = new_run_id()
    home = hosts[0].hello.home
    nodes = [
        Node(
            host=host.name,
            nproc=WORKERS,
            address=host.entry.address,
            interface=None,
            python=sys.executable,
            env={},
            secrets=(),
            settings=HostSettings(ports=(29400, 29499)),
            workdir=home,
            cwd=home,
            run_dir=f"{host.hello.state}/rundirs/{run}-{host.name}",
        )
        for host in hosts
    ]
    record = RunRecord(
        run=run,
        hosts=tuple(host.name for host in hosts),
        started=time.time_ns(),
        project=cluster.project.known_id,
    )
    options = RunOptions(script="agent.py")
    plan = make_plan(run=run, nodes=nodes, options=options, settings=run_settings(options, "c10d"), record=record)
    plan = replace(plan, shared=plan.shared._replace(argv=("-u", "-c", AGENT)))
    started = Run(cluster, run, 1, over_ssh.launch(hosts, plan, {}).spools, record)
    wait_for_workers(hosts, run)
    time.sleep(SETTLED)
    return started


def wait_for_workers(hosts: list[Host], run: str) -> None:
    """Until every agent's workers are there."""

    def look(host: Host) -> None:
        while len(host.call("runs", {"run": run, "hosts": [host.name]})[0]["pids"]) <= WORKERS:
            time.sleep(0.1)

    values(each(hosts, look))


def through_open_connections(run: Run) -> float:
    """Seconds of a stop by the library."""
    begin = time.monotonic()
    proofs = run.stop(grace=0)
    seconds = time.monotonic() - begin
    if not all(proof.proved_empty for proof in proofs):
        sys.exit(f"not proved empty: {proofs}")
    return seconds


def by_command(run: Run, folder: Path) -> float:
    """Seconds of a stop by a new command."""
    argv = [str(Path(sys.executable).with_name("clusterddp")), "stop", run.id, "--grace", "0"]
    begin = time.monotonic()
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begin
    if done.returncode or done.stderr.count("proved empty") != len(run.spools):
        sys.exit(done.stderr)
    return seconds


def measure(count: int, rounds: int, folder: Path) -> None:
    """One line of medians for so many hosts."""
    with Lab(count) as lab, Cluster.from_inventory(lab.inventory, project=find(folder)) as cluster:
        os.environ["CLUSTERDDP_INVENTORY"] = str(lab.inventory)
        hosts = values(cluster.connect())
        opened = [through_open_connections(start(cluster, hosts)) for _ in range(rounds)]
        commands = [by_command(start(cluster, hosts), folder) for _ in range(rounds)]
    print(
        f"stop --grace 0 to proved empty, {count} hosts of {WORKERS} workers, median of {rounds}: "
        f"command {statistics.median(commands):.2f} s, open {statistics.median(opened):.2f} s (aim {AIM:.0f} s or less)"
    )


def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as folder:
        for count in (3, 32):
            measure(count, rounds, Path(folder))


if __name__ == "__main__":
    main()
