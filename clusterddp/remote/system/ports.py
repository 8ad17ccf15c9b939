"""Listening sockets on the first free ports of a range."""

import errno
import socket
from typing import List, Optional, Sequence

from .bootstrap import Refused

ANY_ADDRESS = {socket.AF_INET: "", socket.AF_INET6: "::"}


def bind_ports(ports: Sequence[int], count: int, address: str) -> List[socket.socket]:
    """Listen on the first ``count`` free ports of a range, so that nobody takes them between a test and their use.

    ``ports`` are the first and last of the range. A port is free when nobody has it on any address of this machine:
    several nodes may share a machine, and the job's own programs listen on all addresses. Ports whose connections ended
    lately are tried last. It listens on ``address`` alone, or on all addresses where this machine does not have it, as
    behind NAT. Raises Refused if the range has too few free ports.
    """
    first, last = ports
    bound: List[socket.socket] = []
    for skip_recent in (True, False):
        for port in range(first, last + 1):
            if len(bound) == count:
                return bound
            listener = _listen(port, address, skip_recent=skip_recent)
            bound += [listener] if listener else []
    if len(bound) == count:
        return bound
    for listener in bound:
        listener.close()
    raise Refused(
        "no free port in %d-%d for the rendezvous (%d are needed)" % (first, last, count),
        "free one, or set clusterddp_ports to another range",
    )


def _listen(port: int, address: str, *, skip_recent: bool) -> Optional[socket.socket]:
    """Listen on a port if it is free; with ``skip_recent``, it must have no connections that ended lately either."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with socket.socket(family, socket.SOCK_STREAM) as claim:  # on all addresses, until we listen on one
        try:
            claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0 if skip_recent else 1)
            claim.bind((ANY_ADDRESS[family], port))
            claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _bind(listener, address, port)
            listener.listen(
                4096
            )  # of which the kernel grants what its somaxconn allows: a leader is called by all nodes at once
        except OSError:  # taken
            listener.close()
            return None
    return listener


def _bind(listener: socket.socket, address: str, port: int) -> None:
    try:
        listener.bind((address, port))
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        listener.bind((ANY_ADDRESS[listener.family], port))
