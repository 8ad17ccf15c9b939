"""The judge of hangs: each kind of hang as a few words, and real traces of torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.processes.trace_decoder import read_waits
from clusterddp.remote.shared.collectives.hang_judge import (
    ADVANCING,
    BEFORE_FIRST,
    DEVICE,
    ENDED,
    HUNG,
    MISSING,
    OTHER_OPERATION,
    OTHER_ORDER,
    OTHER_ROOT,
    OTHER_SHAPE,
    TRANSPORT,
    UNDECIDED,
    WAITING,
    Finding,
    describe,
    judge,
    wrong_result,
)
from clusterddp.remote.shared.collectives.trace_records import Operation, WorkerTrace
from clusterddp.remote.shared.schema.record import read_records
from tests.unit.remote.processes.traces_made import ONE_WAIT, STEPS
from tests.unit.remote.shared.collectives.traces_made import look, worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REAL = sorted((Path(__file__).parents[4] / "data" / "hangs").glob("*.json"))
Case = tuple[int, dict[int, str], str, "str | None", tuple[int, ...], dict[str, Any]]  # world, ranks, state, …

# name: (ranks of the world, what each says, state, class, ranks to blame, more of the finding)
CASES: dict[str, Case] = {
    "missing": (
        3, {0: "ar4 ar4*", 1: "ar4", 2: "ar4 ar4*"}, HUNG, MISSING, (1,),
        {"waiting": (0, 2), "sequence": 2, "group": "default", "notes": ()},
    ),
    "missing, at work": (3, {0: "ar4 ar4*", 1: "[busy] ar4", 2: "ar4 ar4*"}, WAITING, MISSING, (1,), {}),
    "missing, reads a file": (3, {0: "ar4 ar4*", 1: "[io] ar4", 2: "ar4 ar4*"}, WAITING, MISSING, (1,), {}),
    "missing, waiters at work": (3, {0: "[busy] ar4 ar4*", 1: "ar4", 2: "ar4 ar4*"}, HUNG, MISSING, (1,), {}),
    "missing from the first": (2, {0: "ar4*", 1: ""}, HUNG, MISSING, (1,), {}),
    "two missing": (4, {0: "ar4 ar4*", 1: "ar4", 2: "ar4", 3: "ar4 ar4*"}, HUNG, MISSING, (1, 2), {"notes": ()}),
    "one iteration more": (3, {0: "ar4 ar4*", 1: "ar4", 2: "ar4"}, HUNG, MISSING, (1, 2), {"notes": ("loop",)}),
    "asynchronous": (2, {0: "ar4 ar4* ar4* ar4*", 1: "ar4"}, HUNG, MISSING, (1,), {"sequence": 2}),
    "never waited for": (2, {0: "ar4* ar4", 1: "ar4* ar4"}, UNDECIDED, None, (), {"notes": ("nobody-waits",)}),
    "missing in a store": (3, {0: "ar4*", 1: "[store:TCPStore__get]", 2: "ar4*"}, HUNG, MISSING, (1,), {}),
    "other operation": (
        3, {0: "ar4 ba*", 1: "ar4 ar4*", 2: "ar4 ar4*"}, HUNG, OTHER_OPERATION, (0,),
        {"waiting": (1, 2), "others": ((0, "barrier"),), "notes": ()},
    ),
    "other operation that ended": (3, {0: "ar4 ba ar4*", 1: "ar4 ar4*", 2: "ar4 ar4*"}, HUNG, OTHER_OPERATION, (0,), {
        "notes": ("loop",),
    }),
    "tie": (
        2, {0: "ar4 ba*", 1: "ar4 ar4*"}, HUNG, OTHER_OPERATION, (0, 1),
        {"others": ((0, "barrier"), (1, "all_reduce (float32 [4])")), "notes": ("tie",), "waiting": ()},
    ),
    "tie of two, and one more": (
        5, {0: "ba*", 1: "ba*", 2: "ar4*", 3: "ar4*", 4: "br4*"}, HUNG, OTHER_OPERATION, (0, 1, 2, 3, 4), {},
    ),
    "a branch while others have not come": (4, {0: "ba*", 1: "ar4*", 2: "", 3: ""}, HUNG, OTHER_OPERATION, (0, 1), {}),
    "other shape": (
        3, {0: "ar4 ar4", 1: "ar4 ar5*", 2: "ar4 ar4 ba*"}, HUNG, OTHER_SHAPE, (1,), {"sequence": 2, "waiting": (0, 2)},
    ),
    "other shape of a broadcast": (3, {0: "br4*", 1: "br4*", 2: "br5*"}, HUNG, OTHER_SHAPE, (2,), {}),
    "all_gather has any shapes": (3, {0: "ag4 ar4*", 1: "ag5", 2: "ag6 ar4*"}, HUNG, MISSING, (1,), {"mismatch": None}),
    "other order": (
        3,
        {
            0: "0: ar4 | 1/a: ar4 | 2/b: ar4 ar4*", 1: "0: ar4 | 1/a: ar4 ar4* | 2/b: ar4",
            2: "0: ar4 | 1/a: ar4 ar4* | 2/b: ar4",
        },
        HUNG, OTHER_ORDER, (0, 1, 2),
        {"others": (
            (0, "all_reduce (float32 [4]) of group b"), (1, "all_reduce (float32 [4]) of group a"),
            (2, "all_reduce (float32 [4]) of group a"),
        )},
    ),
    "other order, while one sleeps": (
        3, {0: "1: ar4 ar4* | 2: ar4", 1: "1: ar4 | 2: ar4 ar4*", 2: "1: ar4 | 2: ar4"}, HUNG, OTHER_ORDER, (0, 1), {},
    ),
    "ring": (
        3, {0: "1: ar4 ar4* | 3: ar4", 1: "1: ar4 | 2: ar4 ar4*", 2: "2: ar4 | 3: ar4 ar4*"},
        HUNG, OTHER_ORDER, (0, 1, 2), {},
    ),
    "other order of first operations": (
        3, {0: "1: ar4*", 1: "2: ar4*", 2: "2: ar4*"}, HUNG, OTHER_ORDER, (0, 1, 2), {"notes": ("members",)},
    ),
    "nested": (
        4,
        {0: "ar4 ar4* | 1/dp: ar4", 1: "ar4 ar4* | 1/dp: ar4", 2: "ar4 | 2/tp: ar4 ar4*", 3: "ar4 | 2/tp: ar4"},
        HUNG, MISSING, (3,), {"group": "tp", "waiting": (2,), "behind": (0, 1), "notes": ("chain",)},
    ),
    "nested, members not seen": (
        4, {0: "ar4 ar4*", 1: "ar4 ar4*", 2: "ar4 | 2/tp: ar4*", 3: "ar4"},
        HUNG, MISSING, (3,), {"group": "default", "waiting": (0, 1), "behind": (2,)},
    ),
    "a chain of three": (
        4, {0: "ar4 ar4*", 1: "ar4 | 1: ar4 ar4*", 2: "ar4 | 1: ar4 | 2: ar4 ar4*", 3: "ar4 | 2: ar4"},
        HUNG, MISSING, (3,), {"group": "2", "waiting": (2,), "behind": (0, 1)},
    ),
    "missing in two groups": (
        4, {0: "1: ar4 ar4*", 1: "1: ar4", 2: "2: ar4 ar4*", 3: "2: ar4"},
        HUNG, MISSING, (1,), {"notes": ("chain", "more"), "behind": (2,)},
    ),
    "missing in two groups, both from the default group": (
        5, {
            0: "ar4 ar4*", 1: "ar4 | 1: ar4 ar4*", 2: "ar4 | 1: ar4", 3: "ar4 | 2: ar4 ar4*", 4: "ar4 | 2: ar4",
        },
        HUNG, MISSING, (2, 4), {"group": "default", "waiting": (0,), "behind": (1, 3)},
    ),
    "subgroup": (3, {0: "ar4", 1: "ar4 | 1: ar4 ar4*", 2: "ar4 | 1: ar4"}, HUNG, MISSING, (2,), {"notes": ()}),
    "subgroup's first": (3, {0: "ar4", 1: "ar4", 2: "ar4 | 1/tp: ar4*"}, UNDECIDED, None, (), {
        "notes": ("members",), "waiting": (2,), "group": "tp",
    }),
    "subgroup's first of two ranks": (2, {0: "ar4 | 1: ar4*", 1: "ar4"}, HUNG, MISSING, (1,), {}),
    "subgroup that two have called": (3, {0: "1: ar4*", 1: "1: ar4*", 2: ""}, UNDECIDED, None, (), {}),
    "described by the user": (2, {0: "0/mine: ar4 ar4*", 1: "0/mine: ar4"}, HUNG, MISSING, (1,), {"group": "mine"}),
    "made again": (
        2, {0: "0: ar4 ar4 ar4 | 0: ar4 ar4*", 1: "0: ar4 ar4 ar4 | 0: ar4"}, HUNG, MISSING, (1,), {"sequence": 2},
    ),
    "made again by one": (2, {0: "0: ar4 | 0: ar4*", 1: "0: ar4"}, HUNG, MISSING, (1,), {"sequence": 1}),
    "init_process_group": (
        3, {0: "[store:TCPStore__wait c10d.init_process_group]", 1: "", 2: "[store:TCPStore__wait]"},
        HUNG, BEFORE_FIRST, (1,),
        {"waiting": (0, 2), "operation": Operation("c10d.init_process_group", "", "")},
    ),
    "init_process_group, first batch": (2, {0: "[store:TCPStore__wait]", 1: "[busy]"}, WAITING, BEFORE_FIRST, (1,), {}),
    "init_process_group, one not started": (2, {0: "[store:TCPStore__wait]"}, WAITING, BEFORE_FIRST, (1,), {}),
    "new_group on some": (3, {0: "ar4", 1: "[store:new] ar4", 2: "[store:new] ar4"}, HUNG, BEFORE_FIRST, (0,), {}),
    "new_group on one": (3, {0: "ar4", 1: "ar4", 2: "[store:new] ar4"}, HUNG, BEFORE_FIRST, (0, 1), {
        "notes": ("alone",),
    }),
    "new_group in a branch": (
        3, {0: "[store:new] ar4", 1: "[store:new] ar4", 2: "ar4 ba*"}, HUNG, OTHER_OPERATION, (2,),
        {"waiting": (0, 1), "others": ((2, "barrier"),), "operation": Operation("new", "", "")},
    ),
    "new_group in a branch, a tie": (
        2, {0: "[store:new] ar4", 1: "ar4 ba*"}, HUNG, OTHER_OPERATION, (0, 1), {"notes": ("tie",)},
    ),
    "new_group of a few in a branch": (
        3, {0: "[store:c10d.new_group] ar4", 1: "ar4 ba*", 2: "ar4 ba*"}, HUNG, OTHER_OPERATION, (0, 1, 2),
        {"notes": ("members",), "others": ((0, "c10d.new_group"), (1, "barrier"), (2, "barrier"))},
    ),
    "new_group in a branch, one sleeps": (4, {
        0: "[store:new] ar4", 1: "[store:new] ar4", 2: "ar4 ba*", 3: "ar4",
    }, HUNG, MISSING, (3,), {}),
    "all in a store": (2, {0: "[store:TCPStore__wait]", 1: "[store:TCPStore__wait]"}, UNDECIDED, None, (), {}),
    "from key to key": (2, {0: "[store:TCPStore__wait+4]", 1: "[store:TCPStore__get]"}, ADVANCING, None, (), {}),
    "from key to key, others in an operation": (
        3, {0: "ar4 ar4*", 1: "[store:TCPStore__wait+1] ar4", 2: "ar4 ar4*"}, WAITING, MISSING, (1,), {},
    ),
    "from key to key, beside a thread that waits": (
        2, {0: "ar4*", 1: "[store:TCPStore__get+2 TCPStore__wait]"}, WAITING, MISSING, (1,), {},
    ),
    "new_group, which asks the store again and again": (
        3, {0: "ar4", 1: "[store:TCPStore__wait+6 c10d.new_group] ar4", 2: "[store:c10d.new_group] ar4"},
        HUNG, BEFORE_FIRST, (0,), {"waiting": (1, 2), "operation": Operation("c10d.new_group", "", "")},
    ),
    "an operation, beside a thread that goes from key to key": (
        2, {0: "[store:TCPStore__wait+2] ar4*", 1: ""}, HUNG, MISSING, (1,), {},
    ),
    "transport": (3, {0: "ar4 ar4*", 1: "ar4 ar4*", 2: "ar4 ar4*"}, HUNG, TRANSPORT, (0, 1, 2), {}),
    "transport, some ended": (3, {0: "ar4 ar4*", 1: "ar4 ar4", 2: "ar4 ar4*"}, HUNG, TRANSPORT, (0, 2), {}),
    "large": (2, {0: "[io] ar4*", 1: "[io] ar4*"}, WAITING, TRANSPORT, (0, 1), {}),
    "other root": (
        3, {0: "br4 br4*", 1: "br4 br4 ba*", 2: "br4 br4*"}, HUNG, OTHER_ROOT, (0, 1, 2),
        {"waiting": (0, 2), "notes": ("root",), "behind": (1,)},
    ),
    "rooted, none ended": (2, {0: "br4*", 1: "br4*"}, HUNG, TRANSPORT, (0, 1), {"notes": ("root",)}),
    "device": (2, {0: "ar4 ar4>", 1: "ar4 ar4>"}, HUNG, DEVICE, (0, 1), {}),
    "NCCL's own recorder": (
        3, {0: "0/default_pg: ar4 | 0 nccl/default_pg: ar4 ar4>", 1: "0/default_pg: ar4", 2: "0/default_pg: ar4"},
        HUNG, MISSING, (1, 2), {"group": "default"},
    ),
    "device, one does not start": (3, {0: "ar4>", 1: "ar4*", 2: "ar4>"}, HUNG, DEVICE, (1,), {}),
    "stopped": (3, {0: "ar4 ar4*", 1: "[stopped]", 2: "ar4 ar4*"}, HUNG, MISSING, (1,), {"notes": ("silent",)}),
    "no answer of a host": (4, {0: "ar4 ar4*", 1: "ar4 ar4*"}, HUNG, MISSING, (2, 3), {"notes": ("silent",)}),
    "no answer, and one missing": (
        4, {0: "ar4 ar4*", 1: "ar4", 2: "[dumb]", 3: "ar4 ar4*"}, HUNG, MISSING, (1,), {"notes": ("silent",)},
    ),
    "no answer before the first": (3, {0: "[store:a]", 1: "[dumb]", 2: ""}, HUNG, BEFORE_FIRST, (2,), {}),
    "no traces": (2, {0: "[dumb]", 1: "[dumb]"}, UNDECIDED, None, (), {"notes": ("no-traces",)}),
    "no workers": (2, {}, UNDECIDED, None, (), {"notes": ("no-traces",)}),
    "nobody waits": (2, {0: "ar4", 1: "ar4"}, UNDECIDED, None, (), {"notes": ("nobody-waits",)}),
    "all compute": (2, {0: "[busy] ar4", 1: "ar4"}, ADVANCING, None, (), {}),
    "all start": (2, {0: "[busy]", 1: ""}, WAITING, None, (), {}),
    "world not known": (0, {0: "ar4*", 1: "ar4*"}, UNDECIDED, None, (), {"notes": ("world",), "waiting": (0, 1)}),
    "world not known, one missing": (0, {0: "ar4 ar4*", 1: "ar4"}, HUNG, MISSING, (1,), {"notes": ("world",)}),
    "world too small": (2, {0: "ar4*", 1: "ar4*", 2: ""}, UNDECIDED, None, (), {"notes": ("world",)}),
    "cut": (2, {0: "@90 ar4 ar4 ar4*", 1: "@60 ar4 ar5 ar6 | 1: ar4"}, HUNG, MISSING, (1,), {"mismatch": None}),
    "cut, all there": (2, {0: "@99 ar4 ar4*", 1: "@1 br4 | 1: ar4"}, HUNG, MISSING, (1,), {"mismatch": None}),
    "more groups than are sent": (
        2, {0: "ar4*", 1: " | ".join(f"{number}: ar4" for number in range(1, 10))}, HUNG, TRANSPORT, (0,), {},
    ),
}  # fmt: skip


def judged(world: int, ranks: Mapping[int, str], after: Mapping[int, str] | None = None) -> Finding:
    return judge(range(world), look(ranks), look(ranks if after is None else after, second=True))


@pytest.mark.parametrize("name", CASES)
def test_each_kind_is_told(name: str) -> None:
    world, ranks, state, kind, blamed, more = CASES[name]
    finding = judged(world, ranks)
    assert (finding.state, finding.kind, finding.ranks) == (state, kind, blamed), finding
    assert {field: getattr(finding, field) for field in more} == more, finding


LATER: dict[str, tuple[dict[int, str], dict[int, str], str, str | None, tuple[int, ...]]] = {
    "all go on": ({0: "ar4*", 1: ""}, {0: "ar4 ar4*", 1: "ar4"}, ADVANCING, None, ()),
    "only one goes on": ({0: "ar4", 1: "ar4"}, {0: "ar4 ar4*", 1: "ar4"}, ADVANCING, None, ()),
    "it came": ({0: "ar4*", 1: ""}, {0: "ar4", 1: "ar4"}, ADVANCING, None, ()),
    "the missing works in another group": (
        {0: "ar4 ar4*", 1: "ar4 | 1: ar4"}, {0: "ar4 ar4*", 1: "ar4 | 1: ar4 ar4"}, WAITING, MISSING, (1,),
    ),
    "one more waits now": ({0: "ar4*", 1: "", 2: ""}, {0: "ar4*", 1: "ar4*", 2: ""}, HUNG, MISSING, (2,)),
    "started anew": ({0: "ar4 ar4*", 1: "ar4"}, {0: "[start:1] ar4 ar4*", 1: "[start:1] ar4"}, UNDECIDED, None, ()),
    "one started anew": ({0: "ar4 ar4*", 1: "ar4"}, {0: "ar4 ar4*", 1: "[start:1] ar4"}, UNDECIDED, None, ()),
    "no answer at first": ({0: "[dumb]", 1: "[dumb]"}, {0: "ar4 ar4*", 1: "ar4"}, UNDECIDED, None, ()),
    "no answer later": ({0: "ar4*", 1: "ar4*", 2: ""}, {0: "ar4*", 1: "[dumb]", 2: ""}, HUNG, MISSING, (2,)),
    "a wait at the store that another follows": (
        {0: "ar4*", 1: "[store:TCPStore__get]"}, {0: "ar4*", 1: "[store:TCPStore__wait]"}, WAITING, MISSING, (1,),
    ),
    "stopped later": ({0: "ar4*", 1: "ar4*"}, {0: "ar4*", 1: "[stopped]"}, HUNG, MISSING, (1,)),
}  # fmt: skip


@pytest.mark.parametrize("name", LATER)
def test_a_second_look_may_differ(name: str) -> None:
    before, after, state, kind, blamed = LATER[name]
    finding = judged(len(before), before, after)
    assert (finding.state, finding.kind, finding.ranks) == (state, kind, blamed), finding


@pytest.mark.parametrize(("answers", "state"), [(STEPS, WAITING), (ONE_WAIT, HUNG)], ids=["many waits", "one wait"])
def test_many_short_waits_at_the_store_are_told_from_a_long_one(answers: Sequence[bytes], state: str) -> None:
    """By what torch's counters say."""
    waits = [read_waits(answer) for answer in answers]
    assert [[*active] for active in waits] == [["TCPStore__wait"]] * 2
    looks = [
        [*look({0: "ar4 ar4*", 2: "ar4 ar4*"}), worker(1, "ar4")._replace(waits=(*active,), calls=(*active.values(),))]
        for active in waits
    ]
    finding = judge(range(3), *looks)
    assert (finding.state, finding.kind, finding.ranks) == (state, MISSING, (1,))


