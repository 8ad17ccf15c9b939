"""Listening sockets on the first free ports of a range."""

import socket
from typing import List, Optional, Sequence

from .bootstrap import Refused


def bind_ports(ports: Sequence[int], wanted: int, address: str) -> List[socket.socket]:
    """Listen on the first free ports of a range, so that nobody takes them between a test and their use.

    Raises:
        Refused: the range has too few free ports.
    """
    first, last = ports
    bound: List[socket.socket] = []
    for port in range(first, last + 1):
        if len(bound) == wanted:
            return bound
        listener = _listen(port, ipv6=":" in address)
        bound += [listener] if listener else []
    if len(bound) == wanted:
        return bound
    for listener in bound:
        listener.close()
    raise Refused(
        "no free port in %d-%d for the rendezvous (%d are needed)" % (first, last, wanted),
        "free one, or set clusterddp_ports to another range",
    )


def _listen(port: int, *, ipv6: bool) -> Optional[socket.socket]:
    listener = socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("::" if ipv6 else "", port))
        listener.listen(1024)
    except OSError:  # taken
        listener.close()
        return None
    return listener
