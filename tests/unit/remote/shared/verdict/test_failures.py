"""What one node's evidence says: classes, what a new attempt may cure, earlier failures, a node as a whole."""

from __future__ import annotations

import time
from signal import SIGABRT, SIGKILL, SIGSEGV, SIGTERM
from typing import Any

import pytest

from clusterddp.remote.shared.verdict.failures import (
    BY_STALL_GUARD,
    ENDED,
    EXCEPTION,
    EXIT,
    LOST_PEER,
    MAX_TEXT,
    OUT_OF_MEMORY,
    OWN,
    SIGNAL,
    is_lost_peer,
    node_cause,
    recovered_failures,
    worker_failures,
)
from tests.unit.runs_told import Told, at

RESET = "RuntimeError: [pair.cc:547] Connection closed by peer [10.0.0.2]:4242"
CHILD_FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"


@pytest.mark.parametrize(
    ("ended", "kind", "cause", "curable"),
    [
        (Told().died(5, raised="ValueError: x"), OWN, EXCEPTION, False),
        (Told().died(5, code=3), OWN, EXIT, False),
        (Told().died(5, signal=SIGSEGV), OWN, SIGNAL, False),
        (Told().died(5, signal=SIGKILL), OWN, SIGNAL, True),
        (Told().died(5, signal=SIGKILL, oom_kills=0), OWN, SIGNAL, True),
        (Told().died(5, signal=SIGKILL, oom_kills=1), OWN, OUT_OF_MEMORY, False),
        (Told().died(5, raised="torch.OutOfMemoryError: CUDA out of memory. Tried …"), OWN, OUT_OF_MEMORY, False),
        (Told().died(5, raised="MemoryError: "), OWN, OUT_OF_MEMORY, False),
        (Told().died(5, code=1, stderr="MemoryError\n"), OWN, OUT_OF_MEMORY, False),
        (Told().died(5, raised=RESET), LOST_PEER, EXCEPTION, True),
        (Told().died(5, code=1, stderr=f"Traceback\n{RESET}\n"), LOST_PEER, EXIT, True),
        (
            Told().died(5, signal=SIGABRT, stderr="Watchdog caught collective operation timeout"),
            LOST_PEER,
            SIGNAL,
            True,
        ),
        (Told().died(5, signal=SIGTERM), ENDED, SIGNAL, True),
        (Told().died(5, raised="torch.distributed.DistNetworkError: … EADDRINUSE …"), OWN, EXCEPTION, False),
        (Told().died(5, raised="requests.exceptions.ConnectionError: Connection refused"), OWN, EXCEPTION, False),
        (
            Told().died(5, raised="torch.distributed.DistBackendError: NCCL, unhandled cuda error"),
            OWN,
            EXCEPTION,
            False,
        ),
        (
            Told().died(5, raised="torch.distributed.DistBackendError: remote process exited"),
            LOST_PEER,
            EXCEPTION,
            True,
        ),
    ],
)
def test_a_failure_has_a_class_a_cause_and_a_hope(ended: Told, kind: int, cause: str, curable: bool) -> None:  # noqa: FBT001
    (failure,) = worker_failures(ended.evidence)
    assert (failure.kind, failure.cause, failure.curable) == (kind, cause, curable)


SPAWNED = "torch.multiprocessing.spawn.ProcessRaisedException"
CHILD_TRACE = """

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "/opt/torch/multiprocessing/spawn.py", line 90, in _wrap
    fn(i, *args)
%s
"""
CAUGHT = "Caught ValueError in DataLoader worker process 1"
LOADER_TRACE = CAUGHT + '.\nOriginal Traceback (most recent call last):\n  File "w.py", line 3, in f\n    x()\n%s\n'


@pytest.mark.parametrize(
    ("kind", "message", "line"),
    [
        ("ValueError", "\n \nno such layer\nof 3", "no such layer"),
        ("ValueError", "\n", ""),
        (SPAWNED, CHILD_TRACE % "KeyError: 7", "KeyError: 7"),
        (SPAWNED, CHILD_TRACE % "RuntimeError: CUDA error\nit may be another call", "RuntimeError: CUDA error"),
        (SPAWNED, CHILD_TRACE % "train.Stop", "train.Stop"),
        ("ValueError", LOADER_TRACE % "ValueError: bad sample\nof 3\n", f"{CAUGHT}: ValueError: bad sample"),
        ("ValueError", f"{CAUGHT}.", f"{CAUGHT}."),
    ],
)
def test_an_exception_is_told_by_the_line_that_names_it(kind: str, message: str, line: str) -> None:
    (failure,) = worker_failures(Told().died(5, raised=f"{kind}: {message}").evidence)
    assert failure.text == (f"{kind}: {line}" if line else kind) + " (train.py:81)"


