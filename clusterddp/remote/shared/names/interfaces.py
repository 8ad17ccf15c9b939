"""List this host's network interfaces and addresses, read from the kernel over netlink.

One netlink socket answers for links and addresses: no ``ip`` binary is needed, and /sys (which may show another
network namespace's interfaces) is only read for a speed that the driver does not report otherwise.
"""

import array
import fcntl
import os
import socket
import struct
import sys
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_GETLINK, _GETADDR = 18, 22
_DONE, _ERROR = 3, 2
_IFLA_IFNAME, _IFLA_MTU, _IFLA_OPERSTATE = 3, 4, 16
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_SCOPE_GLOBAL = 0
# Temporary, DAD failed, deprecated, tentative: such an IPv6 address may soon disappear or is not usable yet.
_IFA_UNSTEADY = 0x01 | 0x08 | 0x20 | 0x40
_IFF_UP = 0x1
_OPER_UNKNOWN, _OPER_UP = 0, 6
_SIOCETHTOOL, _ETHTOOL_GSET = 0x8946, 0x1
_SPEED_UNKNOWN = (0, 0xFFFF, 0xFFFFFFFF)


UNKNOWN_SPEED = 10_000  # Mbit/s; an interface that reports no speed is a virtual machine's, mostly about so fast
# Bridges of containers and virtual machines, overlays, tunnels: slow, or the same on every machine. They are only used
# if the operator's own connection came through one, or the inventory names it.
_VIRTUAL = (
    "docker", "br-", "veth", "virbr", "lxc", "lxd", "podman", "cni", "flannel", "cali", "cilium", "kube", "weave",
    "tun", "tap", "wg", "tailscale", "zt", "vxlan", "ovs",
)  # fmt: skip


def is_virtual(interface: str) -> bool:
    """Whether an interface's name is typical of bridges, containers and tunnels."""
    return interface.startswith(_VIRTUAL)


class InterfaceAddress(NamedTuple):
    """An address of this host, and what its interface is."""

    interface: str
    mtu: int
    up: bool
    speed_mbit: Optional[int]  # None where it is unknown
    address: str
    family: int  # 4 or 6
    prefix: int  # the network's length in bits


def addresses() -> List[InterfaceAddress]:
    """List all IPv4 and stable global IPv6 addresses; raises OSError if the kernel does not answer."""
    links = _links()
    found = []
    for body in _query_kernel(_GETADDR, struct.pack("=BBBBI", socket.AF_UNSPEC, 0, 0, 0, 0)):
        family, prefix, flags, scope, index = struct.unpack_from("=BBBBI", body)
        attributes = dict(_attributes(body[8:]))
        raw = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS)
        if raw is None or index not in links or not _is_stable(family, flags, scope):
            continue
        number = 4 if family == socket.AF_INET else 6
        found.append(InterfaceAddress(*links[index], socket.inet_ntop(family, raw), number, prefix))
    return found


def ssh_address(env: Dict[str, str]) -> Optional[str]:
    """The address of this host at which the operator's SSH connection arrived, or None."""
    fields = env.get("SSH_CONNECTION", "").split()
    return fields[2].partition("%")[0] if len(fields) == 4 else None


def ephemeral_range() -> List[int]:
    """The first and last port of the kernel's ephemeral range."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            first, last = file.read().split()
        return [int(first), int(last)]
    except (OSError, ValueError):  # the kernel's own default
        return [32768, 60999]


def _is_stable(family: int, flags: int, scope: int) -> bool:
    """Whether it is an IPv4 address, or a global IPv6 one that is usable and stays."""
    if family == socket.AF_INET:
        return True
    return family == socket.AF_INET6 and scope == _SCOPE_GLOBAL and not flags & _IFA_UNSTEADY


def _links() -> Dict[int, Tuple[str, int, bool, Optional[int]]]:
    """Map the kernel's interface indices to name, MTU, whether it is up, and speed."""
    links = {}
    for body in _query_kernel(_GETLINK, struct.pack("=BxHiII", socket.AF_UNSPEC, 0, 0, 0, 0)):
        _, _, index, flags, _ = struct.unpack_from("=BxHiII", body)
        attributes = dict(_attributes(body[16:]))
        name = attributes.get(_IFLA_IFNAME, b"").rstrip(b"\0").decode("utf-8", "replace")
        state = attributes.get(_IFLA_OPERSTATE, b"\0")[0]
        mtu = int.from_bytes(attributes.get(_IFLA_MTU, b""), sys.byteorder)
        up = bool(flags & _IFF_UP) and state in (_OPER_UNKNOWN, _OPER_UP)
        links[index] = (name, mtu, up, _speed(name, index))
    return links


def _query_kernel(kind: int, body: bytes) -> Iterator[bytes]:
    """Send one netlink dump request and yield the bodies of the replies."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as netlink:
        netlink.settimeout(5)
        netlink.bind((0, 0))
        netlink.send(struct.pack("=IHHII", 16 + len(body), kind, _DUMP, 1, 0) + body)
        while True:
            data = netlink.recv(1 << 17)
            for reply, content in _messages(data):
                if reply == _DONE:
                    return
                if reply == _ERROR:
                    number = -int(struct.unpack_from("=i", content)[0])
                    raise OSError(number, os.strerror(number))
                yield content


def _messages(data: bytes) -> Iterator[Tuple[int, bytes]]:
    """Split a netlink reply into messages: type and body of each."""
    start = 0
    while start + 16 <= len(data):
        size, kind = struct.unpack_from("=IH", data, start)
        yield kind, data[start + 16 : start + size]
        start += max(16, _aligned(size))


def _attributes(data: bytes) -> Iterator[Tuple[int, bytes]]:
    """Split a netlink message's attributes: type and value of each."""
    start = 0
    while start + 4 <= len(data):
        size, kind = struct.unpack_from("=HH", data, start)
        yield kind & 0x3FFF, data[start + 4 : start + size]
        start += max(4, _aligned(size))


def _aligned(size: int) -> int:
    return (size + 3) & ~3


def _speed(name: str, index: int) -> Optional[int]:
    """The speed in Mbit/s: from ethtool's ioctl, else from /sys if that shows the same interface."""
    speed = _ethtool_speed(name)
    if speed is None:
        folder = "/sys/class/net/%s/" % name
        speed = _number(folder + "speed") if _number(folder + "ifindex") == index else None
    return speed if speed is not None and 0 < speed < 10_000_000 else None


def _ethtool_speed(name: str) -> Optional[int]:
    command = array.array("B", struct.pack("=I", _ETHTOOL_GSET) + bytes(40))
    request = struct.pack("16sP16x", name.encode()[:15], command.buffer_info()[0])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket.fileno(), _SIOCETHTOOL, request)
    except OSError:
        return None  # the driver has no such call: loopback, tunnels, some virtual cards
    low, high = struct.unpack_from("=12xH14xH", command.tobytes())  # struct ethtool_cmd: speed, speed_hi
    speed = int(high << 16 | low)
    return None if speed in _SPEED_UNKNOWN else speed


def _number(path: str) -> Optional[int]:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):  # a card without one, or none any more
        return None
