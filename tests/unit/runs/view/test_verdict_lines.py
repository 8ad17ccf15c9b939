"""Who failed first, and how a run ended: class first, then time, over what the hosts tell."""

from __future__ import annotations

from signal import SIGABRT, SIGKILL, SIGSEGV, SIGTERM

import pytest

from clusterddp.remote.shared.verdict.failures import (
    ENDED,
    FAIL_FAST_REASON,
    LEASE,
    LOST_PEER,
    OWN,
    STALLED,
    TIME_LIMIT,
)
from clusterddp.runs.view.verdict_lines import all_recovered
from tests.unit.runs_told import Told, verdict

RESET = "torch.distributed.DistBackendError: Connection closed by peer [10.0.0.2]:4242"
CHILD_FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
STOP = "by another command"


def test_all_succeeded() -> None:
    found = verdict(Told(0).succeeded(9), Told(1).succeeded(9.5))
    assert (found.state, found.exit_code, found.failures) == ("succeeded", 0, ())


def test_an_exception_is_named_with_its_place_and_the_others_are_counted() -> None:
    first = Told(0, workers=2).died(5, local=1, raised="ValueError: loss is NaN").died(5.2, signal=SIGTERM).failed(6)
    second = Told(1, workers=2).died(5.3, signal=SIGTERM).died(5.3, local=1, signal=SIGTERM).failed(6)
    found = verdict(first, second)
    assert found.line == "rank 1 (gpu00:1) failed first: ValueError: loss is NaN (train.py:81); 3 others stopped"
    assert (found.state, found.exit_code) == ("failed", 1)
    assert [failure.kind for failure in found.failures] == [OWN, ENDED, ENDED, ENDED]


@pytest.mark.parametrize(
    "victims_text",
    [
        RESET,
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection reset by peer",
        "RuntimeError: recvBytes failed",
        "RuntimeError: NCCL error: ncclRemoteError: A call failed possibly due to a network error",
        "torch.distributed.DistNetworkError: Socket closed",
        "RuntimeError: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)",
    ],
)
def test_a_killed_rank_is_the_cause_though_its_victim_raised_before(victims_text: str) -> None:
    killed = Told(1).died(5.05, signal=SIGKILL).failed(6)
    victim = Told(0).died(5.5, raised=victims_text, raised_at=5.0).failed(6)
    found = verdict(victim, killed)
    assert found.line.startswith("rank 1 (gpu01:0) failed first: killed by SIGKILL, often the out-of-memory killer")
    assert found.exit_code == 137
    assert [failure.kind for failure in found.failures] == [OWN, LOST_PEER]


def test_a_victim_that_the_watchdog_aborts_is_a_victim() -> None:
    said = "[rank0]:[E] [PG ID 0] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE)\nterminate"
    victim = Told(0).died(4, signal=SIGABRT, stderr=said).failed(6)
    cause = Told(1).died(5, code=3, stderr="OSError: no space left").failed(6)
    found = verdict(victim, cause)
    assert found.line.startswith("rank 1 (gpu01:0) failed first: exit code 3: OSError: no space left")
    assert found.exit_code == 3


def test_what_a_worker_said_before_does_not_make_it_a_victim() -> None:
    crashed = Told(0).died(4, signal=SIGSEGV, stderr="warning: Connection refused, asking again").failed(6)
    other = Told(1).died(5, raised="ValueError: x").failed(6)
    found = verdict(crashed, other)
    assert found.line.startswith("rank 0 (gpu00:0) failed first: killed by SIGSEGV;")
    assert found.exit_code == 139


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "CUDA out of memory. Tried"),
        ("MemoryError: ", "MemoryError (train.py:81)"),
    ],
)
def test_out_of_memory_is_a_cause_of_its_own(text: str, line: str) -> None:
    found = verdict(Told(0).died(5, raised=RESET).failed(6), Told(1).died(5.4, raised=text).failed(6))
    assert found.line.startswith("rank 1")
    assert line in found.line


@pytest.mark.parametrize(
    ("code", "stderr", "text"), [(7, "", "exit code 7"), (2, "usage: x\nno --lr\n", "exit code 2: no --lr")]
)
def test_a_code_without_an_exception_is_passed_on(code: int, stderr: str, text: str) -> None:
    found = verdict(Told(0).died(5, code=code, stderr=stderr).failed(6, log=CHILD_FAILED))
    assert (found.exit_code, found.line) == (code, f"rank 0 (gpu00:0) failed first: {text}")