def test_who_was_killed_for_want_of_memory_and_who_was_not_is_said() -> None:
    known = (Told().died(5, signal=SIGKILL, oom_kills=kills) for kills in (1, 0))
    told = [*known, Told().died(5, signal=SIGKILL)]
    assert [worker_failures(one.evidence)[0].text for one in told] == [
        "killed by the kernel's out-of-memory killer (SIGKILL)",
        "killed by SIGKILL",
        "killed by SIGKILL, often the out-of-memory killer",
    ]


def test_a_worker_whose_parent_was_killed_is_to_blame_and_its_peers_are_not() -> None:
    node = Told(workers=2).died(5, raised=RESET).died(5.5, local=1, signal=SIGKILL, orphan=True).evidence
    first, second = worker_failures(node)
    assert (first.rank, first.kind, first.curable) == (1, OWN, True)
    assert first.text == "its parent process (clusterddp's) was killed by SIGKILL"
    assert (second.rank, second.kind) == (0, LOST_PEER)


def test_a_killed_shim_is_to_blame_where_an_order_ends_the_agent_a_moment_later() -> None:
    """On a quick machine another host's failure has the agent ended within BEFORE of the shim's death."""
    node = Told(workers=2).died(5, raised=RESET).died(5.01, local=1, signal=SIGKILL, orphan=True)
    first, _ = worker_failures(node.ended("stopped", 5.16, ordered=5.15, agent=143).evidence)
    assert (first.rank, first.kind) == (1, OWN)


def test_a_shim_that_goes_with_its_agent_is_not_to_blame() -> None:
    node = Told(workers=1).died(5.01, signal=SIGKILL, orphan=True)
    (failure,) = worker_failures(node.ended("failed", 5.0, agent=137).evidence)
    assert failure.kind == ENDED


WARNED = "/opt/torch/saver.py:448: UserWarning: Detected an existing checkpoint\n  plan = writer.prepare(plan)\n"


@pytest.mark.parametrize(
    ("stderr", "text"),
    [
        (WARNED, "exit code 7"),
        (f"no data for epoch 3\n{WARNED}", "exit code 7: no data for epoch 3"),
        (f"{WARNED}no data for epoch 3\n", "exit code 7: no data for epoch 3"),
        (f"{WARNED}  no data for epoch 3\n", "exit code 7: no data for epoch 3"),
    ],
)
def test_a_warning_is_no_reason_of_an_exit(stderr: str, text: str) -> None:
    (failure,) = worker_failures(Told().died(5, code=7, stderr=stderr).evidence)
    assert failure.text == text


SOCKET = "[W1128 18:01:02.1 socket.cpp:755] [c10d] The client socket has failed to connect to [gpu00]:29500 (errno: 97)"
DESTROY = "[rank1]:[W1128 18:01:02.1 ProcessGroupNCCL.cpp:1250] Warning: process group has NOT been destroyed: Error"


@pytest.mark.parametrize("warned", [SOCKET, DESTROY, "[W ProcessGroupNCCL.cpp:125] Connection refused"])
def test_a_warning_of_torch_is_neither_a_reason_nor_a_known_message(warned: str) -> None:
    said = f"{warned}\nno data for epoch 3\n{warned}\n"
    (told,) = worker_failures(Told().died(5, code=7, stderr=said).evidence)
    assert told.text == "exit code 7: no data for epoch 3"
    assert told.output.rstrip() == f"{told.text}\n\nno data for epoch 3"
    (told,) = worker_failures(Told().died(5, signal=SIGABRT, stderr=said).evidence)
    assert (told.kind, warned in told.output) == (OWN, False)


