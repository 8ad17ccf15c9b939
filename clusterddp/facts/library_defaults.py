"""The network interfaces and endpoints that NCCL, gloo and torchrun would choose without clusterddp.

A run of clusterddp sets all of them; a job started by hand on the same hosts gets what is computed here. NCCL's order
(its socket.cc): the interfaces that NCCL_SOCKET_IFNAME names; else those called ``ib…``; else those in the network of
NCCL_COMM_ID; else all but docker, lo and virbr; else docker, lo, virbr in turn. It uses all interfaces it has found
that way, the first for the bootstrap. gloo takes the interface that has the address of the host's own name.

Not covered: interfaces with nothing but an IPv6 link-local address, which NCCL takes too.
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

NCCL_VARIABLE, GLOO_VARIABLE = "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"
# As values of NCCL_SOCKET_IFNAME, tried in turn if nothing else matches.
_LAST_PATTERNS = ("^docker,lo,virbr", "docker", "lo", "virbr")
_FAMILIES = {"AF_INET": 4, "AF_INET6": 6}


def matches_setting(interface: str, setting: str, *, exact: bool = False) -> bool:
    """Whether an interface's name matches a value of NCCL_SOCKET_IFNAME, or with ``exact`` of GLOO_SOCKET_IFNAME.

    NCCL's is a list of prefixes; of exact names after ``=``; of what to leave out after ``^``. gloo's is exact names.
    """
    if exact:
        return interface in setting.split(",")
    if setting.startswith("^"):
        return not matches_setting(interface, setting[1:])
    if setting.startswith("="):
        return interface in setting[1:].split(",")
    return interface.startswith(tuple(prefix for prefix in setting.split(",") if prefix))


def nccl_interfaces(facts: Facts) -> tuple[str, ...]:
    """The names of the interfaces that NCCL would use, that of its bootstrap first; empty if it would find none."""
    settings = {**facts.settings, **facts.environment}  # a variable goes before NCCL's configuration files
    family = _FAMILIES.get(settings.get("NCCL_SOCKET_FAMILY", ""))
    usable = [address for address in facts.addresses if address.up and family in (None, address.family)]
    setting = settings.get(NCCL_VARIABLE)
    if setting:
        return _matching(usable, setting)
    return (
        _matching(usable, "ib")
        or _in_network_of(usable, settings.get("NCCL_COMM_ID", ""))
        or next((names for pattern in _LAST_PATTERNS if (names := _matching(usable, pattern))), ())
    )


def gloo_interfaces(facts: Facts, own_name: Lookup | None) -> tuple[str, ...]:
    """The names of the interfaces among which gloo would choose.

    ``own_name`` is what the host's own name resolves to there. Empty if that is none of its addresses, or unknown: gloo
    takes the loopback then.
    """
    setting = facts.environment.get(GLOO_VARIABLE)
    if setting:
        return _unique(one.name for one in facts.addresses if matches_setting(one.name, setting, exact=True))
    addresses = own_name.addresses if own_name else ()
    return _unique(one.name for one in facts.addresses if one.address in addresses)


def own_endpoints(host: str, data: Any) -> Mapping[str, bool]:
    """For each endpoint whether torchrun on a host would take it for this host, from its ``election`` operation."""
    election = read_answer(Election, host, data)
    if election.error is not None:
        raise HelperError(host, election.error)
    return election.matches


def _matching(addresses: list[Interface], pattern: str) -> tuple[str, ...]:
    return _unique(one.name for one in addresses if matches_setting(one.name, pattern))


def _in_network_of(addresses: list[Interface], endpoint: str) -> tuple[str, ...]:
    """The names of the interfaces whose network contains an endpoint (``address:port``)."""
    try:
        address = ipaddress.ip_address(endpoint.rpartition(":")[0].strip("[]"))
    except ValueError:  # a host name, or empty
        return ()
    return _unique(one.name for one in addresses if one.family == address.version and address in one.network)


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