def test_a_mismatch_is_told_though_the_run_advances() -> None:
    before = {0: "ar4 ar4 ar4", 1: "ar4 ar5 ar4", 2: "ar4 ar4 ar4"}
    finding = judged(3, before, {rank: text + " ar4" for rank, text in before.items()})
    assert (finding.state, finding.kind) == (ADVANCING, None)
    assert finding.mismatch
    assert finding.mismatch[1:6] == (OTHER_SHAPE, (1,), (0, 2), "default", 2)
    assert finding.mismatch.others == ((1, "all_reduce (float32 [5])"),)


def test_operations_under_way_that_differ_in_an_advancing_run_are_not_told_yet() -> None:
    assert judged(2, {0: "ar4", 1: "ar4"}, {0: "ar4 ar4*", 1: "ar4 ar5*"}) == Finding(ADVANCING)


def test_a_mismatch_that_all_got_over_is_not_the_cause() -> None:
    finding = judged(3, {0: "ar4 ar4 ar4*", 1: "ar5 ar4 ar4*", 2: "ar4 ar4"})
    assert (finding.kind, finding.ranks) == (MISSING, (2,))
    assert finding.mismatch
    assert finding.mismatch.ranks == (1,)


def test_a_mismatch_since_which_nothing_agreed_is_the_cause() -> None:
    finding = judged(3, {0: "ar4 ar4*", 1: "ba ar4*", 2: "ar4 ar4*"})
    assert (finding.state, finding.kind, finding.ranks, finding.sequence) == (HUNG, OTHER_OPERATION, (1,), 1)