RAISED = 'Traceback (most recent call last):\n  File "/home/u/train.py", line %d, in step\n    x()\nValueError: %s\n'
BETWEEN = "\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.mark.parametrize(
    "ignored",
    [
        "Exception ignored in: <function Loader.__del__ at 0x7f>\n" + RAISED % (3, "gone"),
        "Exception ignored in atexit callback: <f>\n" + RAISED % (3, "gone") + BETWEEN + RAISED % (4, "gone too"),
        "Exception ignored while flushing sys.stdout:\nBrokenPipeError: [Errno 32] Broken pipe\n",
    ],
)
def test_an_exception_that_python_ignored_is_no_reason_of_an_exit(ignored: str) -> None:
    (told,) = worker_failures(Told().died(5, code=1, stderr=RAISED % (12, "bad rate") + ignored).evidence)
    assert (told.text, told.location) == ("exit code 1: ValueError: bad rate (train.py:12)", "train.py:12")
    (told,) = worker_failures(Told().died(5, code=1, stderr="no data\n" + ignored).evidence)
    assert (told.text, told.location, told.kind) == ("exit code 1: no data", "", OWN)


def test_a_scripts_own_words_of_ignored_exceptions_hide_no_traceback() -> None:
    said = "Exception ignored 3 times, now giving up\n" + RAISED % (12, "bad rate")
    (told,) = worker_failures(Told().died(5, code=1, stderr=said).evidence)
    assert told.text == "exit code 1: ValueError: bad rate (train.py:12)"


def test_a_printed_traceback_gives_the_users_own_frame() -> None:
    said = """Traceback (most recent call last):
  File "/home/u/work/train.py", line 12, in <module>
    main()
  File "/home/u/env/lib/python3.11/site-packages/torch/nn/module.py", line 99, in __call__
    raise ValueError
ValueError: bad shape
"""
    (failure,) = worker_failures(Told().died(5, code=9, stderr=said).evidence)
    assert (failure.text, failure.location) == ("exit code 9: ValueError: bad shape (train.py:12)", "train.py:12")


@pytest.mark.parametrize(
    ("signal", "stderr", "text"),
    [
        (SIGABRT, "terminate called\n  what():  bad_alloc\nframe #0\n", "killed by SIGABRT: bad_alloc"),
        (SIGABRT, "python: x.cc:3: f(): Assertion `n > 0' failed.\n", "killed by SIGABRT: python: x.cc:3: f(): Assert"),
        (SIGSEGV, "", "killed by SIGSEGV"),
        (SIGKILL, "what():  of before", "killed by SIGKILL, often the out-of-memory killer"),
    ],
)
def test_a_crash_is_told_with_its_last_words(signal: int, stderr: str, text: str) -> None:
    (failure,) = worker_failures(Told().died(5, signal=signal, stderr=stderr).evidence)
    assert failure.text.startswith(text)


@pytest.mark.parametrize("length", [10, 280, 400, 9000])
def test_of_a_long_message_the_middle_is_cut_never_its_end_nor_the_location(length: int) -> None:
    said = f"expected {'x' * length} on all ranks. GLHF!"
    (raised,) = worker_failures(Told().died(5, raised=f"RuntimeError: {said}").evidence)
    (printed,) = worker_failures(Told().died(5, code=7, stderr=f"RuntimeError: {said}\n").evidence)
    whole = f"RuntimeError: {said} (train.py:81)"
    if len(whole) <= MAX_TEXT:
        assert raised.text == whole
    else:
        assert len(raised.text) == MAX_TEXT
        assert raised.text.startswith("RuntimeError: expected xxx")
        assert raised.text.endswith("xxx on all ranks. GLHF! (train.py:81)")
        assert raised.text.count("…") == printed.text.count("…") == 1
    assert printed.text.startswith("exit code 7: RuntimeError: expected xxx")
    assert printed.text.endswith(" on all ranks. GLHF!")


def test_a_peer_that_went_away_is_known_by_the_middle_of_a_long_message() -> None:
    (failure,) = worker_failures(Told().died(5, raised=f"RuntimeError: {'x' * 200} recvBytes {'y' * 200}").evidence)
    assert ("recvBytes" in failure.text, failure.kind) == (False, LOST_PEER)


def test_a_crash_has_a_location_where_the_script_has_faulthandler_on() -> None:
    said = """Fatal Python error: Segmentation fault

Current thread 0x00007f3a (most recent call first):
  File "/opt/env/lib/python3.11/site-packages/ext/__init__.py", line 3 in call
  File "/home/u/work/train.py", line 81 in step
  File "/home/u/work/train.py", line 90 in <module>
"""
    (failure,) = worker_failures(Told().died(5, signal=SIGSEGV, stderr=said).evidence)
    assert failure.text == "killed by SIGSEGV: Segmentation fault (train.py:81)"


