"""Chooses the network on which the nodes of a run connect to each other.

Computed without I/O: which networks are candidates, which connections must be tried to prove them, and which one is
chosen after the trial. A candidate gives every node one address. Candidates are: each network in which all nodes have
an address; the addresses that the operator's connections came to; the addresses of an interface that has the same name
everywhere.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.errors import PlanError
from clusterddp.remote.shared.names.interfaces import UNKNOWN_SPEED, is_virtual
from clusterddp.remote.shared.probes.network_records import (
    BLACK_HOLE,
    NO_DATA,
    NO_ROUTE,
    REFUSED,
    TIMEOUT,
    WRONG_NONCE,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterddp.facts.dial_schedule import Schedule
    from clusterddp.facts.host import Addresses, Facts, Interface
    from clusterddp.inventory import HostEntry

    HostAddresses = Facts | Addresses
    Nodes = Sequence[tuple[HostEntry, Facts]] | Sequence[tuple[HostEntry, Addresses]]

MAX_CANDIDATES = 16  # networks tried
LOST = "lost"  # no answer, between hosts whose other connections lose packets
# Not answered, and the listener's host had accepted the connection; had no room for it in the listener's queue; had no
# room, or its caller's host had none, in a table of the kernel.
SLOW, QUEUE_FULL, TABLE_FULL = "slow", "queue full", "table full"
_MEANINGS = {
    TIMEOUT: "no answer, a firewall drops it",
    LOST: "no answer, and other connections between them lose packets",
    REFUSED: "refused, a firewall rejects it",
    NO_ROUTE: "no route, or a firewall rejects it",
    WRONG_NONCE: "another machine or program answers there",
    SLOW: "it took the connection, and its answer came too late: host or network are too busy",
    QUEUE_FULL: "no answer, and its listener's queue overflowed",
    TABLE_FULL: "no answer, and a table of the kernel has no room for it",
    NO_DATA: "it connects, but nothing comes after: packets are lost, or another program has the port",
    BLACK_HOLE: "it connects, but large packets vanish",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A network that gives every node one address."""

    label: str
    where: Mapping[str, Interface]  # each host's interface on it, by the host's name
    ssh: bool  # whether these are the addresses of the operator's SSH connections

    @property
    def speed(self) -> int:
        """The speed of its slowest interface in Mbit/s; UNKNOWN_SPEED for one that does not report it."""
        return min(UNKNOWN_SPEED if one.speed_mbit is None else one.speed_mbit for one in self.where.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class DialFailure:
    """A failed TCP connection between two hosts."""

    source: str
    target: str
    address: str
    port: int
    ranged: bool  # the port belongs to clusterddp_ports; else the kernel chose it
    word: str

    @property
    def meaning(self) -> str:
        """The error as shown to the user."""
        return _MEANINGS.get(self.word, self.word)

    def __str__(self) -> str:
        kind = "clusterddp_ports" if self.ranged else "ports outside clusterddp_ports"
        return f"{self.source} → {self.target} at {self.address} port {self.port} ({kind}): {self.meaning}"


def loopback(nodes: Nodes, *, growing: bool = False) -> dict[str, Interface] | None:
    """The loopback interface of each node, if all are on one machine and the inventory names no other; else None.

    With ``growing`` (more hosts may join) also None for a single node that has an address at which others can join.
    """
    if not nodes or any(entry.data_address or entry.interface for entry, _ in nodes):
        return None
    if growing and len(nodes) == 1 and _usable_addresses(*nodes[0]):
        return None
    first = nodes[0][1]
    if not all(_same_machine(first, facts) for _, facts in nodes):
        return None
    by_name = {entry.name: _loopback_of(facts) for entry, facts in nodes}
    return {name: one for name, one in by_name.items() if one} if all(by_name.values()) else None


def candidates(nodes: Nodes) -> list[Candidate]:
    """The candidate networks to try, unordered; raises PlanError."""
    allowed = {entry.name: _usable_addresses(entry, facts) for entry, facts in nodes}
    found: dict[tuple[str, ...], Candidate] = {}
    for label, where in _by_common_tag(nodes, allowed).items():
        addresses = tuple(one.address for one in where.values())
        if len(where) == len(nodes) and addresses not in found and not _addresses_clash(nodes, where):
            found[addresses] = Candidate(label=label, where=where, ssh=_are_ssh_addresses(nodes, where))
    if not found:
        listing = "; ".join(f"{name} has {_list_addresses(own)}" for name, own in list(allowed.items())[:4])
        raise PlanError(
            f"no network holds an address of every host: {listing}",
            remedy="set clusterddp_address or clusterddp_interface on each",
        )
    return list(found.values())[:MAX_CANDIDATES]


def dials(
    tried: Sequence[tuple[Candidate, Schedule]],
    ports: Mapping[str, tuple[int, int]],
    nonces: Mapping[str, str],
    source: str,
) -> list[tuple[str, str, int, str]]:
    """The connections that one node must try for all candidates: ``(target, address, port, nonce)``, each once."""
    unique = {
        (target, candidate.where[target].address, port, nonces[target]): None
        for candidate, schedule in tried
        for target in schedule[source]
        for port in ports.get(target, ())  # none for a target that could not listen
    }
    return list(unique)


def best_candidate(chosen: Sequence[Candidate], failures: Iterable[DialFailure]) -> tuple[Candidate, list[DialFailure]]:
    """The network with the fewest failed connections (of equal ones the fastest), and the failures on it."""
    failures = list(failures)
    ranked = sorted(chosen, key=lambda one: (-one.speed, not one.ssh, _is_v6(one)))
    failures_on = {id(one): [failure for failure in failures if _concerns(failure, one)] for one in ranked}
    best = min(ranked, key=lambda one: len(failures_on[id(one)]))
    return best, failures_on[id(best)]


def _same_machine(one: HostAddresses, other: HostAddresses) -> bool:
    # The addresses are compared too: where /proc is hidden, boot ids look alike.
    return one.boot == other.boot and {a.address for a in one.addresses} == {a.address for a in other.addresses}


def _loopback_of(facts: HostAddresses) -> Interface | None:
    return next((one for one in facts.addresses if one.address == "127.0.0.1"), None)


def _usable_addresses(entry: HostEntry, facts: HostAddresses) -> list[Interface]:
    """The addresses a node may use: those that the inventory names, else all that could reach another machine."""
    if entry.data_address:
        return [_inventory_address(entry, facts)]
    if entry.interface:
        with_name = [one for one in facts.addresses if one.name == entry.interface]
        if not with_name:
            names = ", ".join(dict.fromkeys(one.name for one in facts.addresses)) or "none"
            raise PlanError(
                f"{entry.name}: clusterddp_interface {entry.interface} has no address; interfaces with one: {names}",
                remedy="correct clusterddp_interface",
            )
        return with_name
    return [
        one
        for one in facts.addresses
        if _reaches_others(one) or (one.address == facts.ssh_address and not one.loopback)
    ]


def _inventory_address(entry: HostEntry, facts: HostAddresses) -> Interface:
    """The interface of the host that has the inventory's ``clusterddp_address``."""
    try:
        address = str(ipaddress.ip_address(entry.data_address or ""))
    except ValueError:
        raise PlanError(
            f"{entry.name}: clusterddp_address {entry.data_address} is no IP address",
            remedy="give it in digits, names differ from host to host",
        ) from None
    for one in facts.addresses:
        if str(ipaddress.ip_address(one.address)) == address:
            return one
    listing = _list_addresses(facts.addresses)
    raise PlanError(
        f"{entry.name}: clusterddp_address {address} is on none of its interfaces ({listing}); "
        "workers bind it, so an address translated by NAT cannot serve",
        remedy="give an address of the host itself",
    )


def _reaches_others(interface: Interface) -> bool:
    """Whether other machines may reach this address."""
    return interface.up and not interface.loopback and not interface.link_local and not is_virtual(interface.name)


def _by_common_tag(nodes: Nodes, allowed: Mapping[str, list[Interface]]) -> dict[str, dict[str, Interface]]:
    """For each tag (a network, an interface's name, use by SSH) the best address that each node has with it."""
    tags: dict[str, dict[str, Interface]] = {}
    for entry, facts in nodes:
        named = bool(entry.data_address or entry.interface)
        best_first = sorted(allowed[entry.name], key=lambda one: _rank(one, facts.ssh_address))
        for one in best_first:
            tags_of_address = [str(one.network), f"interface {one.name}, IPv{one.family}"]
            if named or one.address == facts.ssh_address:
                tags_of_address.append(f"the addresses SSH uses, IPv{one.family}")
            for tag in tags_of_address:
                tags.setdefault(tag, {}).setdefault(entry.name, one)
    return tags


def _rank(interface: Interface, ssh_address: str | None) -> tuple[bool, int]:
    """A sort key: the address that SSH uses first, then the fastest."""
    return interface.address != ssh_address, -(interface.speed_mbit or UNKNOWN_SPEED)


def _addresses_clash(nodes: Nodes, where: Mapping[str, Interface]) -> bool:
    """Whether two machines have the same address, as with a container bridge: then it does not connect them."""
    holders: dict[str, str] = {}
    return any(holders.setdefault(where[entry.name].address, facts.boot) != facts.boot for entry, facts in nodes)


def _are_ssh_addresses(nodes: Nodes, where: Mapping[str, Interface]) -> bool:
    return all(facts.ssh_address in (None, where[entry.name].address) for entry, facts in nodes)


def _is_v6(candidate: Candidate) -> bool:
    return any(one.family == 6 for one in candidate.where.values())


def _concerns(failure: DialFailure, candidate: Candidate) -> bool:
    """Whether the connection was to an address of this network."""
    return candidate.where[failure.target].address == failure.address


def _list_addresses(addresses: Sequence[Interface]) -> str:
    """The first addresses, for an error."""
    return ", ".join(f"{one.address}/{one.prefix} on {one.name}" for one in addresses[:6]) or "none"
