"""The judge of hangs: whatever workers say, it answers, and blames ranks of the world alone."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterddp.remote.shared.collectives import hang_sentence, stack_judge
from clusterddp.remote.shared.collectives.hang_judge import ADVANCING, HUNG, UNDECIDED, WAITING, judge
from clusterddp.remote.shared.collectives.trace_records import GroupTrace, Operation, ThreadWait, WorkerTrace
from clusterddp.remote.shared.processes.process_records import StackReport
from clusterddp.remote.shared.processes.worker_stacks import WorkerStack, build_stack

OPERATIONS = st.sampled_from(
    [Operation("all_reduce", "[4]", "a"), Operation("barrier", "", "b"), Operation("", "", "c")]
)
ROWS = st.tuples(st.integers(0, 3), st.just(0), st.integers(0, 2), st.integers(0, 9)).map(list)
GROUPS = st.builds(
    GroupTrace,
    st.sampled_from(["0", "1", ""]),
    st.sampled_from(["default_pg", ""]),
    st.integers(0, 2),
    st.lists(OPERATIONS, min_size=1, max_size=3).map(tuple),
    st.lists(ROWS, max_size=4),
)
THREADS = st.builds(
    ThreadWait, st.sampled_from([7, 8]), st.sampled_from(["lock", "sleep", "read", ""]), st.integers(0, 9)
)
WORKERS = st.builds(
    WorkerTrace,
    st.integers(0, 4),
    st.just(0),
    st.sampled_from([0, 0, 0, 1]),
    st.just(7),
    st.sampled_from(["S", "T", ""]),
    st.just(""),
    st.integers(0, 99),
    st.integers(0, 99),
    st.just(()),
    st.lists(st.sampled_from(["TCPStore__wait", "b"]), max_size=2).map(tuple),
    st.lists(GROUPS, max_size=3).map(tuple),
    st.sampled_from(["", "", "", "no"]),
    st.lists(THREADS, max_size=3).map(tuple),
    st.lists(st.integers(0, 2), max_size=3).map(tuple),
)
STACKS = st.builds(
    build_stack,
    st.sampled_from(["a", "b"]),
    st.builds(
        StackReport,
        st.integers(0, 4), st.just(0), st.just(0), st.just(7), st.sampled_from(["S", "T", ""]), st.just(""),
        st.sampled_from(["py-spy", "faulthandler", ""]),
        st.sampled_from(['[{"frames": null}]', '[{"frames": [{"filename": "a.py", "line": 1, "name": "f"}]}]', "{}"])
        | st.just('Thread 0x1 (most recent call first):\n  File "a", line %s in f\n' % ("9" * 5000)),
        st.just(""),
    ),
)  # fmt: skip
LOOKS = st.lists(WORKERS, max_size=6)
WORLDS = st.integers(0, 4).map(range)


def idle(look: list[WorkerTrace]) -> list[WorkerTrace]:
    """The workers, none of which waits."""
    groups = [
        tuple(group._replace(entries=[[*row[:2], 2, *row[3:]] for row in group.entries]) for group in trace.groups)
        for trace in look
    ]
    return [trace._replace(waits=(), groups=of_one) for trace, of_one in zip(look, groups, strict=True)]


@settings(max_examples=150)
@given(world=WORLDS, before=LOOKS, after=LOOKS)
def test_whatever_is_said_those_to_blame_are_ranks_of_the_world(
    world: range, before: list[WorkerTrace], after: list[WorkerTrace]
) -> None:
    finding = judge(world, before, after)
    seen = {trace.rank for trace in (*before, *after)}
    for found in (finding, finding.mismatch or finding):
        assert {*found.ranks, *found.waiting, *found.behind} <= ({*world} or seen)
    assert finding.state in (ADVANCING, WAITING, HUNG, UNDECIDED)
    assert finding.state != HUNG or finding.ranks


@settings(max_examples=150)
@given(world=WORLDS, before=LOOKS, after=LOOKS, stacks=st.lists(STACKS, max_size=4))
def test_whatever_is_said_there_is_a_sentence(
    world: range, before: list[WorkerTrace], after: list[WorkerTrace], stacks: list[WorkerStack]
) -> None:
    finding = judge(world, before, after)
    chosen = stack_judge.ranks_to_look_at(finding, after, 8)
    assert {*chosen} <= {*world, *(trace.rank for trace in (*before, *after))}
    evidence = stack_judge.Evidence(
        finding, {trace.rank: trace for trace in after}, {0: "a", 1: "b"}, {stack.rank: stack for stack in stacks}
    )
    evidence = evidence._replace(finding=stack_judge.refine(evidence))
    assert hang_sentence.sentence("r", evidence)
    assert all(hang_sentence.lines(evidence))


@settings(max_examples=100)
@given(world=WORLDS, looks=st.tuples(LOOKS, LOOKS), random=st.randoms(use_true_random=False))
def test_the_order_of_workers_does_not_matter(
    world: range, looks: tuple[list[WorkerTrace], list[WorkerTrace]], random: Any
) -> None:
    shuffled = [random.sample(look, len(look)) for look in looks]
    assert judge(world, *looks) == judge(world, *shuffled)


@settings(max_examples=100)
@given(world=WORLDS, look=LOOKS)
def test_where_nobody_waits_nothing_is_hung(world: range, look: list[WorkerTrace]) -> None:
    assert judge(world, idle(look), idle(look)).state != HUNG
