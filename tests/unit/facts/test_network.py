"""On which addresses the nodes meet: candidates, what is dialled, which is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import PlanError
from clusterddp.facts.network import Candidate, DialFailure, best_candidate, candidates, dials, loopback
from tests.unit.facts_made import Node, interface, node

if TYPE_CHECKING:
    from clusterddp.facts.host import Interface

LO = interface("127.0.0.1", "lo", prefix=8, speed=None)


def host(name: str, *addresses: Interface, ssh: str | None = None, **more: Any) -> Node:
    ssh_address = ssh or (addresses[0].address if addresses else None)
    return node(name, addresses=(LO, *addresses), ssh_address=ssh_address, **more)


def pair(*networks: tuple[str, str, int | None], **more: Any) -> list[Node]:
    """Two hosts with an address in each network: (address's first part, interface, speed)."""
    return [
        host(name, *[interface(f"{first}.{last}", card, speed=speed) for first, card, speed in networks], **more)
        for last, name in ((1, "a"), (2, "b"))
    ]


def chosen(nodes: list[Node], *failures: DialFailure) -> dict[str, tuple[str, str]]:
    best, broken = best_candidate(candidates(nodes), failures)
    if broken:
        raise PlanError("; ".join(map(str, broken)))
    return {name: (one.name, one.address) for name, one in best.where.items()}


def failure(source: str, target: str, address: str, word: str = "timeout", *, ranged: bool = True) -> DialFailure:
    return DialFailure(source=source, target=target, address=address, port=29400, ranged=ranged, word=word)


def test_the_only_common_network_is_chosen() -> None:
    assert chosen(pair(("10.0.0", "eth0", 1000))) == {"a": ("eth0", "10.0.0.1"), "b": ("eth0", "10.0.0.2")}


def test_the_faster_network_is_chosen() -> None:
    nodes = pair(("10.0.0", "eth0", 1000), ("10.1.0", "ib0", 200_000))
    assert chosen(nodes)["a"] == ("ib0", "10.1.0.1")


def test_equal_speeds_go_to_the_network_that_ssh_uses() -> None:
    nodes = [
        host(name, interface(f"10.1.0.{last}", "eth1"), interface(f"10.0.0.{last}", "eth0"), ssh=f"10.0.0.{last}")
        for last, name in ((1, "a"), (2, "b"))
    ]
    assert chosen(nodes)["b"] == ("eth0", "10.0.0.2")


def test_a_network_is_as_fast_as_its_slowest_link() -> None:
    fast, slow = interface("10.1.0.1", "eth1", speed=100_000), interface("10.1.0.2", "eth1", speed=100)
    nodes = [host("a", interface("10.0.0.1"), fast), host("b", interface("10.0.0.2"), slow)]
    assert chosen(nodes)["a"] == ("eth0", "10.0.0.1")


def test_a_card_that_tells_no_speed_beats_a_slow_one() -> None:
    nodes = pair(("10.0.0", "eth0", 1000), ("10.1.0", "ens5", None))
    assert chosen(nodes)["a"] == ("ens5", "10.1.0.1")


def test_a_network_where_a_dial_fails_is_passed_over() -> None:
    nodes = pair(("10.0.0", "eth0", 1000), ("10.1.0", "ib0", 200_000))
    assert chosen(nodes, failure("a", "b", "10.1.0.2"))["b"] == ("eth0", "10.0.0.2")


def test_when_nothing_works_the_pairs_are_named_with_the_reason() -> None:
    nodes = pair(("10.0.0", "eth0", 1000))
    failures = [failure("a", "b", "10.0.0.2"), failure("b", "a", "10.0.0.1", "refused", ranged=False)]
    with pytest.raises(PlanError) as caught:
        chosen(nodes, *failures)
    message = str(caught.value)
    assert "a → b at 10.0.0.2 port 29400 (clusterddp_ports): no answer, a firewall drops it" in message
    assert "b → a at 10.0.0.1 port 29400 (ports outside clusterddp_ports): refused" in message
    assert "\n" not in message


def test_hosts_in_routed_networks_meet_on_the_addresses_of_ssh() -> None:
    nodes = [host("a", interface("10.0.1.5", prefix=32)), host("b", interface("10.0.2.5", prefix=32))]
    assert chosen(nodes) == {"a": ("eth0", "10.0.1.5"), "b": ("eth0", "10.0.2.5")}


def test_routed_cards_of_one_name_are_a_candidate() -> None:
    nodes = [
        host("a", interface("10.0.0.1"), interface("10.1.1.1", "ib0", speed=200_000)),
        host("b", interface("10.0.0.2"), interface("10.1.2.1", "ib0", speed=200_000)),
    ]
    assert chosen(nodes)["b"] == ("ib0", "10.1.2.1")


def test_ipv6_serves_where_it_is_all_there_is() -> None:
    nodes = [host("a", interface("fd00::1", prefix=64)), host("b", interface("fd00::2", prefix=64))]
    assert chosen(nodes)["a"] == ("eth0", "fd00::1")


def test_ipv4_stands_before_ipv6_on_the_same_card() -> None:
    nodes = [
        host(name, interface(f"fd00::{last}", prefix=64), interface(f"10.0.0.{last}"), ssh="192.0.2.7")
        for last, name in ((1, "a"), (2, "b"))
    ]
    assert chosen(nodes)["a"] == ("eth0", "10.0.0.1")


def test_bridges_of_containers_are_no_candidates() -> None:
    same = interface("172.17.0.1", "docker0", prefix=16, speed=10_000)
    nodes = [host("a", interface("10.0.0.1"), same), host("b", interface("10.0.0.2"), same)]
    assert len(candidates(nodes)) == 1


def test_the_same_address_on_two_machines_is_no_way_between_them() -> None:
    same = interface("192.168.100.1", "lan1")
    nodes = [host("a", interface("10.0.0.1"), same), host("b", interface("10.0.0.2"), same)]
    assert [one.where["a"].address for one in candidates(nodes)] == ["10.0.0.1"]


def test_an_interface_that_is_down_is_no_candidate() -> None:
    nodes = [
        host(name, interface(f"10.0.0.{n}"), interface(f"10.1.0.{n}", "ib0", speed=200_000, up=False))
        for n, name in ((1, "a"), (2, "b"))
    ]
    assert len(candidates(nodes)) == 1


def test_an_address_of_the_inventory_is_used() -> None:
    nodes = [
        host(
            name,
            interface(f"10.0.0.{n}"),
            interface(f"10.1.0.{n}", "ib0", speed=9),
            entry={"data_address": f"10.1.0.{n}"},
        )
        for n, name in ((1, "a"), (2, "b"))
    ]
    assert chosen(nodes) == {"a": ("ib0", "10.1.0.1"), "b": ("ib0", "10.1.0.2")}


def test_an_interface_of_one_host_draws_the_others_along() -> None:
    nodes = [
        host("a", interface("10.0.0.1"), interface("10.1.0.1", "ib0", speed=9), entry={"interface": "ib0"}),
        host("b", interface("10.0.0.2"), interface("10.1.0.2", "ib7", speed=9)),
    ]
    found = candidates(nodes)
    assert {one.where["a"].address for one in found} == {"10.1.0.1"}
    assert "10.1.0.2" in {one.where["b"].address for one in found}


def test_an_address_behind_nat_is_refused_with_the_reason() -> None:
    nodes = [host("a", interface("10.0.0.1"), entry={"data_address": "203.0.113.9"}), host("b", interface("10.0.0.2"))]
    with pytest.raises(PlanError, match=r"a: clusterddp_address 203.0.113.9 is on none of its interfaces .*NAT"):
        candidates(nodes)


def test_an_address_that_is_a_name_is_refused() -> None:
    with pytest.raises(PlanError, match="is no IP address"):
        candidates([host("a", interface("10.0.0.1"), entry={"data_address": "gpu01.local"})])


def test_an_interface_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(PlanError, match="clusterddp_interface ib0 has no address; interfaces with one: lo, eth0"):
        candidates([host("a", interface("10.0.0.1"), entry={"interface": "ib0"})])


def test_hosts_without_common_network_are_listed_with_their_addresses() -> None:
    nodes = [host("a", interface("10.0.0.1")), host("b", interface("fd00::2", prefix=64))]
    with pytest.raises(PlanError, match=r"no network holds an address of every host: a has 10\.0\.0\.1/24 on eth0"):
        candidates(nodes)


def test_nodes_on_one_machine_use_the_loopback() -> None:
    nodes = [host(name, interface("10.0.0.1"), boot="same") for name in ("a", "b")]
    found = loopback(nodes)
    assert found is not None
    assert (found["b"].name, found["b"].address) == ("lo", "127.0.0.1")


def test_nodes_on_two_machines_do_not() -> None:
    assert loopback(pair(("10.0.0", "eth0", 1000))) is None


def test_machines_that_hide_their_boot_are_told_apart_by_address() -> None:
    assert loopback(pair(("10.0.0", "eth0", 1000), boot="unknown:0:0")) is None


def test_a_node_alone_that_others_may_join_stays_off_the_loopback() -> None:
    reachable, lonely = host("a", interface("10.0.0.1")), host("a")
    for nodes, growing in (([reachable], False), ([lonely], True)):
        found = loopback(nodes, growing=growing)
        assert found is not None
        assert found["a"].address == "127.0.0.1"
    assert loopback([reachable], growing=True) is None


def test_what_the_inventory_names_stands_above_the_loopback() -> None:
    assert loopback([host("a", interface("10.0.0.1"), entry={"interface": "eth0"})]) is None


def test_every_address_is_dialled_once_from_every_other_host_on_both_ports() -> None:
    nodes = pair(("10.0.0", "eth0", 1000), ("10.1.0", "ib0", 200_000))
    found = candidates(nodes)
    ports, nonces = {"a": (1, 2), "b": (3, 4)}, {"a": "x", "b": "y"}
    assert dials([(one, {"a": ("b",), "b": ("a",)}) for one in found], ports, nonces, "a") == [
        ("b", "10.0.0.2", 3, "y"),
        ("b", "10.0.0.2", 4, "y"),
        ("b", "10.1.0.2", 3, "y"),
        ("b", "10.1.0.2", 4, "y"),
    ]


def test_a_candidates_speed_is_known_to_be_a_guess_where_no_card_tells() -> None:
    where = {"a": interface("10.0.0.1", speed=None)}
    assert Candidate(label="x", where=where, ssh=True).speed == 10_000
