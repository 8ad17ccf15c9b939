"""An agent that dies after a round was decided and before torchrun's agents have exchanged their ranks. Real torchrun.

It kills itself there, by an audit hook: the handler has just put the round's number into the agent's environment, and
so have those of the others.
"""

from __future__ import annotations

import textwrap
import time
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.spool.layout import Spool, all_spools
from tests.integration.real_helper import wait_for
from tests.integration.rendezvous.test_plugin import hosts, launched, plan_for
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

    from clusterddp.hosts.client import Host

__all__ = ["hosts"]  # fixture
need_torch()
pytestmark = pytest.mark.torch

AGAIN = 20.0  # seconds to the next attempt
DIES_THERE = """
    import os, signal, sys, time

    def seen(event, args):
        if event == "os.putenv" and args[0] == b"CLUSTERDDP_ROUND":
            me = os.environ["PET_LOCAL_ADDR"]
            os.makedirs({there!r} + "/" + me, exist_ok=True)
            while me == {victim!r} and len(os.listdir({there!r})) < {nodes}:
                time.sleep(0.01)  # who has not read the decision yet would begin a new round instead
            if me == {victim!r} and not os.path.exists({mark!r}):
                os.mkdir({mark!r})  # only once
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(seen)
"""


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("elastic", [None, (2, 3)])
def test_the_others_go_on_soon_in_another_attempt(
    hosts: list[Host], tmp_path: Path, victim: int, elastic: tuple[int, int] | None
) -> None:
    mark, hook = tmp_path / "killed", tmp_path / "hook"
    hook.mkdir()
    env = {"PYTHONPATH": str(hook)}
    plan = plan_for(hosts, tmp_path, "pass", (1, 2, 1), env, nnodes=elastic, relaunch=1)
    there = str(tmp_path / "read the decision")
    code = DIES_THERE.format(victim=plan.nodes[victim].address, mark=str(mark), there=there, nodes=len(hosts))
    (hook / "sitecustomize.py").write_text(textwrap.dedent(code))

    def ended_well() -> list[Spool]:
        """The second attempt's spools, of nodes that have ended well."""
        spools = [spool for spool in all_spools(str(tmp_path / "state"), plan.run) if spool.attempt > 1]
        return [spool for spool in spools if (record := spool.exit_record()) and record.state == "succeeded"]

    with launched(hosts, plan) as nodes:
        wait_for(mark.exists, "the agent's end")
        killed = time.monotonic()
        wait_for(lambda: all(node.spool.exit_record() for node in nodes), "the first attempt's end")
        assert time.monotonic() - killed < AGAIN, [node.said() for node in nodes]
        records = [node.ended() for node in nodes]
        wait_for(lambda: len(ended_well()) == len(hosts), f"the second attempt's end {records}")
        assert not any(node.events("worker_started") for node in nodes)
        assert records[victim]["agent_exit"] == 137
    assert elastic is None or any("gone, by run control" in node.said() for node in nodes)
