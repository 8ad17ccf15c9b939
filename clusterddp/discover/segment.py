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
MAX_BYTES = 2048  # of a datagram received
_BUFFER = 1 << 20  # bytes; a thousand answers may come at once
_MULTICAST_ALL = {4: 49, 6: 29}  # Linux's IP_MULTICAST_ALL: 0 limits a socket to groups it joined itself


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkSegment:
    """This machine's interface (such as ``eth0``) on the segment, its address there, and the family (4 or 6)."""

    interface: str
    address: str
    family: int


def choose_interface(name_or_address: str | None) -> NetworkSegment:
    """Return the interface by name or address; by default the only one, else the one that multicast is routed to.

    Raises ``UsageError`` if there is no such interface or it has no address; ``DiscoverError`` if this machine has
    none, or several of which none is the obvious one.
    """
    segments = _interfaces()
    if name_or_address is not None:
        matching = [segment for segment in segments if name_or_address in {segment.interface, segment.address}]
        if not matching:
            known = ", ".join(f"{segment.interface} ({segment.address})" for segment in segments) or "none"
            raise UsageError(
                f"--interface {name_or_address}: no such interface is up with an address", remedy=f"up are {known}"
            )
        return matching[0]
    external = [segment for segment in segments if segment.interface != "lo"]
    if not external:
        raise DiscoverError("no network interface is up with an address", remedy="look at `ip address`")
    if len({segment.interface for segment in external}) == 1:
        return external[0]
    routed = _routed_address()
    for segment in external:
        if segment.address == routed:
            return segment
    names = ", ".join(dict.fromkeys(segment.interface for segment in external))
    raise DiscoverError(f"several network interfaces are up: {names}", remedy="choose one with --interface")


def _interfaces() -> list[NetworkSegment]:
    """Return the interfaces that are up, IPv4 before IPv6."""
    if sys.platform != "linux":
        raise DiscoverError("discover runs on Linux only", remedy="give MASTER_ADDR by hand")
    addresses = [entry for entry in interfaces.addresses() if entry.up]
    up = [NetworkSegment(interface=entry.interface, address=entry.address, family=entry.family) for entry in addresses]
    return sorted(up, key=lambda entry: entry.family)


def _routed_address() -> str:
    """Return the address that the kernel would send multicast from; empty without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
        sock.connect((GROUPS[4], UDP_PORT))
        return str(sock.getsockname()[0])
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
            self._receiver = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
            self._sender = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
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
        """Join the multicast group on the interface, and bind both sockets; raises OSError."""
        index = socket.if_nametoindex(self.where.interface)
        self._receiver.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # other ids, other ranks on this machine
        self._receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        if self.where.family == 4:
            join = struct.pack("@4s4si", socket.inet_aton(self._group[0]), socket.inet_aton(self.where.address), index)
            self._receiver.setsockopt(socket.IPPROTO_IP, _MULTICAST_ALL[4], 0)
            self._receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, join)
            self._sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, join)
            self._sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
            self._sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        else:
            join = struct.pack("@16sI", socket.inet_pton(socket.AF_INET6, self._group[0]), index)
            self._receiver.setsockopt(socket.IPPROTO_IPV6, _MULTICAST_ALL[6], 0)
            self._receiver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, join)
            self._sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
            self._sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 1)
            self._sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 1)
        scope = (0, index) if self.where.family == 6 else ()
        self._receiver.bind((*self._group, *scope))
        self._sender.bind((self.where.address, 0))

    def send(self, datagram: bytes) -> None:
        """Send to all on the segment; a failure counts as a lost datagram, and is recorded in ``trouble``."""
        try:
            self._sender.sendto(datagram, self._group)
        except OSError as error:
            self.trouble = error.strerror or str(error)
        else:
            self.trouble = ""

    def receive(self, timeout: float) -> Iterator[tuple[bytes, str]]:
        """Yield datagrams and their senders' addresses; wait for the first up to ``timeout`` seconds."""
        select.select([self._receiver], [], [], max(0.0, timeout))
        for _ in range(256):  # a limit, so that the caller can send in between
            try:
                data, source = self._receiver.recvfrom(MAX_BYTES)
            except BlockingIOError:
                return
            except OSError as error:  # the interface is down: it may come back
                self.trouble = error.strerror or str(error)
                return
            yield data, str(source[0])

    def close(self) -> None:
        """Leave the segment."""
        self._sockets.close()
