"""The fence: a supervisor that stands still, is killed, or loses its fence, ends its node's part. No torchrun."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.integration.escapees import EVERY_WAY, OF_ANOTHER, WAYS
from tests.integration.real_helper import alive, opened, wait_for
from tests.integration.runs_started import fence_of, gone, running
from tests.integration.supervisor.test_run_control import begin, go_on, hosts  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clusterddp.hosts.client import Host
    from tests.integration.supervisor.test_run_control import Job

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts are Linux")
TOLD = 3.0  # seconds in which the others know of a supervisor that was killed


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with opened(tmp_path_factory.mktemp("node") / "state") as shared:
        yield shared


def test_all_of_a_node_ends_with_its_supervisor_however_it_hides(host: Host, tmp_path: Path) -> None:
    with running(host, tmp_path, EVERY_WAY) as node:
        pids, supervisor = node.pids(*WAYS), node.supervisor
        fence = fence_of(supervisor)
        os.kill(supervisor, signal.SIGKILL)
        wait_for(lambda: gone(*pids, fence), "the end of all")


def test_another_runs_processes_are_strangers_to_the_fence(host: Host, tmp_path: Path) -> None:
    with running(host, tmp_path, OF_ANOTHER) as node:
        agent, foreign, below = node.pids("agent", "foreign", "below")
        try:
            fence = fence_of(node.supervisor)
            os.kill(node.supervisor, signal.SIGKILL)
            wait_for(lambda: gone(agent, fence), "the node's end")
            assert alive(foreign)
            assert alive(below)
        finally:
            os.kill(below, signal.SIGKILL)
            os.kill(foreign, signal.SIGKILL)


def test_a_node_whose_fence_is_killed_ends_its_part(host: Host, tmp_path: Path) -> None:
    with running(host, tmp_path, EVERY_WAY) as node:
        pids = node.pids(*WAYS)
        os.kill(fence_of(node.supervisor), signal.SIGKILL)
        record = node.ended()
        assert gone(*pids)
    assert (record["state"], record["reason"]) == ("stopped", "the fence process of here is gone")


@pytest.mark.parametrize("member", [0, 1], ids=["the leader", "another"])
def test_a_node_whose_fence_is_killed_leaves_and_the_others_begin_anew(
    begin: Callable[..., Job],  # noqa: F811
    member: int,
) -> None:
    job = begin(relaunch=1, spares=1)
    unguarded = job.nodes[member]
    os.kill(fence_of(unguarded.supervisor), signal.SIGKILL)
    again = [job.started(2, name) for name in ("one", "two", "three") if name != unguarded.host.name]
    wait_for(lambda: not alive(unguarded.supervisor), "the end of the node without a fence")
    go_on(job)
    assert [one.ended()["state"] for one in again] == ["succeeded"] * 2
    verdict = again[0].spool.verdict()
    assert verdict
    assert (verdict.state, verdict.attempt) == ("succeeded", 2)


def test_a_supervisor_that_stands_still_has_no_part_in_what_follows(begin: Callable[..., Job]) -> None:  # noqa: F811
    """Its agent is dead before another attempt begins; when it goes on it finds that, and becomes a spare."""
    job = begin(relaunch=1, spares=1)
    held = job.nodes[1]
    (agent,) = held.pids("agent")
    os.kill(held.supervisor, signal.SIGSTOP)
    wait_for(lambda: gone(agent), "the agent's end")
    ended = time.time_ns()
    again = [job.started(2, name) for name in ("one", "three")]
    assert all(one.event("agent_started")["time"] > ended for one in again)
    os.kill(held.supervisor, signal.SIGCONT)
    wait_for(held.spool.exit_record, "its record")
    go_on(job)
    assert [one.ended()["state"] for one in again] == ["succeeded"] * 2
    record = held.ended()
    assert (record["state"], record["ours"]) == ("stopped", True)
    assert record["reason"].startswith("two was held up")
    assert not alive(held.supervisor)


@pytest.mark.parametrize("lost", [0, 2])
def test_a_killed_supervisor_is_told_by_its_fence(begin: Callable[..., Job], lost: int) -> None:  # noqa: F811
    job = begin()
    killed, rest = job.nodes[lost], [one for member, one in enumerate(job.nodes) if member != lost]
    (agent,) = killed.pids("agent")
    at = time.time_ns()
    os.kill(killed.supervisor, signal.SIGKILL)
    stopped = [one.event("stopping") for one in rest]
    assert {one["reason"] for one in stopped} == {f"{killed.host.name} was lost"}
    assert max(one["time"] for one in stopped) < at + TOLD * 1e9
    assert gone(agent)
