"""Run control loses each of its messages in turn, and its lead at each step of a relaunch: there is always a verdict.

No torchrun and no lab: three nodes of this machine, faults put into the code that is sent to them.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, get_args

import pytest

from clusterddp.hosts.client import Host
from clusterddp.hosts.fanout import each, values
from clusterddp.hosts.ssh import Connector
from clusterddp.remote.control.messages import AttemptDecision, Message
from tests.chaos.rounds import ROUNDS
from tests.integration.real_helper import alive, entry, wait_for
from tests.integration.runs_started import with_constants
from tests.integration.supervisor.test_run_control import IMPATIENT, NAMES, Job, go_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LONG = pytest.mark.skipif(ROUNDS == 1, reason="half a minute each; `make chaos` does it")
KINDS = [kind.__name__ for kind in get_args(Message)]
SEND = "    def send(self, message: Message) -> bool:\n"
LOSE = """    lost = set()

    def send(self, message: Message) -> bool:
        if type(message).__name__ == "%s" and not PeerConnection.lost:
            PeerConnection.lost.add(1)
            return True
        return self._send(message)

    def _send(self, message: Message) -> bool:
"""
DIE = "os.kill(os.getpid(), 9) if self.%s == 0 and %s == 1 else None"
RELAUNCH = "supervisor/relaunch"
DECIDE = "            self.membership.decide(AttemptDecision(plan.attempt + 1, following.members, node.member, port))\n"
IMPORT = (RELAUNCH, "import shutil\n", "import os\nimport shutil\n")
STEPS = {
    "before it decides": (
        IMPORT,
        (
            RELAUNCH,
            "        if not following.members:\n",
            f"        {DIE % ('control.member', 'plan.attempt')}\n        if not following.members:\n",
        ),
    ),
    "once it has decided": (
        IMPORT,
        (
            RELAUNCH,
            DECIDE,
            f"{DECIDE}            {DIE % ('control.member', 'plan.attempt')}\n",
        ),
    ),
    "when it has made its spool": (
        IMPORT,
        (
            RELAUNCH,
            "        spool.take_lock()\n",
            f"        {DIE % ('control.member', 'node.plan.attempt')}\n        spool.take_lock()\n",
        ),
    ),
    "when it has started its agent": (
        (
            "supervisor/node",
            "        self.publish(NodeState.RUNNING)\n",
            f"        {DIE % ('member', 'self.plan.attempt - 1')}\n        self.publish(NodeState.RUNNING)\n",
        ),
    ),
}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Starts a job on three nodes whose supervisors have some lines changed; nothing of it is left in the end."""
    connector = Connector()
    with contextlib.ExitStack() as stack:
        stack.callback(connector.close)

        def start(*changes: tuple[str, str, str], **options: object) -> Job:
            code = with_constants(*IMPATIENT, *changes)
            entries = [entry(tmp_path / "state", name) for name in NAMES]
            hosts = values(each(entries, lambda wanted: Host.open(wanted, connector, code)))
            for host in hosts:
                stack.enter_context(host)
            made = Job(hosts, tmp_path, **options)  # type: ignore[arg-type]
            stack.callback(made.end)
            made.at_work()
            return made

        yield start


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize(
    "kind", [kind if kind == AttemptDecision.__name__ else pytest.param(kind, marks=LONG) for kind in KINDS]
)
def test_a_message_is_lost(job: Callable[..., Job], kind: str, number: int) -> None:
    """Each supervisor loses its first one of a kind; the run is started again and ends well all the same."""
    assert number >= 0
    run = job(("control/connection", SEND, LOSE % kind), relaunch=1)
    os.kill(run.nodes[1].pids("agent")[0], signal.SIGKILL)
    again = [run.started(2, name) for name in NAMES]
    assert [one.ended()["state"] for one in again] == ["succeeded"] * 3
    wait_for(lambda: not any(alive(one.supervisor) for one in again), "the supervisors' ends")


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize(
    "step", [step if step == "once it has decided" else pytest.param(step, marks=LONG) for step in STEPS]
)
def test_the_lead_is_killed(job: Callable[..., Job], step: str, number: int) -> None:
    """The others lose it and go on without it; where they cannot, each has an end."""
    assert number >= 0
    run = job(*STEPS[step], relaunch=3, spares=1)
    lead = run.nodes[0].supervisor
    os.kill(run.nodes[1].pids("agent")[0], signal.SIGKILL)
    wait_for(lambda: not alive(lead), "the lead's end")
    go_on(run)
    wait_for(lambda: run.view().verdict() and not run.view().live, "a verdict")
    last = max(attempt for attempt in range(1, 5) if run.spools(attempt).keys() & {"two", "three"})
    ended = {name: spool.exit_record() for name, spool in run.spools(last).items() if name != "one"}
    assert {record.state for record in ended.values() if record} == {"succeeded"}
