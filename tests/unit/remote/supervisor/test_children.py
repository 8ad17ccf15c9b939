"""What a supervisor sends its agent: who takes part, and until when the agent may run."""

from __future__ import annotations

import socket

from clusterddp.remote.rendezvous.participants import Participants
from clusterddp.remote.supervisor.children import Children


def test_a_shorter_lease_reaches_the_agent_at_once_and_a_longer_one_soon() -> None:
    ours, agents = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, agents:
        agents.setblocking(False)
        children = Children.__new__(Children)  # what makes its processes is not needed
        children.agent_socket, children._sent, children._sent_at = ours, None, 0.0
        received = []
        for until in (100.0, 101.0, 98.5):
            children.inform_agent(Participants(term_at=until, kill_at=until + 1.0))
            try:
                received.append(Participants.unpack(agents.recv(1 << 12)).kill_at)
            except BlockingIOError:
                received.append(0.0)
    assert received == [101.0, 0.0, 99.5]
