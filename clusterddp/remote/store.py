"""The rendezvous store of a run: torch's own TCPStore, alone in a process.

Run by the training interpreter on the rendezvous host. The supervisor has bound and listens on the port
already, so clients that come early wait in the backlog, and nobody can take the port between a test and a
bind. Being no agent's child, it outlives each of them: nodes may end minutes apart.
"""

import signal
import socket
import sys
from typing import List

ESTABLISHED = "01"  # in /proc/net/tcp


def main(argv: List[str]) -> int:
    """Serve on the listening socket inherited as file descriptor ``argv[0]`` until a signal ends it."""
    handle = int(argv[0])
    listener = socket.socket(fileno=handle)
    port = listener.getsockname()[1]
    listener.detach()  # the store closes it
    import torch.distributed  # type: ignore[import-not-found,unused-ignore]

    store = torch.distributed.TCPStore(  # type: ignore[attr-defined,unused-ignore]
        "localhost", port, is_master=True, wait_for_workers=False, master_listen_fd=handle
    )
    sys.stdout.write("serving on port %d\n" % store.port)
    sys.stdout.flush()
    while True:
        signal.pause()


def clients(port: int) -> int:
    """How many agents are connected to the store of this host; the store's own connection is not counted."""
    found = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as stream:
                rows = [line.split() for line in stream][1:]
        except OSError:  # no IPv6 on this host
            continue
        found += sum(row[3] == ESTABLISHED and int(row[1].rpartition(":")[2], 16) == port for row in rows)
    return max(0, found - 1)
