"""The benchmark of `doctor`: measures the TCP bandwidth of every pair of hosts, then starts the run over all hosts.

The operator starts each round over the open connections, so nothing depends on clocks; within a round no host is in two
pairs. A pair that looks slow is measured again alone, and the best result counts: disturbance only ever lowers it.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING

from clusterddp.checks.catalog.performance import busy
from clusterddp.checks.needs import PAIRS, WORKERS
from clusterddp.doctor.bench_collectives import measure_together, measurements_for
from clusterddp.doctor.rehearsal import parts
from clusterddp.facts.bench import Bench
from clusterddp.facts.bench_schedule import first_rounds, suspect_rounds
from clusterddp.facts.speeds import Speed, slow_pairs
from clusterddp.hosts.ask import reading_answer
from clusterddp.hosts.fanout import each
from clusterddp.probe.dial_hosts import start_listener
from clusterddp.remote.shared.probes.network_records import ListenRequest, PourRequest
from clusterddp.remote.shared.schema.record import to_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterddp.checks.evidence import Evidence
    from clusterddp.checks.model import Check
    from clusterddp.facts.host import Interface
    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.runs.run_on_hosts import Site

    Round = Sequence[tuple[str, str]]

REMEASUREMENTS = 2  # how often slow directions are measured again, alone
MAX_REMEASURED = 12  # directions each time: what holds for so many holds for the rest
LISTEN_SECONDS = 3600  # then a listener whose operator is gone ends by itself
POUR_TIMEOUT = 60.0  # seconds; the host's own limits are shorter


def measure(
    cluster: Site,
    outcomes: Sequence[Outcome[Host]],
    evidence: Evidence,
    checks: Sequence[Check],
    progress: Callable[[str], None],
) -> Bench:
    """Measure what the checks need; nothing if the check `idle` is selected and something else computes on the hosts.

    ``outcomes`` are the hosts' connections in the order of the evidence; ``progress`` is called with what is being
    done.
    """
    needs = {need for check in checks for need in check.needs}
    if "idle" in {check.name for check in checks} and busy(evidence):
        return Bench(refused=True)
    bench = Bench()
    network = evidence.network
    if PAIRS in needs and network and not network.error:
        connected = [outcome.value for outcome in outcomes if outcome.value and outcome.name in network.where]
        alone = _no_second_machine(evidence, connected)
        speeds = () if alone else pair_speeds(connected, network.where, progress)
        bench = Bench(label=network.label, speeds=speeds, alone=alone)
    participants = parts(evidence, outcomes, checks, WORKERS) if WORKERS in needs else []
    return measure_together(cluster, participants, measurements_for(checks), bench, progress) if participants else bench


def _no_second_machine(evidence: Evidence, hosts: Sequence[Host]) -> str:
    """Why there are no two machines to measure between; empty if there are."""
    names = {host.name for host in hosts}
    machines = {facts.boot for entry, facts in evidence.facts if entry.name in names}
    return "" if len(machines) > 1 else "for want of a second machine"


def pair_speeds(
    hosts: Sequence[Host], where: Mapping[str, Interface], progress: Callable[[str], None]
) -> tuple[Speed, ...]:
    """Measure the speed of every pair in each direction; of many hosts a sample, and all pairs of slow hosts.

    ``where`` has the hosts' interfaces on the network that is measured; at least two hosts are needed.
    """
    with contextlib.ExitStack() as stack:
        meter = _Meter(hosts, where, stack)
        rounds = first_rounds([host.name for host in hosts])
        for number, pairs in enumerate(rounds, 1):
            progress(f"bandwidth: round {number}/{len(rounds)}")
            meter.measure(pairs)
        suspects = {host for pair in slow_pairs(meter.speeds) for host in pair}
        rows = suspect_rounds([host.name for host in hosts], suspects, list(meter.best))
        for number, pairs in enumerate(rows, 1):
            progress(f"bandwidth: round {number}/{len(rows)} of {len(suspects)} slow hosts")
            meter.measure(pairs)
        for _ in range(REMEASUREMENTS):
            slow = [*meter.failed_pairs, *slow_pairs(meter.speeds)][:MAX_REMEASURED]
            for number, (source, target) in enumerate(slow, 1):
                progress(f"bandwidth: slow pair {number}/{len(slow)} alone")
                meter.measure_direction(source, target)
        return meter.speeds


class _Meter:
    """Listeners on all hosts, and the best speed measured in each direction."""

    def __init__(self, hosts: Sequence[Host], where: Mapping[str, Interface], stack: contextlib.ExitStack) -> None:
        self.best: dict[tuple[str, str], Speed] = {}
        self._hosts = {host.name: host for host in hosts}
        self._where = where
        self._nonces = {host.name: secrets.token_hex(16) for host in hosts}
        self._ports = {outcome.name: outcome for outcome in each(hosts, lambda host: self._listen(host, stack))}

    @property
    def speeds(self) -> tuple[Speed, ...]:
        """The results in the hosts' order."""
        order = {name: index for index, name in enumerate(self._hosts)}
        return tuple(sorted(self.best.values(), key=lambda speed: (order[speed.source], order[speed.target])))

    @property
    def failed_pairs(self) -> list[tuple[str, str]]:
        """Failed measurements between hosts that work with others: a SYN may get lost on a busy connection."""
        measured = {host for speed in self.best.values() if not speed.error for host in (speed.source, speed.target)}
        return [pair for pair, speed in self.best.items() if speed.error and measured.issuperset(pair)]

    def measure(self, pairs: Round) -> None:
        """Measure one round: all pairs at once, each in both directions in turn."""
        partners = dict(pairs)  # no host is in two

        def both(host: Host) -> None:
            self.measure_direction(host.name, partners[host.name])
            self.measure_direction(partners[host.name], host.name)

        for outcome in each([self._hosts[name] for name in partners], both):
            outcome.get()

    def measure_direction(self, source: str, target: str) -> None:
        """Measure one direction, and keep the better of this and an earlier result."""
        (outcome,) = each([self._hosts[source]], lambda host: self._measure_on(host, target))
        speed = outcome.value or Speed(source=source, target=target, error=outcome.reason)
        previous = self.best.get((source, target))
        if previous is None or speed.mbit > previous.mbit:
            self.best[source, target] = speed

    def _measure_on(self, host: Host, target: str) -> Speed:
        """Let a host send to the listener of another for a while; return the speed, or why it could not."""
        listening = self._ports[target]
        if listening.error:
            return Speed(source=host.name, target=target, error=f"{target} does not listen: {listening.reason}")
        request = PourRequest(self._where[target].address, listening.get(), self._nonces[target])
        return Speed.from_json(host.name, target, host.call("pour", to_fields(request), timeout=POUR_TIMEOUT))

    def _listen(self, host: Host, stack: contextlib.ExitStack) -> int:
        """Start a listener on a host and return its port; leaving the stack ends it."""
        request = ListenRequest(ports=host.entry.ports, nonce=self._nonces[host.name], seconds=LISTEN_SECONDS)
        with reading_answer(host.name):
            (port,) = start_listener(host, "drain", request, stack)
            return port