def test_who_called_one_more_is_to_blame_not_the_majority() -> None:
    finding = judged(3, {0: "ar8 ar4 ar4*", 1: "ar4 ar4", 2: "ar4 ar4"})
    assert (finding.kind, finding.ranks, finding.sequence) == (OTHER_SHAPE, (0,), 1)


def test_a_rank_that_has_ended_while_others_wait_for_it_is_to_blame_and_known_to_have_ended() -> None:
    texts = {0: "ar4 ar4*", 1: "ar4", 2: "ar4 ar4*"}
    looks = [look(texts), look(texts, second=True)]
    first, second = ([trace._replace(state="") if trace.rank == 1 else trace for trace in each] for each in looks)
    finding = judge(range(3), first, second)
    assert (finding.state, finding.kind, finding.ranks, finding.sequence) == (HUNG, MISSING, (1,), 2)
    assert ENDED in finding.notes
    assert ENDED not in judge(range(3), *looks).notes


def test_a_group_whose_first_life_one_rank_has_lost_is_matched_by_age() -> None:
    old, new = "0: @1998 ar4 ar4", "0: ar4 ar4*"
    before = [*look({0: f"{old} | {new}"}), worker(1, f"9: ar4 | {new}"), worker(2, f"{old} | 0: ar4")]
    after = [*look({0: f"{old} | {new}"}, second=True), worker(1, f"9: ar4 | {new}", second=True)]
    finding = judge(range(3), before, [*after, worker(2, f"{old} | 0: ar4", second=True)])
    assert (finding.kind, finding.ranks, finding.sequence) == (MISSING, (2,), 2)


