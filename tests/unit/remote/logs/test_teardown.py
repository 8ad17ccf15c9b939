"""The agent's lines that follow an end of the workers, and those that do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.spool.events import append_event
from tests.unit.spool_writer import Tail, Writer, caught_up, read

if TYPE_CHECKING:
    from pathlib import Path


class Agent(Writer):
    """A spool whose agent speaks, and whose events say how much it had written."""

    def say_agent(self, *lines: str) -> None:
        self.say("agent.out", "".join(f"{line}\n" for line in lines).encode())

    def told(self, event: str, **fields: Any) -> None:
        path = self.logs / "agent.out"
        size = path.stat().st_size if path.exists() else 0
        append_event(str(self.folder / "events.jsonl"), event, agent_bytes=size, **fields)

    def worker(self, event: str, start: int = 0, local_rank: int = 0, **fields: Any) -> None:
        self.told(event, start=start, local_rank=local_rank, rank=local_rank, **fields)

    def shown(self, **args: Any) -> list[str]:
        return read(self, agent=True, teardown=False, **args).text("agent.out").decode().splitlines()


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


def test_what_follows_a_failed_worker_is_hidden_until_the_workers_start_again(agent: Agent) -> None:
    agent.say_agent("before")
    agent.worker("worker_started")
    agent.say_agent("while they run")
    agent.worker("worker_exited", exit_code=1)
    agent.say_agent("failed (exitcode: 1)", "Traceback")
    agent.worker("worker_started", start=1)
    agent.say_agent("in the next round")
    agent.worker("worker_exited", start=1, exit_code=1)
    agent.say_agent("Traceback")
    agent.end()
    assert agent.shown() == ["before", "while they run", "in the next round"]
    assert read(agent, agent=True).text("agent.out").count(b"\n") == 6


def test_what_follows_a_signal_of_ours_is_hidden(agent: Agent) -> None:
    agent.worker("worker_started")
    agent.say_agent("before")
    agent.told("stopping", reason="Ctrl-C")
    agent.say_agent("Received 15 death signal", "Traceback")
    agent.end()
    assert agent.shown() == ["before"]


def test_what_follows_the_last_workers_end_is_hidden_and_a_failure_between_is_not(agent: Agent) -> None:
    agent.worker("worker_started")
    agent.worker("worker_started", local_rank=1)
    agent.worker("worker_exited", exit_code=0)
    agent.say_agent("one of two has ended")
    agent.worker("worker_exited", local_rank=1, exit_code=0)
    agent.say_agent("the store is gone")
    agent.end()
    assert agent.shown() == ["one of two has ended"]


def test_torchruns_signals_to_its_workers_are_hidden_and_our_own_lines_never(agent: Agent) -> None:
    agent.worker("worker_started")
    agent.say_agent("W1122 api.py:1010] Sending process 7 closing signal SIGTERM", "clusterddp: gpu02: no sign of life")
    agent.worker("worker_exited", exit_code=143)
    agent.say_agent("clusterddp: round 1 goes on without gpu02")
    agent.end()
    assert agent.shown() == ["clusterddp: gpu02: no sign of life", "clusterddp: round 1 goes on without gpu02"]


def test_the_last_lines_are_counted_without_hidden_ones(agent: Agent) -> None:
    agent.worker("worker_started")
    agent.say_agent("one", "two", "three")
    agent.worker("worker_exited", exit_code=1)
    agent.say_agent("Traceback", "ChildFailedError")
    agent.end()
    assert agent.shown(tail=2) == ["two", "three"]
    assert agent.shown(grep="t") == ["two", "three"]


def test_a_spool_that_does_not_say_where_its_ends_begin_is_shown_whole(agent: Agent) -> None:
    agent.start(0, 0)
    agent.say_agent("one")
    append_event(str(agent.folder / "events.jsonl"), "stopping", reason="Ctrl-C")
    agent.say_agent("two")
    agent.end()
    assert agent.shown() == ["one", "two"]


def test_a_follower_hides_them_as_they_come(agent: Agent) -> None:
    agent.worker("worker_started")
    agent.say_agent("before")
    tail = Tail(agent, follow=True, agent=True, teardown=False).begin().wait(caught_up)
    agent.worker("worker_exited", exit_code=1)
    agent.say_agent("Traceback")
    agent.worker("worker_started", start=1)
    agent.say_agent("after")
    tail.wait(lambda t: t.text("agent.out") == b"before\nafter\n")
    agent.end()
    assert tail.finish().text("agent.out") == b"before\nafter\n"