def test_an_exception_on_record_outweighs_the_signal_of_the_teardown() -> None:
    found = verdict(
        Told(0).died(9, signal=SIGABRT, raised="ValueError: loss is NaN", raised_at=5).failed(10),
        Told(1).died(6, raised=RESET).failed(10),
    )
    assert found.exit_code == 1
    assert found.line.startswith("rank 0 (gpu00:0) failed first: ValueError: loss is NaN (train.py:81)")


def test_one_that_hangs_after_its_exception_and_is_ended_by_torchrun_is_still_the_cause() -> None:
    hung = Told(0).died(40, signal=SIGTERM, raised="KeyError: 'model'", raised_at=5).failed(41)
    victim = Told(1).died(8, raised=RESET).failed(9)
    assert verdict(hung, victim).line.startswith("rank 0 (gpu00:0) failed first: KeyError: 'model'")


def test_the_place_of_a_syntax_error_stands_there_once() -> None:
    elsewhere = Told(0).died(5, raised="SyntaxError: invalid syntax (model.py, line 3)").failed(6)
    told = "rank 0 (gpu00:0) failed first: SyntaxError: invalid syntax"
    assert verdict(elsewhere).line == f"{told} (model.py, line 3) (train.py:81)"
    own = Told(0).died(5, raised="SyntaxError: invalid syntax (train.py, line 81)").failed(6)
    assert verdict(own).line == f"{told} (train.py:81)"


def test_a_real_time_signal_has_no_name() -> None:
    assert "killed by signal 40" in verdict(Told(0).died(5, signal=40).failed(6)).line


class TestWatchdog:
    @staticmethod
    def timed_out(rank: int, number: int) -> str:
        what = f"WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000)"
        line = f"[Rank {rank}] Watchdog caught collective operation timeout: {what} ran for 600020 milliseconds"
        head = f"[rank{rank}]:[E626 06:24:44.9 ProcessGroupNCCL.cpp:616] {line}\n"
        frames = "".join(f"frame #{at}: <unknown function> + 0xd6df4 (0x7f in libstdc++.so.6)\n" for at in range(9))
        return (
            f"{head}terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  {line}\n{frames}"
        )

    def test_who_was_not_in_the_collective_is_named(self) -> None:
        waited = Told(0, workers=3)
        for local in range(3):
            waited.died(5 + local / 10, local=local, signal=SIGABRT, stderr=self.timed_out(local, 808))
        late = Told(1, first_rank=3).died(6, signal=SIGTERM)
        found = verdict(waited.failed(6), late.failed(6))
        assert found.line.startswith("rank 0 (gpu00:0) failed first: killed by SIGABRT: [Rank 0] Watchdog caught")
        assert found.line.endswith("; not in it: rank 3 (gpu01:0); 3 others stopped")
        assert "clusterddp why" in found.remedy

    def test_or_who_was_in_an_earlier_one(self) -> None:
        nodes = [
            Told(rank).died(5, signal=SIGABRT, stderr=self.timed_out(rank, 7 if rank == 2 else 9)).failed(6)
            for rank in range(4)
        ]
        assert "; not in it: rank 2 (gpu02:0);" in verdict(*nodes).line

    def test_all_in_the_same_one_blame_nobody(self) -> None:
        nodes = [Told(rank).died(5, signal=SIGABRT, stderr=self.timed_out(rank, 9)).failed(6) for rank in range(3)]
        assert "not in it" not in verdict(*nodes).line


class TestKnown:
    def test_a_known_message_says_what_helps_before_the_verdict(self) -> None:
        found = verdict(Told(0).died(5, raised="OSError: [Errno 28] No space left on device").failed(6))
        (line,) = found.preface
        assert line.startswith("remedy: the disk is full")

    def test_a_scripts_own_failure_has_none(self) -> None:
        found = verdict(Told(0).died(5, raised="ValueError: x", stderr="ConnectionResetError").failed(6))
        assert (found.remedy, found.preface) == ("", ())

    def test_what_a_worker_without_an_exception_said_counts(self) -> None:
        said = "terminate called: CUDA error: uncorrectable ECC error encountered\n"
        assert "reset or replaced" in verdict(Told(0).died(5, signal=SIGABRT, stderr=said).failed(6)).remedy

    def test_so_does_what_an_agent_said(self) -> None:
        log = "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"
        assert "clusterddp_ports" in verdict(Told(0, workers=0).failed(6, log=log)).remedy


def test_recovered_failures_are_listed_in_order_of_time() -> None:
    first = Told(0).died(2, raised="ValueError: second")
    first.start(1, number=1, seconds=3)
    other = Told(1, offset=50).died(1, raised="ValueError: first")
    other.start(1, number=1, seconds=3)
    other.died(9, start=1, raised="ValueError: last")
    found = all_recovered([first.node, other.node])
    assert [failure.worker.text.partition(" (")[0] for failure in found] == ["ValueError: first", "ValueError: second"]
    assert all(failure.recovered for failure in found)
    assert verdict(first.failed(10), other.failed(10)).line.startswith(
        "rank 1 (gpu01:0) failed first: ValueError: last"
    )


