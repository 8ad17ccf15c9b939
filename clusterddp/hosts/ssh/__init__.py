"""Connections to hosts: a byte pipe to one command on a host, over any transport.

``Connector.open`` chooses the transport. Only this package imports paramiko, when the first connection needs it.

    Connector ── resolve (inventory, arguments, config → Target) ──┬─ pipes         local child
                                                                   ├─ kept, mux     masters of `up --keep`
                                                                   ├─ openssh_pipe  the ssh program
                                                                   └─ fabric_pipe   paramiko (auth, known_hosts)
"""

from __future__ import annotations

from clusterddp.hosts.ssh.connector import Connector
from clusterddp.hosts.ssh.known_hosts import UnknownHostKeyError, append_known_hosts
from clusterddp.hosts.ssh.pipes import BytePipe

__all__ = ["BytePipe", "Connector", "UnknownHostKeyError", "append_known_hosts"]
