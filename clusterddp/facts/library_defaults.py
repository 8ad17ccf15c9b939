"""The network cards and endpoints that NCCL, gloo and torchrun would choose without any setting.

A run of clusterddp sets all of them; a job started by hand on the same hosts gets what is computed here. NCCL's order
(its socket.cc): the cards that NCCL_SOCKET_IFNAME names; else those called ``ib…``; else those in the network of
NCCL_COMM_ID; else all but docker, lo and virbr; else docker, lo, virbr in turn. It uses all cards it has found that
way, the first for the bootstrap. gloo takes the card that has the address of the host's own name.

Not covered: cards with nothing but an IPv6 link-local address, which NCCL takes too.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

from clusterddp.errors import HelperError
from clusterddp.facts.read_facts import read_answer
from clusterddp.remote.shared.probes.torchrun_records import Election

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from clusterddp.facts.host import Facts, Interface
    from clusterddp.remote.shared.probes.health_records import Lookup

NCCL, GLOO = "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"
_LAST = ("^docker,lo,virbr", "docker", "lo", "virbr")
_FAMILIES = {"AF_INET": 4, "AF_INET6": 6}


def fits(card: str, wanted: str, *, exact: bool = False) -> bool:
    """Whether a card matches NCCL_SOCKET_IFNAME (prefixes, ``=``, ``^``); with ``exact`` GLOO_SOCKET_IFNAME."""
    if exact:
        return card in wanted.split(",")
    if wanted.startswith("^"):
        return not fits(card, wanted[1:])
    if wanted.startswith("="):
        return card in wanted[1:].split(",")
    return card.startswith(tuple(prefix for prefix in wanted.split(",") if prefix))


def nccl_cards(facts: Facts) -> tuple[str, ...]:
    """The cards that NCCL would use, that of its bootstrap first; empty if it would find none."""
    family = _FAMILIES.get(facts.environment.get("NCCL_SOCKET_FAMILY", ""))
    usable = [one for one in facts.addresses if one.up and family in (None, one.family)]
    wanted = facts.environment.get(NCCL)
    if wanted:
        return _named(usable, wanted)
    return (
        _named(usable, "ib")
        or _cards_in_network_of(usable, facts.environment.get("NCCL_COMM_ID", ""))
        or next((found for pattern in _LAST if (found := _named(usable, pattern))), ())
    )


def gloo_cards(facts: Facts, own_name: Lookup | None) -> tuple[str, ...]:
    """The cards among which gloo would choose; empty if the host's own name is unknown there (gloo takes loopback)."""
    wanted = facts.environment.get(GLOO)
    if wanted:
        return _unique(one.name for one in facts.addresses if fits(one.name, wanted, exact=True))
    addresses = own_name.addresses if own_name else ()
    return _unique(one.name for one in facts.addresses if one.address in addresses)


def elected(host: str, data: Any) -> Mapping[str, bool]:
    """Which endpoints torchrun on a host would take for its own, from its ``election`` operation."""
    election = read_answer(Election, host, data)
    if election.error is not None:
        raise HelperError(host, election.error)
    return election.matches


def _named(addresses: list[Interface], pattern: str) -> tuple[str, ...]:
    return _unique(one.name for one in addresses if fits(one.name, pattern))


def _cards_in_network_of(addresses: list[Interface], endpoint: str) -> tuple[str, ...]:
    """The cards whose network contains an endpoint (``address:port``)."""
    try:
        address = ipaddress.ip_address(endpoint.rpartition(":")[0].strip("[]"))
    except ValueError:  # a host name, or empty
        return ()
    return _unique(one.name for one in addresses if one.family == address.version and address in one.network)


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