class TestTime:
    def test_the_clock_of_a_host_that_is_off_is_corrected(self) -> None:
        ahead = Told(0, offset=100.0).died(5.0, raised="ValueError: first").failed(6)
        right = Told(1).died(5.5, raised="ValueError: second").failed(6)
        found = verdict(right, ahead)
        assert found.line.startswith("rank 0 (gpu00:0) failed first: ValueError: first")
        assert "or rank" not in found.line

    def test_a_difference_below_the_clocks_error_is_said(self) -> None:
        one = Told(0, error=0.02).died(5.0, raised="ValueError: a").failed(6)
        other = Told(5, error=0.02).died(5.03, raised="ValueError: b").failed(6)
        assert verdict(one, other).line.startswith("rank 0 (gpu00:0) failed first (or rank 5): ValueError: a")

    def test_workers_of_one_host_have_one_clock(self) -> None:
        both = (
            Told(0, workers=2, error=0.5).died(5.0, raised="ValueError: a").died(5.01, local=1, raised="ValueError: b")
        )
        assert "or rank" not in verdict(both.failed(6)).line

    def test_another_class_is_no_rival(self) -> None:
        one = Told(0, error=1.0).died(5.0, raised="ValueError: a").failed(6)
        assert "or rank" not in verdict(one, Told(1, error=1.0).died(5.0, raised=RESET).failed(6)).line

    def test_whose_doing_a_missed_peer_was_is_not_known(self) -> None:
        missed = Told(1).died(4.9, raised=RESET).failed(6)
        own = verdict(Told(0).died(5.0, raised="ValueError: a").failed(6), missed)
        assert own.culprits == (own.failures[0].host,)
        both = verdict(Told(0).died(5.0, raised=RESET).failed(6), missed)
        assert len(both.failures) == 2
        assert both.culprits == ()


class TestRestarts:
    def test_a_recovered_failure_is_not_blamed(self) -> None:
        node = Told(0, workers=2).died(2, raised="ValueError: early")
        node.start(2, number=1, seconds=3.0)
        node.died(9, start=1, local=1, raised="KeyError: 'late'").died(9.1, start=1, signal=SIGTERM).failed(10)
        assert "KeyError: 'late'" in verdict(node).line
        assert len(verdict(node).failures) == 2

    def test_a_run_that_recovered_succeeded(self) -> None:
        node = Told(0).died(2, raised="ValueError: early")
        node.start(1, number=1, seconds=3.0)
        assert verdict(node.succeeded(9)).state == "succeeded"