def test_two_that_say_they_are_one_rank_are_not_believed() -> None:
    def seen(*texts: str) -> list[WorkerTrace]:
        return [*look({0: "ar4 ar4*", 2: "ar4 ar4*"}), *(worker(1, text) for text in texts)]

    lying = seen("ar4", "ar4 ar4*")
    for both in (lying, lying[::-1]):
        finding = judge(range(3), both, both)
        assert (finding.state, finding.ranks, finding.notes) == (UNDECIDED, (), ("twice",))
    twice_the_same = seen("ar4", "ar4")
    assert judge(range(3), twice_the_same, twice_the_same).ranks == (1,)
    older = seen("ar4 ar4*", "[start:1] ar4")
    assert judge(range(3), older, older).ranks == (1,)


def test_clocks_that_differ_change_nothing() -> None:
    ranks = {0: "ar4 ar4*", 1: "ar4", 2: "ar4 ar4*"}
    before, after = look(ranks), look(ranks, second=True)
    for trace in (*before, *after):
        for row in trace.groups[0].entries:
            row[3] = row[3] * trace.rank  # as if rank 0's clock stood far back
    finding = judge(range(3), before, after)
    assert (finding.kind, finding.ranks, finding.waiting) == (MISSING, (1,), (0, 2))


# What a thread of the rank that is missing does, of a waiting rank and of the missing one: hung or not
THREADS: dict[str, tuple[str, str, str]] = {
    "the main thread gets data": ("", "[main:read+1]", WAITING),
    "the main thread gets no data": ("", "[main:read]", HUNG),
    "the main thread polls": ("", "[main:sleep+100]", HUNG),
    "a thread that the main one waits for sends": ("", "[main:lock] [thread:read+1]", WAITING),
    "a thread that the main one waits for goes on now and then": ("", "[main:lock] [thread:sleep+10]", WAITING),
    "a thread that the main one waits for sleeps": ("", "[main:lock] [thread:sleep]", HUNG),
    "a monitor": ("", "[main:lock] [thread:sleep+1]", HUNG),
    "a thread that all ranks have": ("[main:lock] [thread:sleep+10]", "[main:lock] [thread:sleep+11]", HUNG),
    "the main thread waits for nobody": ("", "[main:read] [thread:read+10]", HUNG),
}


