"""What a kernel drops by itself is named with its sysctl, and no firewall is blamed for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from clusterddp.checks.engine import judge, select
from clusterddp.checks.evidence import NetworkEvidence
from clusterddp.remote.shared.probes.network_records import Heard, KernelCounters, KernelTable
from tests.unit.evidence_made import cluster, failure, pairs, said, seen, wrong
from tests.unit.facts_made import interface

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterddp.checks.evidence import Evidence, HostEvidence
    from clusterddp.facts.network import DialFailure

NAMES = ("gpu01", "gpu02", "gpu03")


def counted(drops: int = 0, **tables: tuple[int | None, int | None, int | None]) -> KernelCounters:
    return KernelCounters(drops, {name: KernelTable(*values) for name, values in tables.items()})


def heard(*failures: DialFailure, **reports: Heard) -> Evidence:
    """A cluster of which some hosts reported after connections failed."""
    evidence = cluster(failures=failures)
    assert evidence.network
    return replace(evidence, network=replace(evidence.network, heard=reports))


def healthy(**tables: KernelTable) -> Evidence:
    return cluster(seen("gpu02", *NAMES, health={"tables": tables}))


@pytest.mark.parametrize(
    ("table", "check", "sysctl"),
    [("arp", "neighbour-table", "gc_thresh3"), ("ndisc", "neighbour-table", "gc_thresh3"),
     ("conntrack", "connection-tracking", "nf_conntrack_max")],
)  # fmt: skip
def test_a_table_that_is_full_is_named_with_its_sysctl(table: str, check: str, sysctl: str) -> None:
    (result,) = wrong(healthy(**{table: KernelTable(1024, 1024, 0)}))
    assert (result.name, result.verdict, result.hosts) == (check, "fail", ("gpu02",))
    assert result.message == "1024 of 1024 entries: it is full"
    assert sysctl in result.fix
    (result,) = wrong(healthy(**{table: KernelTable(1000, 1024, 0)}))
    assert (result.name, result.verdict) == (check, "warn")


def test_tables_with_room_or_without_figures_are_well() -> None:
    full_once = KernelTable(10, 1024, 99)
    assert said(healthy(arp=full_once, ndisc=KernelTable(), conntrack=KernelTable(5, 0, None))) == []


def test_a_table_that_had_no_room_while_hosts_dialled_is_the_cause_and_no_firewall() -> None:
    report = Heard(before=counted(arp=(900, 1024, 5)), after=counted(arp=(700, 1024, 8)))
    shut = failure("gpu02", "gpu01", "table full", ranged=False)
    (result,) = wrong(heard(shut, gpu02=report, gpu01=Heard()))
    assert (result.name, result.verdict, result.hosts) == ("neighbour-table", "fail", ("gpu02",))
    assert result.message == "700 of 1024 entries: while the hosts dialled it had no room 3 times"


def test_a_table_too_small_for_the_hosts_of_a_subnet_is_named_before_it_is_full() -> None:
    where = {name: interface(f"10.0.0.{name[-1]}") for name in NAMES}
    small = {name: seen(name, *NAMES, health={"tables": {"arp": KernelTable(1, size, 0)}})
             for name, size in zip(NAMES, (3, 4, 1024), strict=True)}  # fmt: skip
    (result,) = wrong(cluster(*small.values(), network=NetworkEvidence(where=where)))
    assert (result.name, result.verdict, result.hosts) == ("neighbour-table", "warn", ("gpu01",))
    assert result.message == "3 entries at most, and 3 hosts are in one subnet with it"


def test_a_queue_that_overflowed_is_named_where_connections_failed() -> None:
    shut = failure("gpu01", "gpu02", "queue full", ranged=True)
    queue, ports = wrong(heard(shut, gpu02=Heard(before=counted(3), after=counted(10))))
    assert (queue.name, queue.verdict, queue.hosts) == ("listen-queue", "warn", ("gpu02",))
    assert queue.message == "its listeners had no room for 7 connections while the hosts dialled"
    assert (ports.name, ports.verdict) == ("ports", "fail")
    assert "firewall" not in ports.message + ports.fix


@pytest.mark.parametrize("ports", ["ephemeral", "clusterddp_ports"])
def test_a_host_that_took_connections_and_answered_too_late_is_not_judged(ports: str) -> None:
    ranged = ports == "clusterddp_ports"
    late = [failure(source, "gpu02", "slow", ranged=ranged) for source in ("gpu01", "gpu03")]
    (result,) = wrong(heard(*late, gpu02=Heard(late_ms=2300)))
    assert (result.name, result.verdict, result.hosts) == ("network", "unknown", ("gpu02",))
    assert result.message == (
        "could not look: gpu01 → gpu02, gpu03 → gpu02: it took the connection, and its answer came too late: host or "
        "network are too busy (our process there was held up for 2.3 s)"
    )


def sparse(count: int, bad: tuple[str, ...] = (), hosts: Mapping[str, HostEvidence] | None = None) -> Evidence:
    """A cluster of many hosts of which only neighbours, and the first with all, were dialled."""
    names = [f"gpu{number:02}" for number in range(1, count + 1)]
    tried = [(one, other) for one in names for other in names
             if one != other and (names[0] in (one, other) or abs(int(one[3:]) - int(other[3:])) < 3)]  # fmt: skip
    dialled = tuple(one for one in pairs(*names) if (one.source, one.target) in tried)
    failed = tuple(failure(one, other, ranged=False) for one, other in tried if other in bad)
    where = {name: interface(f"10.0.0.{name[3:].lstrip('0')}") for name in names}
    network = NetworkEvidence(label="x", where=where, pairs=dialled, failures=failed)
    return cluster(*(hosts or {}).values(), count=count, network=network)


def test_of_many_hosts_what_was_dialled_is_said_and_no_other_pair_called_good_or_bad() -> None:
    checks = select(only=["network", "ports", "black-hole", "loss", "latency"])
    found = {one.name: one for one in judge(sparse(40), checks)}
    tried = "114 of 780 pairs dialled; a single bad pair of hosts would be found with 15 %; `doctor --all-pairs` dials"
    for name in ("network", "ports", "black-hole", "loss"):
        assert tried in found[name].message
        assert found[name].verdict == "pass"
        assert "all hosts" not in found[name].message
    assert found["latency"].verdict == "pass"


def test_of_many_hosts_each_that_answers_nobody_is_named_alone() -> None:
    (result,) = wrong(sparse(40, bad=("gpu09", "gpu30")))
    assert (result.name, set(result.hosts)) == ("network", {"gpu09", "gpu30"})


def test_of_many_hosts_only_the_names_that_were_looked_up_are_judged() -> None:
    names = [f"gpu{number:02}" for number in range(1, 41)]
    few = {name: seen(name, name, "gpu01") for name in names}
    (found,) = judge(sparse(40, hosts=few), [check for check in select() if check.name == "names"])
    assert (found.verdict, found.message) == ("pass", "every host knows the names of 8 others")
    none = seen("gpu07", health={"names": {}})
    wrong_ones = said(sparse(40, hosts={**few, "gpu07": none}))
    assert ("names", "unknown", ("gpu07",)) in wrong_ones
