"""Sends and receives multicast datagrams on one network segment, through one interface, which is chosen here too.

One fixed group and UDP port are used both ways, so a firewall needs one rule and no address. The hop limit is 1: no
router passes it on. Several ranks may share a machine.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import struct
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.discover.outcome import UDP_PORT
from clusterddp.errors import DiscoverError, UsageError
from clusterddp.remote.shared.names import interfaces

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUPS = {4: "239.255.29.40", 6: "ff12::2940"}  # site-local, for anybody's use; link-local and transient
MOST_BYTES = 2048
_BUFFER = 1 << 20  # bytes; a thousand answers may come at once
_MULTICAST_ALL = {4: 49, 6: 29}  # Linux's IP_MULTICAST_ALL: 0 limits a socket to groups it joined itself


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkSegment:
    """This machine's interface (such as ``eth0``) on the segment, its address there, and the family (4 or 6)."""

    interface: str
    address: str
    family: int


def choose_interface(wanted: str | None) -> NetworkSegment:
    """The interface by name or address; if none is wanted the only one, else the one that multicast is routed to.

    Raises ``UsageError`` if there is no such interface or it has no address; ``DiscoverError`` if this machine has
    none, or several of which none is the obvious one.
    """
    up = _interfaces()
    if wanted is not None:
        found = [one for one in up if wanted in {one.interface, one.address}]
        if not found:
            known = ", ".join(f"{one.interface} ({one.address})" for one in up) or "none"
            raise UsageError(f"--interface {wanted}: no such interface is up with an address", remedy=f"up are {known}")
        return found[0]
    outside = [one for one in up if one.interface != "lo"]
    if not outside:
        raise DiscoverError("no network interface is up with an address", remedy="look at `ip address`")
    if len({one.interface for one in outside}) == 1:
        return outside[0]
    routed = _routed_address()
    for one in outside:
        if one.address == routed:
            return one
    names = ", ".join(dict.fromkeys(one.interface for one in outside))
    raise DiscoverError(f"several network interfaces are up: {names}", remedy="choose one with --interface")


def _interfaces() -> list[NetworkSegment]:
    """Interfaces that are up, IPv4 before IPv6."""
    if sys.platform != "linux":
        raise DiscoverError("discover runs on Linux only", remedy="give MASTER_ADDR by hand")
    found = [one for one in interfaces.addresses() if one.up]
    up = [NetworkSegment(interface=one.interface, address=one.address, family=one.family) for one in found]
    return sorted(up, key=lambda one: one.family)


def _routed_address() -> str:
    """The address that the kernel would send multicast from; empty without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, contextlib.suppress(OSError):
        asking.connect((GROUPS[4], UDP_PORT))
        return str(asking.getsockname()[0])
    return ""


class Segment:
    """Open sockets for datagrams to and from all machines on a segment.

    ``trouble`` says why the last datagram could not be sent. Raises ``DiscoverError`` if another program has the port,
    or the interface cannot do multicast.
    """

    def __init__(self, where: NetworkSegment) -> None:
        self.where, self.trouble = where, ""
        self._group = (GROUPS[where.family], UDP_PORT)
        with contextlib.ExitStack() as stack:
            family = socket.AF_INET if where.family == 4 else socket.AF_INET6
            self._ears = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
            self._mouth = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
            try:
                self._open()
            except OSError as error:
                taken = error.errno == errno.EADDRINUSE  # then on every interface: the socket is bound to the group
                remedy = "end the program that has it: `ss -lunp` shows it" if taken else "choose another --interface"
                raise DiscoverError(
                    f"UDP port {UDP_PORT} on {where.interface} ({where.address}): {error.strerror or error}",
                    remedy=remedy,
                ) from None
            self._sockets = stack.pop_all()

    def _open(self) -> None:
        index = socket.if_nametoindex(self.where.interface)
        self._ears.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # other ids, other ranks on this machine
        self._ears.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        self._ears.setblocking(False)
        self._mouth.setblocking(False)
        if self.where.family == 4:
            join = struct.pack("@4s4si", socket.inet_aton(self._group[0]), socket.inet_aton(self.where.address), index)
            self._ears.setsockopt(socket.IPPROTO_IP, _MULTICAST_ALL[4], 0)
            self._ears.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, join)
            self._mouth.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, join)
            self._mouth.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
            self._mouth.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        else:
            join = struct.pack("@16sI", socket.inet_pton(socket.AF_INET6, self._group[0]), index)
            self._ears.setsockopt(socket.IPPROTO_IPV6, _MULTICAST_ALL[6], 0)
            self._ears.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, join)
            self._mouth.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
            self._mouth.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 1)
            self._mouth.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 1)
        scope = (0, index) if self.where.family == 6 else ()
        self._ears.bind((*self._group, *scope))
        self._mouth.bind((self.where.address, 0))

    def send(self, datagram: bytes) -> None:
        """Send to all on the segment; a failure counts as a lost datagram, and is recorded in ``trouble``."""
        try:
            self._mouth.sendto(datagram, self._group)
        except OSError as error:
            self.trouble = error.strerror or str(error)
        else:
            self.trouble = ""

    def receive(self, patience: float) -> Iterator[tuple[bytes, str]]:
        """Datagrams with their senders' addresses: those already there, else those within ``patience`` seconds."""
        select.select([self._ears], [], [], max(0.0, patience))
        for _ in range(256):  # then the caller must do its other work
            try:
                data, source = self._ears.recvfrom(MOST_BYTES)
            except BlockingIOError:
                return
            except OSError as error:  # the interface is down: it may come back
                self.trouble = error.strerror or str(error)
                return
            yield data, str(source[0])

    def close(self) -> None:
        """Leave the segment."""
        self._sockets.close()
