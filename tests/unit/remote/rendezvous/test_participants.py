"""What a supervisor tells its agent, over a real socket, and what an agent does that hears nothing any more."""

from __future__ import annotations

import queue
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.rendezvous import participants
from clusterddp.remote.rendezvous.participants import EVERYONE, LeaseListener, Participants, supervisor_participants
from clusterddp.remote.shared.run.plan import PARTICIPANTS
from clusterddp.remote.system.clock import boot_clock

if TYPE_CHECKING:
    from collections.abc import Iterator

SOON = 20.0
SOME = Participants(7, frozenset({0, 2}), frozenset({1}))


class Agent:
    """An agent's listener and its supervisor's end; the signals that the agent would have sent itself."""

    def __init__(self) -> None:
        self.supervisor, own = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.signals: queue.Queue[int] = queue.Queue()
        self.listener = LeaseListener(own, self.signals.put)

    def says(self, message: Participants) -> None:
        self.supervisor.send(message.pack())


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    monkeypatch.setattr(participants, "AGENT_DELAY", 0.05)
    made = Agent()
    yield made
    made.supervisor.close()
    if made.listener.thread.ident:
        made.listener.thread.join(SOON)
    made.listener.sock.close()


def test_everyone_takes_part_before_anybody_has_said_so() -> None:
    assert not any(EVERYONE.excludes(node) for node in range(100))
    assert Participants.unpack(EVERYONE.pack()) == EVERYONE


def test_a_message_comes_as_it_was_sent() -> None:
    leased = SOME._replace(fenced=frozenset({2}), term_at=12.5, kill_at=13.5)
    assert [Participants.unpack(message.pack()) for message in (SOME, leased)] == [SOME, leased]
    assert [SOME.excludes(node) for node in range(4)] == [False, False, False, True]


def test_the_newest_message_counts(agent: Agent) -> None:
    for epoch in range(5):
        agent.says(SOME._replace(epoch=epoch))
    assert agent.listener.read()
    assert agent.listener() == SOME._replace(epoch=4)


def test_an_agent_that_hears_nothing_any_more_ends_its_workers_then_itself(agent: Agent) -> None:
    now = boot_clock()
    agent.says(SOME._replace(term_at=now + 0.1, kill_at=now + 0.3))
    agent.listener.begin()
    assert agent.signals.get(timeout=SOON) == signal.SIGTERM
    assert boot_clock() >= now + 0.1
    assert agent.signals.get(timeout=SOON) == signal.SIGKILL
    assert boot_clock() >= now + 0.3


def test_an_agent_whose_supervisor_is_gone_ends_at_once(agent: Agent) -> None:
    agent.says(SOME)
    agent.listener.begin()
    agent.supervisor.close()
    assert agent.signals.get(timeout=SOON) == signal.SIGKILL


def test_a_lease_that_is_prolonged_in_time_ends_nothing(agent: Agent) -> None:
    now = boot_clock()
    agent.says(SOME._replace(term_at=now - 1.0, kill_at=now - 0.5))  # as after a stop of the agent itself
    agent.says(SOME._replace(term_at=now + 1000, kill_at=now + 1001))
    agent.listener.read()
    agent.listener.obey()
    assert agent.signals.empty()


def test_a_lease_that_is_prolonged_after_a_sigterm_can_end_again(agent: Agent) -> None:
    for _ in range(2):
        agent.says(SOME._replace(term_at=boot_clock() - 1.0))
        agent.listener.read()
        agent.listener.obey()
        assert agent.signals.get_nowait() == signal.SIGTERM
        agent.says(SOME)
        agent.listener.read()
        agent.listener.obey()
        assert agent.signals.empty()


def test_an_agent_without_a_supervisor_meets_everyone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PARTICIPANTS, raising=False)
    assert supervisor_participants()() == EVERYONE
