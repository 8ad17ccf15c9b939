"""What `why` says beside its sentence: the evidence, what is not known, and whose stacks it takes."""

from __future__ import annotations

import pytest

from clusterddp.remote.shared.collectives import hang_sentence, stack_judge
from clusterddp.remote.shared.collectives.hang_judge import (
    ADVANCING,
    DEVICE,
    HUNG,
    OTHER_OPERATION,
    OTHER_SHAPE,
    TRANSPORT,
    UNDECIDED,
    WAITING,
    Finding,
)
from tests.unit.remote.shared.collectives.evidence_made import (
    BARRIER,
    FOUR,
    FOURTH,
    HOSTS,
    REDUCE,
    STEP,
    VALIDATE,
    evidence,
    in_operation,
    missing,
    others,
    stack,
    trace,
)


def test_workers_that_do_not_tell_are_named_with_the_reason() -> None:
    too_old = "it has not loaded torch.distributed, or this torch has no server for traces"
    known = evidence(
        Finding(UNDECIDED, notes=("no-traces",)),
        [stack(0, VALIDATE)],
        [trace(rank, why=too_old) for rank in (0, 1)],
    )
    assert hang_sentence.sentence("night", known) == (
        f"run night: its workers do not say which operations they are in: {too_old}"
    )
    assert hang_sentence.lines(known) == [
        "rank 0 (gpu00:0): waiting, at train.py:7 in validate",
        f"no traces of ranks 0-1: {too_old}",
    ]
    nobody = evidence(Finding(UNDECIDED), [], [])
    assert hang_sentence.sentence("night", nobody) == "run night: no worker is there yet, or no host answers"


def test_ranks_of_a_host_that_does_not_answer_are_named_by_it() -> None:
    finding = missing(2, 3)._replace(notes=("silent",))
    known = evidence(finding, [stack(0, *STEP)], [in_operation(0), in_operation(1)], silent=["gpu01"])
    assert hang_sentence.sentence("night", known) == (
        f"ranks 2-3 (gpu01) did not join {FOURTH}: what they do is not known; ranks 0-1 wait"
        " at train.py:10 since 14 min"
    )
    alone = evidence(missing(2), [], [trace(0)], silent=["gpu01"])
    assert hang_sentence.sentence("night", alone).startswith("rank 2 (gpu01) did not join all_reduce #4")
    assert hang_sentence.lines(known)[1:] == [
        "gpu01 does not answer",
        "a rank that says nothing of itself counts as missing",
    ]


def test_a_stack_that_came_by_the_signal_and_one_that_did_not_come_are_told() -> None:
    known = evidence(
        missing(1),
        [stack(0, *STEP, source="faulthandler"), stack(1, why="it is stopped (SIGSTOP)")],
        [trace(0), trace(1)],
    )
    by_signal = " (stack by signal, without py-spy: it may have ended a blocking C call early, EINTR)"
    assert hang_sentence.lines(known) == [
        f"rank 0 (gpu00:0): in all_reduce, at train.py:10 in step{by_signal}",
        "rank 1 (gpu00:1): waiting (no stack: it is stopped (SIGSTOP))",
    ]


def test_code_outside_the_workdir_has_its_whole_path() -> None:
    known = evidence(missing(1), [stack(1, ("/home/alice/lib/kit.py", 5, "wait"))])
    assert hang_sentence.place(known, 1) == "/home/alice/lib/kit.py:5 in wait"


def test_only_a_hang_has_a_remedy() -> None:
    assert hang_sentence.remedy(missing(1))
    assert hang_sentence.remedy(missing(1)._replace(state=WAITING)) is None
    assert hang_sentence.remedy(Finding(ADVANCING)) is None


def test_stacks_are_taken_of_each_suspect_and_of_one_of_each_group_of_waiters() -> None:
    traces = [in_operation(0), trace(1), in_operation(2), in_operation(3, BARRIER, 2, "tp")]
    assert stack_judge.ranks_to_look_at(missing(1), traces, 8) == [1, 0, 3]
    tie = Finding(HUNG, OTHER_OPERATION, **others((0, "a"), (1, "a"), (2, "b"), (3, "b")), **FOUR)
    assert stack_judge.ranks_to_look_at(tie, [trace(rank) for rank in HOSTS], 3) == [0, 2, 1]
    everybody = Finding(HUNG, TRANSPORT, (0, 1, 2, 3), (0, 1, 2, 3), **FOUR)
    assert stack_judge.ranks_to_look_at(everybody, [in_operation(rank) for rank in HOSTS], 8) == [0]
    nobody = Finding(UNDECIDED, notes=("nobody-waits",))
    assert stack_judge.ranks_to_look_at(nobody, traces[1:2], 8) == [1]


MISMATCH = Finding(
    ADVANCING,
    OTHER_SHAPE,
    (1,),
    (0, 2, 3),
    group="default",
    sequence=3,
    operation=REDUCE,
    others=((1, "all_reduce (int32 [4])"),),
)
WRONG = (
    "but with a wrong result: rank 1 (gpu00:1) called all_reduce (int32 [4]) as #3 of group default, ranks 0,2-3 called"
    " all_reduce (float32 [4])"
)


def test_a_wrong_result_of_a_run_that_goes_on_is_told() -> None:
    known = evidence(Finding(ADVANCING, mismatch=MISMATCH))
    assert hang_sentence.sentence("night", known) == f"run night advances, {WRONG}"
    assert hang_sentence.remedy(known.finding) == hang_sentence.remedy(MISMATCH._replace(state=HUNG))


def test_a_wrong_result_before_a_hang_and_those_who_wait_behind_are_evidence() -> None:
    known = evidence(missing(1)._replace(waiting=(0,), behind=(2, 3), mismatch=MISMATCH, notes=("chain", "more")))
    assert hang_sentence.lines(known) == [
        "ranks 2-3 wait elsewhere, because of these",
        f"the run went on before, {WRONG}",
        "ranks that are not named are missing in other groups",
    ]


def test_a_gpu_that_did_not_begin_is_named_of_those_that_did() -> None:
    known = evidence(Finding(HUNG, DEVICE, (2,), (0, 1, 2, 3), **FOUR), [stack(0, *STEP)])
    assert hang_sentence.sentence("night", known) == (
        f"all ranks called {FOURTH}, but the GPU of rank 2 (gpu01:0) did not begin it; ranks 0-3 wait at train.py:10"
        " since 14 min"
    )


@pytest.mark.parametrize(
    ("finding", "said"),
    [
        (Finding(UNDECIDED, notes=("restarted",)), "its workers were started anew between the two looks: ask again"),
        (Finding(UNDECIDED, notes=("world",)), "the number of its ranks is not known"),
        (Finding(UNDECIDED), "what its ranks do is not known"),
        (
            Finding(UNDECIDED, waiting=(0, 2), notes=("members",), **{**FOUR, "group": "tp"}),
            "it is not known for whom ranks 0,2 wait since 14 min in all_reduce #4 of group tp (float32 [4])",
        ),
    ],
)
def test_what_is_undecided_says_why(finding: Finding, said: str) -> None:
    assert hang_sentence.sentence("night", evidence(finding)) == f"run night: {said}"
