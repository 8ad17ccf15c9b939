"""The verdict on a run of which the stall guard has killed a worker."""

from __future__ import annotations

from signal import SIGKILL, SIGTERM

from clusterddp.remote.shared.verdict.failures import STALLED
from tests.unit.runs.view.test_verdict_lines import RESET
from tests.unit.runs_told import Told, verdict


def test_a_stall_that_the_death_of_the_rank_to_blame_did_not_end() -> None:
    line = f"{STALLED}rank 1 (gpu01:0) did not join all_reduce #4"
    killed = Told(1).died(5, signal=SIGKILL, pid=42)
    killed.event("stalled", 4, reason=line, start=0, local_rank=0, pid=42)
    hangs = Told(0).died(31, signal=SIGTERM).stopped(32, line, ordered=30)
    peer = Told(2, offset=-0.2).died(4.9, raised="ValueError: not enough bytes").stopped(32, line, ordered=30)
    killed.stopped(32, line, ordered=30)
    for nodes in ([hangs, killed], [hangs, killed, peer]):
        found = verdict(*nodes)
        assert (found.state, found.exit_code, found.line) == ("failed", 124, line)


def test_a_worker_that_was_killed_for_a_restart_which_did_not_come() -> None:
    killed = Told(1).died(5, signal=SIGKILL, pid=42)
    killed.event("stalled", 4, reason=f"{STALLED}rank 1", start=0, local_rank=0, pid=42)
    found = verdict(Told(0).died(5.1, raised=RESET).failed(6), killed.failed(6))
    assert (found.state, found.exit_code) == ("failed", 124)
    assert found.line.startswith("rank 1 (gpu01:0) failed first: killed by the stall guard")


def test_the_stall_guard_has_not_killed_a_later_worker_with_the_same_pid() -> None:
    node = Told(0).died(5, signal=SIGKILL, pid=42)
    node.event("stalled", 4, reason=f"{STALLED}rank 0", start=0, local_rank=0, pid=42)
    node.start(1, number=1, seconds=6.0)
    found = verdict(node.died(9, signal=SIGKILL, pid=42, start=1).failed(10))
    assert (found.exit_code, "stall guard" in found.line) == (137, False)