class TestStopped:
    def test_by_a_user(self) -> None:
        found = verdict(*(Told(rank).died(5, signal=SIGTERM).stopped(6, STOP, ordered=4.9) for rank in (0, 1)))
        assert (found.state, found.exit_code, found.line) == ("stopped", 143, f"stopped: {STOP}")

    @pytest.mark.parametrize("raised", ["RuntimeError: told to end", RESET])
    def test_what_a_worker_raises_when_told_to_end_is_no_cause(self, raised: str) -> None:
        assert verdict(Told(0).died(5, raised=raised).stopped(6, STOP, ordered=4.9)).exit_code == 143

    def test_a_peer_that_vanished_by_our_doing_is_no_cause(self) -> None:
        stopped = Told(0).died(5.0, signal=SIGTERM).stopped(6, STOP, ordered=4.99)
        behind = Told(1, offset=-3.0, error=0.01).died(5.02, raised=RESET, raised_at=4.985).failed(6)
        assert verdict(stopped, behind).exit_code == 143

    def test_a_failure_before_the_order_is_the_cause(self) -> None:
        failed = Told(1).died(3, raised="ValueError: x").stopped(6, STOP, ordered=4)
        found = verdict(Told(0).died(5, signal=SIGKILL).stopped(6, STOP, ordered=4), failed)
        assert (found.state, found.exit_code) == ("failed", 1)

    @pytest.mark.parametrize(("reason", "code"), [("Ctrl-C", 130), (STOP, 143)])
    def test_a_stop_before_a_restart_stands_with_what_had_failed_before_it(self, reason: str, code: int) -> None:
        gone = Told(0, max_restarts=1).died(2).succeeded(6)
        found = verdict(gone, Told(1, max_restarts=1).died(3, code=3).stopped(6, reason, ordered=5))
        assert (found.state, found.exit_code, found.line) == ("stopped", code, f"stopped: {reason}")
        assert found.notices == ("rank 1 (gpu01:0) had failed, and was to be started again: exit code 3",)

    @pytest.mark.parametrize(("made", "state"), [(0, "stopped"), (1, "failed")])
    def test_starts_after_a_host_left_or_joined_use_up_no_restart(self, made: int, state: str) -> None:
        node = Told(0, max_restarts=1)
        node.event("worker_started", 2, start=1, local_rank=0, rank=0, restart_count=made)
        assert verdict(node.died(3, code=3, start=1).stopped(6, STOP, ordered=5)).state == state

    @pytest.mark.parametrize("reason", [TIME_LIMIT, f"{STALLED}rank 1", FAIL_FAST_REASON, STOP])
    def test_no_other_end_nor_a_stop_without_a_restart_hides_a_failure_that_was_not_made_good(
        self, reason: str
    ) -> None:
        told = Told(0, max_restarts=int(reason != STOP)).died(3, code=3).stopped(6, reason, ordered=5)
        assert verdict(told).exit_code == 3

    def test_fail_fast_is_no_cause(self) -> None:
        stopped = Told(1).died(7, signal=SIGTERM).stopped(8, FAIL_FAST_REASON, ordered=6.5)
        found = verdict(Told(0).died(5, raised="ValueError: x").failed(6), stopped)
        assert found.line == "rank 0 (gpu00:0) failed first: ValueError: x (train.py:81); 1 other stopped"
        agent = Told(0, workers=0).failed(6, log="ModuleNotFoundError: No module named 'torch'")
        found = verdict(agent, stopped)
        assert (found.state, found.exit_code) == ("failed", 125)
        assert found.line == "torchrun failed on gpu00: ModuleNotFoundError: No module named 'torch'"

    @pytest.mark.parametrize("limit", [TIME_LIMIT, f"{STALLED}rank 1 (gpu01:0) did not join all_reduce #4"])
    def test_a_limit(self, limit: str) -> None:
        first = Told(0).died(5, signal=SIGTERM).stopped(6, limit, ordered=4.9)
        behind = Told(1).died(5.1, raised=RESET).stopped(6, FAIL_FAST_REASON, ordered=5.2)
        found = verdict(Told(2).died(5.1, signal=SIGTERM).stopped(6, STOP, ordered=5.2), behind, first)
        assert (found.state, found.exit_code, found.line) == ("failed", 124, limit)

    def test_by_the_lease(self) -> None:
        lapsed = Told(0).died(5, signal=SIGTERM).stopped(6, f"{LEASE}: no word of alice@desk for 60 s", ordered=4.9)
        found = verdict(lapsed, Told(1).died(5, signal=SIGTERM).stopped(6, STOP, ordered=5))
        assert (found.state, found.exit_code) == ("stopped", 143)
        assert found.line == "lease lapsed: no word of alice@desk for 60 s"

    def test_by_our_own_fault(self) -> None:
        reason = "the rendezvous store died: Killed"
        store = Told(0).died(5, signal=SIGKILL).stopped(6, reason, ordered=4.9, ours=True)
        found = verdict(Told(1).died(6, signal=SIGTERM).stopped(7, STOP, ordered=6), store)
        assert (found.state, found.exit_code, found.line) == ("failed", 125, reason)

    def test_while_a_host_is_out_of_reach(self) -> None:
        assert verdict(Told(0).died(5, signal=SIGTERM).stopped(6, STOP), unreachable=["gpu01"]).exit_code == 143


