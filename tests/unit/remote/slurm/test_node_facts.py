"""What the nodes of a job make of each other's facts."""

from __future__ import annotations

import pytest

from clusterddp.remote.shared.names.interfaces import InterfaceAddress
from clusterddp.remote.shared.schema.fields import DamagedError
from clusterddp.remote.shared.schema.record import read_record, to_fields
from clusterddp.remote.slurm.node_facts import Address, NodeFacts, choose_addresses, usable_addresses, worker_count
from clusterddp.remote.system.bootstrap import Refused


def node(host: str, *addresses: Address) -> NodeFacts:
    return NodeFacts(
        host=host,
        python="/usr/bin/python3",
        torch="2.13.0",
        python_version="3.11.2",
        nccl=None,
        nproc=1,
        threads=4,
        gpus=(),
        addresses=addresses,
    )


def ethernet(last: int) -> Address:
    return Address(f"10.0.0.{last}", "eth0", "10.0.0.0/24", 10_000)


def infiniband(last: int) -> Address:
    return Address(f"10.1.0.{last}", "ib0", "10.1.0.0/24", 200_000)


def test_the_fastest_network_that_holds_all_nodes_is_taken() -> None:
    both = [node(name, ethernet(place), infiniband(place)) for place, name in enumerate("ab", 1)]
    assert [one.address for one in choose_addresses(both)] == ["10.1.0.1", "10.1.0.2"]
    one_without = [both[0], node("c", ethernet(3))]
    assert [one.address for one in choose_addresses(one_without)] == ["10.0.0.1", "10.0.0.3"]


def test_a_network_in_which_two_nodes_have_one_address_connects_nothing() -> None:
    bridge = Address("172.17.0.1", "docker0", "172.17.0.0/16", 100_000)
    nodes = [node(name, bridge, ethernet(place)) for place, name in enumerate("ab", 1)]
    assert [one.interface for one in choose_addresses(nodes)] == ["eth0", "eth0"]
    with pytest.raises(Refused, match="no network holds all nodes"):
        choose_addresses([node("a", bridge), node("b", bridge)])


def interface(name: str, address: str, speed: int | None = None) -> InterfaceAddress:
    return InterfaceAddress(name, 1500, True, speed, address, 4, 16)


def test_bridges_and_tunnels_count_only_if_they_are_named_or_all_there_is() -> None:
    bridge, card = interface("docker0", "172.17.0.1", 10_000), interface("eth0", "10.0.0.1")
    assert [(one.interface, one.speed) for one in usable_addresses([bridge, card], None)] == [("eth0", 10_000)]
    assert [one.interface for one in usable_addresses([bridge, card], "docker0")] == ["docker0"]
    assert [one.interface for one in usable_addresses([interface("wg0", "10.9.0.1")], None)] == ["wg0"]


def test_among_equals_it_is_the_one_that_slurm_itself_uses() -> None:
    def cards(last: int) -> tuple[Address, Address]:
        return ethernet(last), Address(f"10.9.0.{last}", "eth1", "10.9.0.0/24", 10_000)

    nodes = [node(name, *cards(place)) for place, name in enumerate("ab", 1)]
    assert [one.interface for one in choose_addresses(nodes, "10.0.0.7")] == ["eth0", "eth0"]
    assert [one.interface for one in choose_addresses(nodes, "10.9.0.7")] == ["eth1", "eth1"]


@pytest.mark.parametrize("named", [None, "ens4"])
@pytest.mark.parametrize("addresses", [("10.128.0.2/32", "10.128.0.3/32"), ("10.1.1.2/24", "10.1.2.2/24")])
def test_where_no_network_holds_all_nodes_it_is_the_interface_that_all_have(
    addresses: tuple[str, str], named: str | None
) -> None:
    """Of Google Cloud's nodes each has a network of its own; elsewhere each rack has."""

    def routed(host: str, address: str) -> NodeFacts:
        plain, _, prefix = address.partition("/")
        card = InterfaceAddress("ens4", 1460, True, 32_000, plain, 4, int(prefix))
        own = InterfaceAddress("ens5", 1460, True, 64_000, "192.168.0.1", 4, 24)  # a wire to a machine beside it
        return node(host, *usable_addresses([own, card], named))

    chosen = choose_addresses([routed(host, address) for host, address in zip("ab", addresses, strict=True)])
    assert [(one.interface, one.address) for one in chosen] == [("ens4", one.partition("/")[0]) for one in addresses]


def test_one_interface_s_addresses_of_both_versions_are_not_mixed() -> None:
    six, four = Address("fd00::1", "eth0", "fd00::1/128", 10), Address("10.0.0.2", "eth0", "10.0.0.2/32", 10)
    nodes = [node("a", six, Address("10.0.0.1", "eth0", "10.0.0.1/32", 10)), node("b", four)]
    assert [one.address for one in choose_addresses(nodes)] == ["10.0.0.1", "10.0.0.2"]
    with pytest.raises(Refused, match="no network holds all nodes"):
        choose_addresses([node("a", six), node("b", four)])


def test_nodes_without_a_common_network_are_named() -> None:
    with pytest.raises(Refused, match=r"no network holds all nodes \(a: 10.0.0.0/24; b: 10.1.0.0/24\)"):
        choose_addresses([node("a", ethernet(1)), node("b", infiniband(1))])


def test_one_node_alone_needs_no_network() -> None:
    assert choose_addresses([node("a")])[0].address == "127.0.0.1"


def test_gpus_that_slurm_gives_and_torch_does_not_see_are_an_error() -> None:
    assert worker_count(0, {}) == 1
    assert worker_count(4, {"SLURM_GPUS_ON_NODE": "4"}) == 4
    with pytest.raises(Refused, match="Slurm gives it 2 GPUs and torch sees none"):
        worker_count(0, {"SLURM_GPUS_ON_NODE": "2"})


def test_facts_are_read_as_they_were_written_and_checked() -> None:
    known = node("a", ethernet(1))._replace(key="ab", attempts=3)
    assert read_record(NodeFacts, to_fields(known), "facts") == known
    with pytest.raises(DamagedError, match=r"facts\.host"):
        read_record(NodeFacts, {**to_fields(known), "host": "../a"}, "facts")
