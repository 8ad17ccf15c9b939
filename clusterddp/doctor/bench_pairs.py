"""The benchmark of `doctor`: measures the TCP bandwidth of every pair of hosts, then starts the run over all hosts.

The operator starts each round over the open connections, so nothing depends on clocks; within a round no host is in two
pairs. A pair that looks slow is measured again alone, and the best result counts: disturbance only ever lowers it.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.checks.catalog.performance import busy
from clusterddp.checks.needs import PAIRS, WORKERS
from clusterddp.doctor.bench_collectives import measure_together, parts_for
from clusterddp.doctor.rehearsal import parts
from clusterddp.facts.bench import Bench
from clusterddp.facts.bench_schedule import first_rounds, suspect_rounds
from clusterddp.facts.speeds import Speed, slow_pairs
from clusterddp.hosts.fanout import each, reading_answer
from clusterddp.probe.dial_hosts import start_listener
from clusterddp.remote.shared.probes.network_records import ListenRequest, PourRequest
from clusterddp.remote.shared.schema.record import written

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterddp.checks.evidence import Evidence
    from clusterddp.checks.model import Check
    from clusterddp.facts.host import Interface
    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.runs.run_on_hosts import Site

    Round = Sequence[tuple[str, str]]

AGAIN = 2  # how often slow directions are measured again, alone
MOST_AGAIN = 12  # directions each time: what holds for so many holds for the rest
SECONDS = 3600  # then a listener whose operator is gone ends by itself
POUR_TIMEOUT = 60.0  # seconds; the host's own limits are shorter


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pair:
    name: str
    source: str
    target: str


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
        there = [outcome.value for outcome in outcomes if outcome.value and outcome.name in network.where]
        alone = _alone(evidence, there)
        speeds = () if alone else pair_speeds(there, network.where, progress)
        bench = Bench(label=network.label, speeds=speeds, alone=alone)
    taking = parts(evidence, outcomes, checks, WORKERS) if WORKERS in needs else []
    return measure_together(cluster, taking, parts_for(checks), bench, progress) if taking else bench


def _alone(evidence: Evidence, hosts: Sequence[Host]) -> str:
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
        for number, one in enumerate(rounds, 1):
            progress(f"bandwidth: round {number}/{len(rounds)}")
            meter.measure(one)
        suspects = {host for pair in slow_pairs(meter.speeds) for host in pair}
        rows = suspect_rounds([host.name for host in hosts], suspects, list(meter.found))
        for number, one in enumerate(rows, 1):
            progress(f"bandwidth: round {number}/{len(rows)} of {len(suspects)} slow hosts")
            meter.measure(one)
        for _ in range(AGAIN):
            slow = [*meter.silent, *slow_pairs(meter.speeds)][:MOST_AGAIN]
            for number, (source, target) in enumerate(slow, 1):
                progress(f"bandwidth: slow pair {number}/{len(slow)} alone")
                meter.pour(source, target)
        return meter.speeds


class _Meter:
    """Listeners on all hosts, and the best speed measured in each direction."""

    def __init__(self, hosts: Sequence[Host], where: Mapping[str, Interface], stack: contextlib.ExitStack) -> None:
        self.found: dict[tuple[str, str], Speed] = {}
        self._hosts = {host.name: host for host in hosts}
        self._where = where
        self._nonces = {host.name: secrets.token_hex(16) for host in hosts}
        self._ports = {outcome.name: outcome for outcome in each(hosts, lambda host: self._listen(host, stack))}

    @property
    def speeds(self) -> tuple[Speed, ...]:
        """The results in the hosts' order."""
        order = {name: index for index, name in enumerate(self._hosts)}
        return tuple(sorted(self.found.values(), key=lambda one: (order[one.source], order[one.target])))

    @property
    def silent(self) -> list[tuple[str, str]]:
        """Failed measurements between hosts that work with others: a SYN may get lost on a busy connection."""
        measured = {host for one in self.found.values() if not one.error for host in (one.source, one.target)}
        return [pair for pair, one in self.found.items() if one.error and measured.issuperset(pair)]

    def measure(self, pairs: Round) -> None:
        """Measure one round: all pairs at once, each in both directions in turn."""

        def both(pair: _Pair) -> None:
            self.pour(pair.source, pair.target)
            self.pour(pair.target, pair.source)

        for outcome in each([_Pair(name=one, source=one, target=other) for one, other in pairs], both):
            outcome.get()

    def pour(self, source: str, target: str) -> None:
        """Measure one direction, and keep the better of this and an earlier result."""
        (outcome,) = each([self._hosts[source]], lambda host: self._pour(host, target))
        speed = outcome.value or Speed(source=source, target=target, error=outcome.reason)
        known = self.found.get((source, target))
        if known is None or speed.mbit > known.mbit:
            self.found[source, target] = speed

    def _pour(self, host: Host, target: str) -> Speed:
        listening = self._ports[target]
        if listening.error:
            return Speed(source=host.name, target=target, error=f"{target} does not listen: {listening.reason}")
        asked = PourRequest(self._where[target].address, listening.get(), self._nonces[target])
        return Speed.from_json(host.name, target, host.call("pour", written(asked), timeout=POUR_TIMEOUT))

    def _listen(self, host: Host, stack: contextlib.ExitStack) -> int:
        """Start a listener on a host and return its port; leaving the stack ends it."""
        asked = ListenRequest(ports=host.entry.ports, nonce=self._nonces[host.name], seconds=SECONDS)
        with reading_answer(host.name):
            (port,) = start_listener(host, "drain", asked, stack)
            return port
