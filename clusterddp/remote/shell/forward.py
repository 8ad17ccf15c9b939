"""The operation ``forward``: tunnel one TCP connection to a port on this host's loopback through a request."""

import socket
from typing import Any, Dict

from ..helper.request import Request
from ..helper.tunnel import tunnel
from ..shared.shell.command_records import ForwardRequest
from ..system.bootstrap import Refused

CONNECT_TIMEOUT = 5.0  # seconds to connect


def forward(request: Request) -> Dict[str, Any]:
    """Forward bytes to the port of a ``ForwardRequest`` until both directions have ended; raises Refused."""
    with _connect(request.read_args(ForwardRequest).port) as connection:
        tunnel(request, connection)
    return {}


def _connect(port: int) -> socket.socket:
    for address in ("127.0.0.1", "::1"):
        try:
            return socket.create_connection((address, port), timeout=CONNECT_TIMEOUT)
        except OSError:  # try the other family before reporting it
            continue
    raise Refused("nothing answers on its port %d" % port, "start it there, on 127.0.0.1 or all addresses")
