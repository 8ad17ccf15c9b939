"""What the doctor says of packets on open ways, over made evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clusterddp.checks.engine import judge, select
from clusterddp.checks.needs import HEALTH
from clusterddp.facts.host import Interface
from clusterddp.remote.shared.probes.health_records import Lookup
from tests.unit.evidence_made import cluster, failure, pairs, said, seen, wrong
from tests.unit.facts_made import interface

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

    from clusterddp.checks.evidence import Evidence

NAMES = ("gpu01", "gpu02", "gpu03")
SICK = [("gpu01", "gpu02"), ("gpu02", "gpu01"), ("gpu02", "gpu03"), ("gpu03", "gpu02")]  # the ways of gpu02


def measured(changed: Mapping[tuple[str, str], Mapping[str, Any]], names: tuple[str, ...] = NAMES) -> Evidence:
    made = cluster(count=len(names))
    assert made.network
    return replace(made, network=replace(made.network, pairs=pairs(*names, changed=changed)))


def test_a_black_hole_is_told_once_with_the_host_that_has_a_part_in_all_of_it() -> None:
    found = tuple(failure(*way, "black hole", ranged=False) for way in SICK)
    (result,) = wrong(cluster(failures=found))
    assert (result.name, result.verdict, result.hosts) == ("black-hole", "fail", ("gpu02",))
    assert result.message.startswith("gpu01 → gpu02, gpu02 → gpu01, gpu02 → gpu03, gpu03 → gpu02: small packets pass")
    assert "eth0 1500" in result.message


def test_a_way_that_is_shut_and_one_with_a_black_hole_are_two_faults() -> None:
    shut = tuple(failure("gpu01", "gpu02", ranged=ranged) for ranged in (True, False))
    hole = failure("gpu03", "gpu04", "black hole", ranged=False)
    results = wrong(cluster(count=4, failures=(*shut, hole)))
    assert [(one.name, set(one.hosts)) for one in results] == [
        ("network", {"gpu01", "gpu02"}),
        ("black-hole", {"gpu03", "gpu04"}),
    ]


def test_a_host_that_was_too_busy_for_large_packets_is_unknown() -> None:
    evidence = measured({way: {"bulk": None} for way in SICK})
    assert said(evidence) == [("black-hole", "unknown", ("gpu02",))]


def test_a_host_that_could_not_listen_is_skipped() -> None:
    made = cluster()
    assert made.network
    deaf = replace(made, network=replace(made.network, deaf={"gpu02": "no free port in 29400-29499"}))
    for name in ("black-hole", "loss", "latency"):
        results = [one for one in judge(deaf, select(only=[name])) if one.name == name]
        assert [(one.verdict, one.hosts) for one in results] == [
            ("skipped", ("gpu02",)),
            ("pass", ("gpu01", "gpu03")),
        ]


def test_the_host_whose_ways_lose_packets_is_the_one_named() -> None:
    (result,) = wrong(measured({way: {"resent": 3} for way in SICK}))
    assert (result.name, result.verdict, result.hosts) == ("loss", "warn", ("gpu02",))
    assert result.message == "12 of 240 TCP segments to and from gpu01, gpu03 had to be sent again"


def test_one_way_that_loses_packets_is_named_with_both_ends() -> None:
    (result,) = wrong(measured({("gpu01", "gpu03"): {"resent": 6}}))
    assert (result.name, set(result.hosts)) == ("loss", {"gpu01", "gpu03"})


def test_two_hosts_that_lose_packets_are_both_named_and_no_other() -> None:
    names = tuple(f"gpu0{number}" for number in range(1, 7))
    lossy = {(one, other): {"resent": 3} for one in names for other in names if {one, other} & {"gpu02", "gpu05"}}
    results = wrong(measured(lossy, names))
    assert sorted(host for one in results for host in one.hosts) == ["gpu02", "gpu05"]


def test_a_stray_segment_sent_again_is_no_loss() -> None:
    assert said(measured({("gpu01", "gpu02"): {"resent": 2}, ("gpu03", "gpu01"): {"resent": 1}})) == []
    assert said(measured({("gpu01", "gpu02"): {"resent": 9, "sent": 2000}})) == []


def test_what_a_busy_network_loses_everywhere_is_no_hosts_own_fault() -> None:
    names = tuple(f"gpu{number:02}" for number in range(1, 13))
    everywhere = {(one, other): {"resent": 1} for one in names for other in names if one != other}
    assert said(measured(everywhere, names)) == []
    sick = {way: {"resent": 10} for way in everywhere if "gpu03" in way}
    assert said(measured({**everywhere, **sick}, names)) == [("loss", "warn", ("gpu03",))]


def test_a_host_far_from_the_others_is_named() -> None:
    names = (*NAMES, "gpu04", "gpu05", "gpu06")
    for hosts in (NAMES, names):
        far = {(one, other): {"rtt_ms": 8.0} for one in hosts for other in hosts if "gpu02" in (one, other)}
        (result,) = wrong(measured(far, hosts))
        assert (result.name, result.verdict, result.hosts) == ("latency", "warn", ("gpu02",))
        assert result.message == "8.0 ms to the others and back, 0.10 ms is usual here"


def test_one_slow_way_is_named_with_both_ends() -> None:
    (result,) = wrong(measured({("gpu01", "gpu03"): {"rtt_ms": 5.0}}))
    assert (result.name, result.hosts) == ("latency", ("gpu01", "gpu03"))


def test_hosts_that_are_all_far_from_each_other_are_told() -> None:
    everywhere = {(one, other): {"rtt_ms": 30.0} for one in NAMES for other in NAMES}
    (result,) = wrong(measured(everywhere))
    assert (result.name, result.hosts) == ("latency", NAMES)


def test_noise_below_two_milliseconds_is_no_latency() -> None:
    assert said(measured({way: {"rtt_ms": 1.9} for way in SICK})) == []


def test_what_no_kernel_tells_is_unknown() -> None:
    everywhere = {(one, other): {"rtt_ms": None, "sent": 0} for one in NAMES for other in NAMES}
    assert said(measured(everywhere)) == [("loss", "unknown", NAMES), ("latency", "unknown", NAMES)]


def named(address: str) -> Evidence:
    healthy = HEALTH.of(seen("gpu02", *NAMES))
    assert healthy
    names = {**healthy.names, "gpu01": Lookup(addresses=("10.0.0.1", address))}
    return cluster(seen("gpu02", *NAMES, health={"names": names}))


def test_a_name_with_a_dead_address_beside_the_good_one_is_told_by_who_has_it_so() -> None:
    for address, why in (("fd00::9", "on none of its cards"), ("127.0.1.1", "loopback")):
        (result,) = wrong(named(address))
        assert (result.name, result.verdict, result.hosts) == ("name-addresses", "warn", ("gpu02",))
        assert result.message == f"names that also have a dead address there: gpu01 → {address} ({why})"


def test_a_names_second_address_is_judged_by_its_dial() -> None:
    both = seen("gpu01", *NAMES, addresses=(interface("10.0.0.1"), interface("fd00::1", prefix=64)))
    made = named("fd00::1")
    made = replace(made, hosts=(both, *made.hosts[1:]))
    assert said(made) == []
    assert made.network
    shut = replace(made.network, unreached={("gpu02", "fd00::1"): "no answer, a firewall drops it"})
    (result,) = wrong(replace(made, network=shut))
    assert (result.name, result.hosts) == ("name-addresses", ("gpu02",))
    assert "gpu01 → fd00::1 (no answer, a firewall drops it)" in result.message


def test_of_many_hosts_each_costs_only_the_names_that_it_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def loopback(one: Interface) -> bool:
        asked.append(one.address)
        return one.name == "lo"

    monkeypatch.setattr(Interface, "loopback", property(loopback))
    hosts = [seen(f"gpu{number:02}") for number in range(1, 41)]  # each knows its own name alone

    def cost(count: int) -> int:
        asked.clear()
        judge(replace(cluster(), hosts=tuple(hosts[:count])), select(only=["name-addresses"]))
        return len(asked)

    assert cost(40) <= 2 * cost(20)