class TestLost:
    def test_a_host_that_does_not_answer(self) -> None:
        found = verdict(Told(0).died(30, raised=RESET).failed(31), unreachable=["gpu01"])
        assert (found.state, found.exit_code, found.line) == ("failed", 125, "gpu01 was lost: no answer")

    def test_a_supervisor_that_is_gone(self) -> None:
        failed = Told(0).died(30, raised=RESET).failed(31)
        assert verdict(failed, Told(1).lost(), Told(2).lost()).line.startswith("gpu01, gpu02 were lost: their superv")
        found = verdict(failed, *(Told(rank).lost() for rank in (10, 8, 9)))
        assert found.line == "gpu[08:10] were lost: their supervisors are gone"

    def test_the_ways_to_be_lost_are_told_apart(self) -> None:
        rebooted = [Told(rank).lost(rebooted=True) for rank in (3, 4)]
        found = verdict(Told(0).lost(), Told(1).succeeded(3), *rebooted, unreachable=["gpu02"])
        assert found.line == (
            "gpu03, gpu04 were lost: they were rebooted; gpu00 was lost: its supervisor is gone; "
            "gpu02 was lost: no answer"
        )

    def test_a_host_that_was_rebooted(self) -> None:
        found = verdict(Told(0).died(30, raised=RESET).failed(31), Told(1).lost(rebooted=True))
        assert (found.state, found.exit_code, found.line) == ("failed", 125, "gpu01 was lost: it was rebooted")

    @pytest.mark.parametrize("reason", ["gpu01 was lost", "gpu00 lost contact with gpu01"])
    def test_others_that_ended_because_they_missed_it_do_not_hide_why(self, reason: str) -> None:
        missed = Told(0).died(70, signal=SIGTERM).stopped(71, reason, ordered=70, ours=True)
        assert verdict(missed, Told(1).lost(rebooted=True)).line == "gpu01 was lost: it was rebooted"
        assert verdict(missed, unreachable=["gpu01"]).line == "gpu01 was lost: no answer"
        alone = verdict(missed, Told(1).succeeded(9))
        assert (alone.exit_code, alone.line) == (125, reason)

    def test_a_failure_of_its_own_elsewhere_outweighs_a_lost_host(self) -> None:
        assert verdict(Told(0).died(3, raised="ValueError: x").failed(4), unreachable=["gpu01"]).exit_code == 1

    def test_one_that_torchrun_had_to_kill_after_the_loss_is_not_blamed(self) -> None:
        node = Told(0, workers=2).died(30, raised=RESET).died(60.1, local=1, signal=SIGKILL).failed(61)
        found = verdict(node, unreachable=["gpu01"])
        assert (found.exit_code, found.line) == (125, "gpu01 was lost: no answer")


class TestAgent:
    def test_it_failed_before_any_worker(self) -> None:
        log = (
            "Traceback (most recent call last):\n  File ...\ntorch.distributed.DistNetworkError: timed out after 60 s\n"
        )
        found = verdict(Told(0, workers=0).failed(60, log=log))
        assert found.exit_code == 125
        assert found.line == (
            "torchrun failed on gpu00 before any worker did: torch.distributed.DistNetworkError: timed out after 60 s"
        )

    def test_it_said_nothing(self) -> None:
        assert verdict(Told(0, workers=0).failed(6)).line.endswith("before any worker did: the agent ended with 1")

    def test_the_first_of_several_is_named(self) -> None:
        late, early = (
            Told(0, workers=0).failed(9, log="lost the store"),
            Told(1, workers=0, offset=50).failed(2, log="no module"),
        )
        assert verdict(late, early).line == "torchrun failed on gpu01 before any worker did: no module"

    def test_it_ended_its_workers_for_a_reason_of_its_own(self) -> None:
        log = "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection has failed"
        found = verdict(Told(0).died(5, signal=SIGTERM).failed(6, log=log))
        assert found.exit_code == 125
        assert found.line == f"torchrun failed on gpu00: {log}"

    def test_it_was_killed_and_its_workers_with_it(self) -> None:
        node = Told(0, workers=2).died(5.01, signal=SIGKILL).died(5.02, local=1, signal=SIGKILL).failed(5, agent=137)
        found = verdict(node)
        assert (found.exit_code, found.line) == (125, "torchrun on gpu00 was killed by SIGKILL")

    def test_a_worker_that_somebody_else_terminated_is_named(self) -> None:
        found = verdict(Told(0).died(5, signal=SIGTERM).failed(6, log=f"{CHILD_FAILED}\n====\n"))
        assert (found.exit_code, found.line) == (143, "rank 0 (gpu00:0) failed first: killed by SIGTERM")

    def test_no_record_at_all(self) -> None:
        found = verdict(Told(0).lost())
        assert (found.state, found.exit_code, found.line) == ("failed", 125, "gpu00 was lost: its supervisor is gone")


def test_an_elastic_run_that_ended_well_with_enough_hosts_succeeded_and_names_the_others() -> None:
    def nodes(least: int) -> list[Told]:
        died = Told(1, min_nodes=least).died(5, signal=SIGKILL).failed(6)
        return [Told(0, min_nodes=least).succeeded(9), died, Told(2, min_nodes=least).succeeded(9)]

    found = verdict(*nodes(2))
    assert (found.state, found.exit_code, found.notices) == ("succeeded", 0, ("the run ended without gpu01",))
    assert verdict(*nodes(2), unreachable=["gpu03"]).notices == ("gpu03 was lost: no answer",)
    assert verdict(*nodes(3)).state == "failed"
    assert verdict(Told(0).succeeded(9), Told(1).died(5, signal=SIGKILL).failed(6)).state == "failed"