REFUSED = "ConnectionError: Connection refused; the defaults are used\n"
THROWN = "terminate called after throwing an instance of 'c10::%s'\n  what():  %s\n"
ON_GPU = "Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered"


@pytest.mark.parametrize(
    ("stderr", "kind"),
    [
        (REFUSED + THROWN % ("Error", "bad_alloc"), OWN),
        (REFUSED + "python: x.cc:3: f(): Assertion `n > 0' failed.\n", OWN),
        (THROWN % ("DistBackendError", f"[PG ID 0 Rank 1] {ON_GPU}"), OWN),
        (f"[rank1]:[E626 06:24:44 ProcessGroupNCCL.cpp:616] {ON_GPU}\n" + THROWN % ("DistBackendError", ON_GPU), OWN),
        (THROWN % ("Error", "Connection reset by peer"), LOST_PEER),
        (THROWN % ("Error", "[pair.cc:547]\nrecvBytes"), LOST_PEER),
        (REFUSED + "[rank1]:[F626 ProcessGroupNCCL.cpp:1557] due to ProcessGroupNCCL watchdog hang.\n", LOST_PEER),
        (f"{RESET}\nterminate called without an active exception\n", LOST_PEER),
    ],
)
def test_an_abort_is_the_fault_of_a_peer_only_where_the_crash_says_so(stderr: str, kind: int) -> None:
    (failure,) = worker_failures(Told().died(5, signal=SIGABRT, stderr=stderr).evidence)
    assert failure.kind == kind
    dumped = stderr + "Fatal Python error: Aborted\n\nCurrent thread 0x00007f3a (most recent call first):\n"
    (with_faulthandler,) = worker_failures(Told().died(5, signal=SIGABRT, stderr=dumped).evidence)
    assert (with_faulthandler.kind, with_faulthandler.text) == (kind, failure.text)


def test_class_comes_before_time() -> None:
    node = Told(workers=2).died(5, raised=RESET).died(5.5, local=1, code=3).evidence
    assert [failure.rank for failure in worker_failures(node)] == [1, 0]


class TestToldToEnd:
    """The shim says which signals it passed on and when: evidence in place of guesses."""

    @pytest.mark.parametrize("ended", [{"signal": SIGTERM}, {"code": 9}, {"raised": "SystemExit: told"}])
    def test_what_came_after_is_no_cause(self, ended: dict[str, Any]) -> None:
        (failure,) = worker_failures(Told().died(5, signals_received=[[SIGTERM, at(4.9)]], **ended).evidence)
        assert failure.kind == ENDED

    def test_an_exception_before_it_is(self) -> None:
        (failure,) = worker_failures(
            Told()
            .died(5, raised="ValueError: x", raised_at=4.8, signals_received=[[SIGTERM, at(4.9)]], signal=SIGTERM)
            .evidence
        )
        assert (failure.kind, failure.exit_code) == (OWN, 1)

    def test_another_signal_than_was_sent_is_somebody_elses(self) -> None:
        (failure,) = worker_failures(Told().died(5, signal=SIGKILL, signals_received=[[SIGTERM, at(4.9)]]).evidence)
        assert (failure.kind, failure.curable) == (OWN, True)

    def test_a_signal_from_outside_is_a_cause(self) -> None:
        (failure,) = worker_failures(Told().died(5, signal=SIGTERM, signals_received=[]).evidence)
        assert (failure.kind, failure.curable) == (OWN, True)

    def test_the_end_of_an_agent_that_was_stopped_later_explains_nothing(self) -> None:
        told = Told().died(5, signal=SIGKILL, signals_received=[]).stopped(5.4, "another host failed", ordered=5.3)
        assert worker_failures(told.evidence)[0].kind == OWN

    def test_what_our_supervisor_ends_after_an_agents_death_was_ended_though_the_shim_had_not_heard(self) -> None:
        told = Told().died(5.01, signal=SIGTERM, signals_received=[]).failed(5.0, agent=137)
        assert worker_failures(told.evidence)[0].kind == ENDED

    def test_a_worker_that_went_with_its_agent_was_ended(self) -> None:
        told = Told().died(5.01, signal=SIGKILL, signals_received=[[SIGKILL, at(5)]]).failed(5.0, agent=137)
        assert worker_failures(told.evidence)[0].kind == ENDED