@pytest.mark.parametrize("name", THREADS)
def test_what_a_thread_is_woken_for_tells_whether_its_rank_goes_on(name: str) -> None:
    waiting, missing, state = THREADS[name]
    finding = judged(3, {0: f"{waiting} ar4 ar4*", 1: f"{missing} ar4", 2: f"{waiting} ar4 ar4*"})
    assert (finding.state, finding.kind, finding.ranks) == (state, MISSING, (1,))


def test_a_thread_that_waits_otherwise_at_the_second_look_tells_nothing() -> None:
    others = {0: "ar4 ar4*", 2: "ar4 ar4*"}
    finding = judged(3, {**others, 1: "[main:sleep+9] ar4"}, {**others, 1: "[main:read+9] ar4"})
    assert (finding.state, finding.ranks) == (HUNG, (1,))


def test_an_operation_in_words() -> None:
    assert describe(Operation("barrier", "", "")) == "barrier"


# Real traces of torch: {world, before, after, expected: {field: value}}


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_real_traces(path: Path) -> None:
    case = json.loads(path.read_text())
    before, after = (read_records(WorkerTrace, case[look], look) for look in ("before", "after"))
    finding = judge(range(case["world"]), before, after)
    found = json.loads(json.dumps({name: getattr(finding, name) for name in case["expected"]}))
    assert found == case["expected"], finding


