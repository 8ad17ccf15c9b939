"""What `why` says: a finding and the stacks of a few ranks → one exact sentence, for every class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.shared.collectives import hang_sentence, stack_judge
from clusterddp.remote.shared.collectives.hang_judge import (
    ADVANCING,
    BEFORE_FIRST,
    DEVICE,
    ENDED,
    HUNG,
    MISSING,
    NO_TRACES,
    NOBODY_WAITS,
    OTHER_OPERATION,
    OTHER_ORDER,
    OTHER_ROOT,
    OTHER_SHAPE,
    TRANSPORT,
    UNDECIDED,
    WAITING,
    Finding,
)
from clusterddp.remote.shared.collectives.stack_judge import POINT_TO_POINT
from clusterddp.remote.shared.collectives.trace_records import LOCK, READ, ThreadWait
from clusterddp.remote.shared.processes.worker_stacks import StackFrame
from tests.unit.remote.shared.collectives.evidence_made import (
    BROADCAST,
    FOUR,
    FOURTH,
    INIT,
    LOADER,
    PYTHON,
    REDUCE,
    SLEEP,
    STEP,
    TORCH,
    VALIDATE,
    WORKDIR,
    evidence,
    in_operation,
    missing,
    others,
    stack,
    trace,
)

if TYPE_CHECKING:
    from clusterddp.remote.shared.collectives.trace_records import WorkerTrace
    from clusterddp.remote.shared.processes.worker_stacks import WorkerStack


def test_the_sentence_of_the_issue() -> None:
    finding = missing(1)._replace(waiting=(0, 2, 3))
    known = evidence(finding, [stack(1, VALIDATE, LOADER), stack(0, *STEP)], [in_operation(0), trace(1)])
    assert hang_sentence.sentence("night", known) == (
        f"rank 1 (gpu00:1) did not join {FOURTH}: it is in validate, train.py:7,"
        " waiting for its data loader; ranks 0,2-3 wait at train.py:10 since 14 min"
    )
    assert hang_sentence.place(known, 1) == "train.py:7 in validate"
    assert hang_sentence.lines(known) == [
        f"rank 0 (gpu00:0): in {FOURTH}, at train.py:10 in step",
        "rank 1 (gpu00:1): waiting for its data loader, at train.py:7 in validate",
    ]


SPOOL = "/home/alice/.clusterddp/runs/r/1/0-gpu00"
DEBUGGER = (
    (f"{SPOOL}/hook/sitecustomize.py", 288, "breakpointhook"),
    (f"{SPOOL}/hook/rank_debugger.py", 70, "readline"),
    (f"{PYTHON}/queue.py", 1, "get"),
)
SELECT = (f"{PYTHON}/multiprocessing/connection.py", 1136, "wait")
ABSENT = f"rank 1 (gpu00:1) did not join {FOURTH}: it is "
WAIT = "; ranks 0,2-3 wait at train.py:10 since 14 min"


@pytest.mark.parametrize(
    ("frames", "state", "doing"),
    [
        ((SLEEP,), {}, "in read, data/read.py:3, waiting"),
        ((SLEEP,), {"state": "R"}, "in read, data/read.py:3, at work"),
        ((), {}, "at train.py:20, waiting"),
        (
            (VALIDATE, (f"{PYTHON}/threading.py", 629, "wait")),
            {},
            "in validate, train.py:7, waiting for a lock or a thread",
        ),
        ((VALIDATE, (f"{PYTHON}/queue.py", 171, "get")), {}, "in validate, train.py:7, waiting for a thread"),
        (
            (VALIDATE, (f"{PYTHON}/subprocess.py", 1264, "wait")),
            {"children": ("tar", "gzip")},
            "in validate, train.py:7, waiting for a child (tar, gzip)",
        ),
        (
            (VALIDATE, (f"{PYTHON}/multiprocessing/connection.py", 250, "recv")),
            {},
            "in validate, train.py:7, waiting for another process",
        ),
        (
            (VALIDATE, (f"{PYTHON}/http/client.py", 250, "read"), (f"{PYTHON}/socket.py", 718, "readinto")),
            {},
            "in validate, train.py:7, waiting for the network",
        ),
        (
            (VALIDATE, LOADER, (f"{PYTHON}/multiprocessing/queues.py", 113, "get"), SELECT),
            {},
            "in validate, train.py:7, waiting for its data loader",
        ),
        (
            (VALIDATE, LOADER, (f"{PYTHON}/queue.py", 180, "get"), (f"{PYTHON}/threading.py", 331, "wait")),
            {},
            "in validate, train.py:7, waiting for its data loader",
        ),
        (
            (VALIDATE, LOADER, (f"{WORKDIR}/data/read.py", 3, "__getitem__"), (f"{PYTHON}/ssl.py", 1, "read")),
            {},
            "in __getitem__, data/read.py:3, waiting for the network",
        ),
        ((SLEEP,), {"state": "T", "why": "it is stopped (SIGSTOP)"}, "in read, data/read.py:3, stopped (SIGSTOP)"),
        ((SLEEP,), {"state": "D", "wchan": "rpc_wait"}, "in read, data/read.py:3, in uninterruptible sleep (rpc_wait)"),
        (
            (SLEEP,),
            {"state": "D"},
            "in read, data/read.py:3, in uninterruptible sleep (a disk or a file server)",
        ),
        ((SLEEP,), {"waits": ("TCPStore__wait",)}, "in read, data/read.py:3, waiting in TCPStore.wait"),
    ],
)
def test_what_a_missing_rank_does_instead(frames: Any, state: dict[str, Any], doing: str) -> None:
    known = evidence(missing(1), [stack(1, *frames), stack(0, *STEP)], [trace(0), trace(1, **state)])
    assert hang_sentence.sentence("night", known) == f"{ABSENT}{doing}{WAIT}"


def test_a_missing_rank_that_has_ended_is_told_to_have_ended() -> None:
    finding = missing(1, notes=(ENDED,))
    traces = [in_operation(0), trace(1, state=""), in_operation(2), in_operation(3)]
    known = evidence(finding, [stack(0, *STEP)], traces)
    said = hang_sentence.sentence("night", known)
    assert said.startswith(f"rank 1 (gpu00:1) did not join {FOURTH}: it has ended; ranks 0,2-3 wait at train.py:10")
    assert "rank 1 (gpu00:1): has ended" in hang_sentence.lines(known)
    assert "same number of steps" in (hang_sentence.remedy(known.finding) or "")
    assert stack_judge.ranks_to_look_at(known.finding, traces, 8) == [0]


def test_a_missing_rank_at_a_breakpoint_is_no_hang_and_debug_helps() -> None:
    known = evidence(missing(1), [stack(1, VALIDATE, *DEBUGGER), stack(0, *STEP)])
    assert known.finding.state == WAITING
    assert hang_sentence.sentence("night", known) == (
        f"rank 1 (gpu00:1) has not joined {FOURTH}: it is in validate, train.py:7, at a breakpoint(){WAIT}"
    )
    assert hang_sentence.remedy(known.finding) == DEBUG_IT
    two = evidence(missing(1, 3), [stack(1, VALIDATE, *DEBUGGER), stack(3, SLEEP), stack(0, *STEP)])
    assert two.finding.state == HUNG  # the other one does something else


STOPPED = (VALIDATE, *DEBUGGER)
DEBUG_IT = "`clusterddp debug 1` attaches pdb, and the rank goes on when you leave"
NOWHERE = ", and no rank waits in a collective operation"


@pytest.mark.parametrize(
    ("stacks", "said", "helps"),
    [
        ([stack(0, SLEEP), stack(1, *STOPPED)], "rank 1 (gpu00:1) stands at a breakpoint() at train.py:7", 1),
        ([stack(1, *STOPPED), stack(2, *STOPPED)], "ranks 1-2 stand at a breakpoint() at train.py:7", 2),
        ([stack(0, SLEEP, *DEBUGGER), stack(1, *STOPPED)], "ranks 0-1 (gpu00) stand at a breakpoint()", 2),
    ],
)
@pytest.mark.parametrize(
    "finding", [Finding(UNDECIDED, notes=(NOBODY_WAITS,)), Finding(UNDECIDED, notes=(NO_TRACES,)), Finding(WAITING)]
)
def test_ranks_at_breakpoints_are_named_where_nobody_waits_for_them(
    finding: Finding, stacks: list[WorkerStack], said: str, helps: int
) -> None:
    known = evidence(finding, stacks)
    assert (known.finding.state, known.finding.kind) == (WAITING, None)
    assert hang_sentence.sentence("night", known) == said + NOWHERE
    several = "`clusterddp debug` lists the ranks at breakpoints, and `clusterddp debug RANK` attaches pdb to one"
    assert hang_sentence.remedy(known.finding) == (DEBUG_IT if helps == 1 else several)


def test_a_run_that_advances_is_not_at_a_breakpoint() -> None:
    known = evidence(Finding(ADVANCING), [stack(1, VALIDATE, *DEBUGGER)])
    assert known.finding == Finding(ADVANCING)


def test_a_missing_rank_that_holds_pythons_lock_asleep_is_told() -> None:
    holding = stack(1, SLEEP)._replace(holds_gil=True)
    asleep = evidence(missing(1), [holding, stack(0, *STEP)])
    said = "in read, data/read.py:3, holding Python's lock (GIL) in a C call"
    assert hang_sentence.sentence("night", asleep) == f"{ABSENT}{said}{WAIT}"
    computes = evidence(missing(1), [holding, stack(0, *STEP)], [trace(0), trace(1, state="R")])
    assert hang_sentence.sentence("night", computes) == f"{ABSENT}in read, data/read.py:3, at work{WAIT}"


@pytest.mark.parametrize(
    ("finding", "stacks", "said"),
    [
        (
            missing(1, 3),
            [stack(3, VALIDATE), stack(0, *STEP)],
            (
                f"ranks 1,3 did not join {FOURTH}: rank 3 is in validate, train.py:7,"
                " waiting; ranks 0,2 wait at train.py:10 since 14 min"
            ),
        ),
        (
            missing(0, 1, 2),
            [],
            (f"ranks 0-2 did not join {FOURTH}: rank 0 is waiting; rank 3 waits since 14 min"),
        ),
        (
            missing(1)._replace(state=WAITING, since_us=4 * 10**6),
            [stack(1, VALIDATE), stack(0, *STEP)],
            (
                f"rank 1 (gpu00:1) has not joined {FOURTH}: it is in validate,"
                " train.py:7, at work; ranks 0,2-3 wait at train.py:10 since 4 s"
            ),
        ),
        (
            Finding(HUNG, BEFORE_FIRST, (2,), (0, 1, 3), operation=INIT),
            [stack(2, VALIDATE), stack(0, (f"{WORKDIR}/train.py", 12, "main"))],
            (
                "rank 2 (gpu01:0) did not come to init_process_group: it is in validate,"
                " train.py:7, waiting; ranks 0-1,3"
                " wait at train.py:12"
            ),
        ),
        (
            Finding(HUNG, OTHER_OPERATION, **others((2, "barrier")), waiting=(0, 1, 3), **FOUR),
            [stack(2, VALIDATE), stack(0, *STEP)],
            (
                "rank 2 (gpu01:0) called barrier as #4 of group default (at train.py:7), ranks 0-1,3 called all_reduce"
                " (float32 [4]) at train.py:10 since 14 min"
            ),
        ),
        (
            Finding(HUNG, OTHER_OPERATION, **others((0, "barrier"), (2, "all_reduce (float32 [4])")), **FOUR),
            [stack(0, VALIDATE), stack(2, *STEP)],
            (
                "ranks 0,2 called barrier and all_reduce (float32 [4]) as #4 of group default (rank"
                " 0 at train.py:7; rank 2"
                " at train.py:10) since 14 min"
            ),
        ),
        (
            Finding(HUNG, OTHER_SHAPE, **others((3, "all_reduce (float32 [5])")), waiting=(0, 1, 2), **FOUR),
            [stack(3, VALIDATE), stack(0, *STEP)],
            (
                "rank 3 (gpu01:1) called all_reduce (float32 [5]) as #4 of group default (at"
                " train.py:7), ranks 0-2 called"
                " all_reduce (float32 [4]) at train.py:10 since 14 min"
            ),
        ),
        (
            Finding(
                HUNG,
                OTHER_ROOT,
                (0, 1, 2, 3),
                (0, 1, 2, 3),
                group="default",
                sequence=2,
                operation=BROADCAST,
                since_us=3 * 10**6,
                notes=("root",),
            ),
            [stack(0, *STEP)],
            (
                "all ranks called broadcast #2 of group default (float32 [4]), with different"
                " roots, it seems; ranks 0-3 wait"
                " at train.py:10 since 3 s"
            ),
        ),
        (
            Finding(
                HUNG,
                OTHER_ORDER,
                **others((0, "all_reduce (float32 [4]) of group a"), (1, "barrier of group b")),
                waiting=(0, 1),
                group="a",
                sequence=1,
                operation=REDUCE,
                since_us=5 * 10**6,
            ),
            [stack(0, *STEP), stack(1, VALIDATE)],
            (
                "ranks 0-1 (gpu00) wait for each other in different groups: rank 0 in all_reduce"
                " (float32 [4]) of group a at"
                " train.py:10; rank 1 in barrier of group b at train.py:7 since 5 s"
            ),
        ),
        (
            Finding(HUNG, TRANSPORT, (0, 1, 2, 3), (0, 1, 2, 3), **FOUR),
            [stack(0, *STEP)],
            (
                f"all ranks called {FOURTH}, but nothing arrives between them; ranks 0-3"
                " wait at train.py:10 since 14 min"
            ),
        ),
        (
            Finding(HUNG, DEVICE, (0, 1, 2, 3), (0, 1, 2, 3), **FOUR),
            [stack(0, *STEP)],
            (
                f"all ranks called {FOURTH}, but their GPUs do not complete it; ranks 0-3"
                " wait at train.py:10 since 14 min"
            ),
        ),
        (Finding(ADVANCING), [], "run night advances: no rank waits for another"),
        (
            Finding(UNDECIDED, notes=("nobody-waits",)),
            [stack(0, VALIDATE)],
            "run night: no rank waits in a collective operation, and none seems to do anything",
        ),
    ],
)
def test_the_sentence_of_each_class(finding: Finding, stacks: list[WorkerStack], said: str) -> None:
    assert hang_sentence.sentence("night", evidence(finding, stacks)) == said


def call(rank: int, name: str) -> WorkerStack:
    torch = f"{TORCH}/distributed"
    return stack(rank, VALIDATE, (f"{torch}/c10d_logger.py", 83, "wrapper"), (f"{torch}/distributed_c10d.py", 9, name))


def sleeping(rank: int, how: str) -> WorkerTrace:
    return trace(rank, threads=(ThreadWait(100 + rank, how, 1),))


def test_a_send_without_its_receive_is_seen_in_stacks_alone() -> None:
    ring = evidence(Finding(UNDECIDED, notes=("nobody-waits",)), [call(0, "send"), call(1, "recv")])
    assert (ring.finding.state, ring.finding.kind, ring.finding.ranks) == (HUNG, POINT_TO_POINT, (0, 1))
    assert hang_sentence.sentence("night", ring) == (
        "ranks 0-1 (gpu00) wait in a send or receive that nobody answers, at train.py:7"
    )
    others_wait = evidence(missing(1), [call(1, "recv"), stack(0, *STEP)])
    assert hang_sentence.sentence("night", others_wait) == (
        "rank 1 (gpu00:1) waits in a send or receive that nobody answers, at train.py:7; ranks 0,2-3 wait at"
        f" train.py:10 since 14 min in {FOURTH}"
    )
    assert evidence(missing(1), [call(1, "broadcast_object_list")]).finding.kind == MISSING


# What rank 1 does while rank 0 is in a call that gloo does not record: its stack, how it waits, who is to blame
OUTSIDE: dict[str, tuple[WorkerStack, str, tuple[int, ...]]] = {
    "sleeps": (stack(1, SLEEP), "sleep", (1,)),
    "reads": (stack(1, SLEEP), READ, (1,)),
    "waits for its loader": (stack(1, SLEEP, LOADER), LOCK, (1,)),
    "may be in a wait of torch's": (stack(1, SLEEP), LOCK, ()),
    "has no stack": (stack(1, why="it does not answer"), "sleep", ()),
    "in the same call": (call(1, "monitored_barrier"), LOCK, ()),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_rank_outside_a_call_that_is_not_recorded_is_missing_from_it(name: str) -> None:
    other, how, ranks = OUTSIDE[name]
    finding = Finding(UNDECIDED, notes=("nobody-waits",))
    known = evidence(finding, [call(0, "monitored_barrier"), other], [sleeping(0, LOCK), sleeping(1, how)])
    assert known.finding.ranks == ranks
    assert known.finding.state == (HUNG if ranks else UNDECIDED)
    if not ranks:
        assert hang_sentence.sentence("night", known).startswith("run night: it is not known for whom rank")


def test_a_call_that_is_not_recorded_is_named() -> None:
    finding = Finding(UNDECIDED, notes=("nobody-waits",))
    known = evidence(
        finding, [call(0, "monitored_barrier"), stack(1, SLEEP)], [sleeping(0, LOCK), sleeping(1, "sleep")]
    )
    assert hang_sentence.sentence("night", known) == (
        "rank 1 (gpu00:1) did not join monitored_barrier: it is in read, data/read.py:3, waiting; rank 0 waits"
        " at train.py:7"
    )
    assert hang_sentence.lines(known)[0] == "rank 0 (gpu00:0): in monitored_barrier, at train.py:7 in validate"


def test_where_a_script_has_ended_its_thread_is_the_place() -> None:
    frames = (StackFrame(file=f"{PYTHON}/threading.py", line=1590, function="_shutdown"),)
    threads = ((StackFrame(file=f"{WORKDIR}/train.py", line=15, function="upload"),),)
    known = evidence(missing(1), [stack(1)._replace(frames=frames, threads=threads)])
    assert hang_sentence.sentence("night", known) == (
        f"rank 1 (gpu00:1) did not join {FOURTH}: it is in upload, train.py:15, at the end of its script, which"
        " waits for its threads; ranks 0,2-3 wait since 14 min"
    )