def test_earlier_failures_are_told_apart_and_what_torchrun_ended_then_is_left_out() -> None:
    told = Told(workers=2).died(2, raised="ValueError: early").died(2.2, local=1, signal=SIGTERM)
    told.start(2, number=1, seconds=3)
    told.died(9, start=1, local=1, code=4)
    assert [failure.text for failure in recovered_failures(told.evidence)] == ["ValueError: early (train.py:81)"]
    assert [failure.text for failure in worker_failures(told.evidence)] == ["exit code 4"]


class TestNode:
    def test_one_that_lives_or_ended_well_has_no_cause(self) -> None:
        assert node_cause(Told().died(5, code=1).evidence) is None
        assert node_cause(Told().succeeded(5).evidence) is None

    def test_one_ended_by_an_order_has_none(self) -> None:
        assert node_cause(Told().died(5, signal=SIGTERM).stopped(6, "by a user", ordered=4).evidence) is None

    def test_what_failed_before_the_order_counts(self) -> None:
        cause = node_cause(Told().died(3, raised="ValueError: x").stopped(6, "another host failed", ordered=4).evidence)
        assert cause == (False, "rank 0: ValueError: x (train.py:81)")

    def test_a_fault_that_would_come_again_outweighs_an_earlier_kill(self) -> None:
        told = Told(workers=2).died(5, signal=SIGKILL).died(5.1, local=1, raised="ValueError: x").failed(6)
        cause = node_cause(told.evidence)
        assert cause is not None
        assert not cause.curable

    @pytest.mark.parametrize(
        ("told", "curable"),
        [
            (Told().died(5, raised=RESET).failed(6), True),
            (Told().died(5.1, signal=SIGKILL).failed(5, agent=137), True),
            (Told().died(5, signal=SIGTERM).failed(6, log=CHILD_FAILED), True),
            (Told(workers=0).failed(6, log="ModuleNotFoundError: No module named 'torch'"), False),
            (Told(workers=0).failed(6, log="torch.distributed.DistNetworkError: timed out"), True),
            (Told(workers=0).failed(6), False),
        ],
    )
    def test_its_agents_end_is_judged_too(self, told: Told, curable: bool) -> None:  # noqa: FBT001
        cause = node_cause(told.evidence)
        assert cause is not None
        assert cause.curable is curable


def test_a_worker_that_the_stall_guard_killed_says_so() -> None:
    told = Told().died(5, signal=SIGKILL, pid=42)
    told.event("stalled", 4, reason="stalled: rank 0 did not join", start=0, local_rank=0, pid=42)
    (failure,) = worker_failures(told.evidence)
    assert (failure.cause, failure.text, failure.curable) == (SIGNAL, BY_STALL_GUARD, True)
    told.event("worker_exited", 6, start=0, local_rank=1, rank=1, exit_code=137, signal=9, pid=43)
    assert worker_failures(told.evidence)[1].text.startswith("killed by SIGKILL")


@pytest.mark.parametrize(
    "error",
    [
        "ncclRemoteError: a call failed",
        "NCCL error in ProcessGroupNCCL.cpp:1970, remote process exited or there was a network error",
        "first line\n[PG 0 Rank 1] NCCL: process group Watchdog ended",
    ],
)
def test_what_nccl_says_of_a_lost_peer(error: str) -> None:
    assert is_lost_peer(f"RuntimeError: {error}")


def test_a_remote_process_on_a_line_before_nccls_name_is_no_lost_peer() -> None:
    assert not is_lost_peer("the watchdog barks at a remote process: NCCL\nremote process")


IGNORED = "Exception ignored in\nTraceback (most recent call last):\n "


@pytest.mark.parametrize(
    "piece", ["NCCL ", ": Assertion ", "\n", " ", '\nFile "', "what():", "Timed out waiting 1", IGNORED]
)
@pytest.mark.parametrize("end", [SIGABRT, SIGSEGV])
def test_no_text_that_a_job_chooses_takes_long(piece: str, end: int) -> None:
    text = "Fatal Python error: x\n" + piece * (400_000 // len(piece))
    told = Told().died(5, signal=end, stderr=text).evidence
    began = time.process_time()
    worker_failures(told)
    assert time.process_time() - began < 5
