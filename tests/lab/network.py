"""The lab's wires: one namespace that is the switch, a namespace a host, a cable to the operator.

All names begin with `cddp<lab number>`, so that a lab's remains are found without its object.
The bridges live in a namespace of their own: no firewall of the operator's machine can meddle,
and one deletion removes them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from tests.lab.system import LabError, ProcessId, command, ip_batch, kill_and_wait

FRONT, SECOND, INNER = "front", "second", "inner"
OCTETS = {FRONT: 77, SECOND: 78, INNER: 79}
OPERATOR = 254
NEIGHBOURS = Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3")


@dataclass(frozen=True, kw_only=True, slots=True)
class Nic:
    """A network card of a lab host and the cable to the switch.

    Attributes:
        name: Its name on the host (`eth0`).
        port: The cable's other end, in the switch.
        bridge: The network: `front` (the operator is on it), `second` or `inner`.
        address: IPv4 address, in a /24.
        mac: Hardware address, the same after every boot.
    """

    name: str
    port: str
    bridge: str
    address: str
    mac: str


def nic(lab: int, host: str, number: int, bridge: str, position: int) -> Nic:
    """Card `number` of a host that is the `position`-th on a bridge."""
    octet = OCTETS[bridge]
    return Nic(
        name=f"eth{number}",
        port=host if number == 0 else f"{host}-{number}",
        bridge=bridge,
        address=f"10.{octet}.{lab}.{position}",
        mac=f"02:00:{octet:02x}:{lab:02x}:00:{position:02x}",
    )


def prefix(lab: int) -> str:
    return f"cddp{lab}"


def switch(lab: int) -> str:
    return f"{prefix(lab)}-switch"


def namespace(lab: int, host: str) -> str:
    return f"{prefix(lab)}-{host}"


def _room_for_neighbours() -> None:
    """All namespaces share the kernel's table of neighbours: 32 hosts that dial each other overflow its 1024."""
    with contextlib.suppress(OSError):  # a kernel that keeps it from us: fewer hosts then
        if int(NEIGHBOURS.read_text()) < 1 << 14:
            NEIGHBOURS.write_text(str(1 << 14))


def build_switch(lab: int) -> None:
    """Make the bridges and the operator's cable to the front one."""
    _room_for_neighbours()
    cable = prefix(lab)
    command("ip", "netns", "add", switch(lab))
    lines = [f"link add {bridge} up type bridge" for bridge in OCTETS]
    ip_batch(switch(lab), "link set lo up", *lines)
    ip_batch(
        None,
        f"link add {cable} type veth peer name operator netns {switch(lab)}",
        f"addr add 10.{OCTETS[FRONT]}.{lab}.{OPERATOR}/24 dev {cable}",
        f"link set {cable} up",
        # The operator has no way to the other two networks, not even by a default route.
        f"route replace unreachable 10.{OCTETS[SECOND]}.{lab}.0/24",
        f"route replace unreachable 10.{OCTETS[INNER]}.{lab}.0/24",
    )
    ip_batch(switch(lab), f"link set operator master {FRONT} up")


def plug_in(lab: int, host: str, nics: tuple[Nic, ...]) -> None:
    """Make a host's namespace and its cables."""
    place = namespace(lab, host)
    command("ip", "netns", "add", place)
    cables: list[str] = []
    inside = ["link set lo up"]
    for card in nics:
        peer = f"peer name {card.name} address {card.mac} netns {place}"
        cables += [f"link add {card.port} type veth {peer}", f"link set {card.port} master {card.bridge} up"]
        inside += [f"addr add {card.address}/24 dev {card.name}", f"link set {card.name} up"]
    ip_batch(switch(lab), *cables)
    ip_batch(place, *inside)
    front = [card for card in nics if card.bridge == FRONT]
    if front:
        # As behind a router: the operator never learns that a hardware address has gone, so a
        # dead host is silence and not "no route to host" after three seconds.
        ip_batch(None, *(f"neigh replace {c.address} lladdr {c.mac} dev {prefix(lab)} nud permanent" for c in front))


def unplug(lab: int, host: str, nics: tuple[Nic, ...]) -> None:
    """Take a host's namespace and cables away; what is there no more is no error."""
    for card in nics:
        command("ip", "-n", switch(lab), "link", "del", card.port, check=False)
    command("ip", "netns", "del", namespace(lab, host), check=False)


def set_mtu(lab: int, cards: tuple[Nic, ...], mtu: int) -> None:
    """The MTU of both ends of these cables, and of the operator's."""
    cables = [card.port for card in cards if card.bridge == FRONT]
    ip_batch(switch(lab), *(f"link set {port} mtu {mtu}" for port in ["operator", *cables]))
    ip_batch(None, f"link set {prefix(lab)} mtu {mtu}")
    for port in cables:
        ip_batch(namespace(lab, port), f"link set eth0 mtu {mtu}")


def set_link(lab: int, card: Nic, state: str) -> None:
    """Pull a cable out (`down`) or put it in (`up`)."""
    command("ip", "-n", switch(lab), "link", "set", card.port, state)


def processes(place: str) -> list[ProcessId]:
    """The processes that live in a network namespace."""
    pids = command("ip", "netns", "pids", place, check=False).split()
    return [process for pid in pids if (process := ProcessId.of(int(pid)))]


def remains(lab: int) -> list[str]:
    """The namespaces of a lab that are still there."""
    return sorted(path.name for path in Path("/run/netns").glob(f"{prefix(lab)}-*"))


def remove_all(lab: int) -> None:
    """Kill all that lives in a lab's namespaces and remove every namespace, cable and route."""
    # The operator's cable first, so that the dying cannot say goodbye.
    command("ip", "link", "del", prefix(lab), check=False)
    places = remains(lab)
    kill_and_wait([process for place in places for process in processes(place)])
    for place in places:
        with contextlib.suppress(LabError):
            command("ip", "netns", "del", place)
    for bridge in (SECOND, INNER):
        command("ip", "route", "del", "unreachable", f"10.{OCTETS[bridge]}.{lab}.0/24", check=False)