def test_there_are_real_traces_of_many_kinds() -> None:
    assert len(REAL) >= 12


WRONG_RESULTS: dict[str, tuple[dict[int, str], tuple[tuple[int, ...], int] | None]] = {
    "another size": ({0: "ar4 ar4 ar4", 1: "ar4 ar5 ar4", 2: "ar4 ar4 ar4"}, ((1,), 2)),
    "of a subgroup": ({0: "ar4", 1: "ar4 | 1: ar4", 2: "ar4 | 1: ar5"}, ((1, 2), 1)),
    "any sizes of all_gather": ({0: "ag4", 1: "ag5", 2: "ag4"}, None),
    "all agree": ({0: "ar4 ba", 1: "ar4 ba", 2: "ar4 ba"}, None),
    "not finished": ({0: "ar4 ar5*", 1: "ar4 ar4*", 2: "ar4 ar4*"}, None),
    "a rank says nothing": ({0: "ar4 ar4", 2: "ar4 ar5"}, ((0, 2), 2)),
    "nobody says anything": ({}, None),
}


@pytest.mark.parametrize("case", WRONG_RESULTS)
def test_a_run_that_is_over_may_have_had_a_wrong_result(case: str) -> None:
    ranks, expected = WRONG_RESULTS[case]
    found = wrong_result(range(3), look(ranks))
    assert (found and (found.ranks, found.sequence)) == expected
