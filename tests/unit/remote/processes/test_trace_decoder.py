"""A worker's trace, which is what the user's code says: decoded whole or refused, and cut to its room."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.remote.processes import trace_decoder
from clusterddp.remote.processes.trace_decoder import (
    MAX_CONTAINERS,
    MAX_ENTRIES,
    MAX_GROUPS,
    MAX_NAME,
    MAX_WAITS,
    clean,
    cut_groups,
    mark_mismatches,
    read_groups,
    read_waits,
)
from clusterddp.remote.shared.collectives.trace_records import CREATED, DONE, LAST_ENTRIES, STARTED, GroupTrace
from clusterddp.remote.shared.schema.fields import DamagedError
from clusterddp.remote.shared.schema.json_text import to_json
from clusterddp.remote.shared.schema.record import read_record, to_fields
from tests.unit.json_values import VALUES
from tests.unit.remote.processes.traces_made import COUNTERS, DAMAGED, ENTRIES, NOW, TEXTS, entry, trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOM = 3800
SMALLEST = 1500  # in so many bytes of JSON one group fits, whatever its names


def cut(
    *entries: dict[str, Any], room: int = ROOM, beside: Sequence[Sequence[dict[str, Any]]] = ()
) -> list[GroupTrace]:
    """What is sent of a worker's trace where other workers of the host have the traces ``beside``."""
    workers = [read_groups(trace(*one)) for one in (entries, *beside)]
    mark_mismatches(workers)
    return list(cut_groups(workers[0], NOW, room))


def sequences(group: GroupTrace) -> list[int]:
    return [row[0] for row in group.entries]


def size(groups: Sequence[GroupTrace]) -> int:
    return len(to_json([to_fields(group) for group in groups]).encode())


def test_each_operation_is_told_with_how_far_it_is_and_its_age() -> None:
    entries = [
        entry(1, process_group=["0", "default_pg"]),
        entry(2, CREATED, "broadcast", input_sizes=[[4, 4], []], input_dtypes=["Half", "Odd"]),
        entry(3, STARTED, time_created_ns=NOW - 5_000),
        entry(4, state="completed", retired=False, time_created_ns=NOW + 5_000),
        entry(1, is_p2p=True, collective_seq_id=9),
        entry(1, CREATED, pg_id=1, process_group=["1"]),
    ]
    first, second = cut(*entries)
    assert (first.name, first.description, first.ident) == ("0", "default_pg", 0)
    assert [(one.name, one.shape) for one in first.operations] == [
        ("all_reduce", "float32 [4]"),
        ("broadcast", "float16 [4, 4], Odd []"),
    ]
    assert first.entries == [[1, 0, DONE, 999], [2, 1, CREATED, 999], [3, 0, STARTED, 5], [4, 0, DONE, 0]]
    assert (second.name, second.description, second.ident) == ("1", "", 1)


def test_a_worker_that_has_called_nothing_yet_has_no_groups() -> None:
    assert cut() == []
    assert read_groups(b'{"version":"2.10","nccl_comm_state":{}}') == ()  # as torch writes it


def test_of_entries_with_one_number_the_last_counts() -> None:
    # NCCL's coalesced operations: each has an entry that nobody completes, and the last is of all of them.
    (group,) = cut(entry(1, CREATED), entry(1, CREATED), entry(1, name="coalesced"))
    assert group.entries == [[1, 0, DONE, 999]]
    assert group.operations[0].name == "coalesced"


def test_equal_operations_have_equal_keys_and_others_have_not() -> None:
    def key(**changes: Any) -> str:
        return cut(entry(1, **changes))[0].operations[0].key

    assert key() == key(pg_id=5, time_created_ns=3, output_sizes=[[7]])
    long = [[4]] * 90
    different = [
        key(),
        key(name="broadcast"),
        key(input_sizes=[[5]]),
        key(input_dtypes=["Double"]),
        key(input_sizes=long),
        key(input_sizes=[*long, [5]]),
        key(profiling_name="gloo:" + "x" * 100),
        key(profiling_name="gloo:" + "x" * 101),
    ]
    assert len({*different}) == len(different)


def test_the_last_entries_of_a_long_group_are_sent() -> None:
    (group,) = cut(*(entry(number) for number in range(1, 2001)))
    assert sequences(group) == [*range(2001 - LAST_ENTRIES, 2001)]


def test_operations_that_wait_are_kept_before_finished_ones() -> None:
    waiting = {3, 50, *range(100, 150)}
    (group,) = cut(*(entry(number, CREATED if number in waiting else DONE) for number in range(1, 501)))
    rest = LAST_ENTRIES - len(waiting)
    assert sequences(group) == sorted({*waiting, *range(501 - rest, 501)})


def test_of_many_that_wait_the_oldest_and_the_newest_are_kept() -> None:
    (group,) = cut(*(entry(number, CREATED) for number in range(1, 501)))
    assert sequences(group) == [*range(1, LAST_ENTRIES), 500]


def test_with_little_room_each_group_keeps_its_own_most_important_ones() -> None:
    entries = [
        entry(number, CREATED if number == 5 else DONE, pg_id=ident, process_group=[str(ident), "x"])
        for ident in range(8)
        for number in range(1, 300)
    ]
    groups = cut(*entries, room=2500)
    assert len(groups) == 8
    counts = {len(group.entries) for group in groups}
    assert len(counts) == 1
    assert all({5, 299} <= {*sequences(group)} for group in groups)
    assert 2500 - 8 * 30 < size(groups) <= 2500


def test_of_many_groups_those_that_wait_come_first_then_the_newest() -> None:
    entries = [entry(1, pg_id=ident, process_group=[str(ident)], time_created_ns=ident) for ident in range(100)]
    entries[3] = entry(1, CREATED, pg_id=3, process_group=["3"], time_created_ns=3)
    assert [group.ident for group in cut(*entries, room=1 << 20)] == [3, *range(99, 100 - MAX_GROUPS, -1)]
    few = cut(*entries, room=SMALLEST)
    assert [group.ident for group in few] == [3, *range(99, 100 - len(few), -1)]
    assert cut(*entries, room=20) == cut(room=20) == []


@pytest.mark.parametrize(
    ("other", "mismatch"),
    [
        ({}, None),
        ({7: "broadcast"}, 7),
        ({9: "broadcast", 7: "barrier"}, 7),
        ({7: [[5]]}, 7),
        ({7: None}, None),
        ({7: None, 8: "barrier"}, 8),
    ],
)
def test_the_first_operation_in_which_the_workers_of_a_host_differ_is_kept(
    other: dict[int, Any], mismatch: int | None
) -> None:
    def changed(number: int) -> list[dict[str, Any]]:
        change = other.get(number, {})
        if change is None:
            return []
        one = {"name": change} if isinstance(change, str) else {"input_sizes": change} if change else {}
        return [entry(number, **one)]

    mine = [entry(number) for number in range(1, 501)]
    theirs = [one for number in range(1, 501) for one in changed(number)]
    third = [entry(number) for number in range(400, 501)]
    last = [*range(501 - LAST_ENTRIES, 501)]
    for first, *beside in ((mine, theirs, third), (theirs, mine, third)):
        assert sequences(cut(*first, beside=beside)[0]) == ([] if mismatch is None else [mismatch]) + last
    assert sequences(cut(*third, beside=[mine, theirs])[0]) == last
    assert mismatch is None or mismatch in sequences(cut(*mine, room=400, beside=[theirs])[0])


def test_shapes_that_may_differ_hide_no_mismatch_behind_them() -> None:
    mine = [entry(number, name="all_to_all", input_sizes=[[1]]) for number in range(1, 301)]
    theirs = [entry(number, name="all_to_all", input_sizes=[[2]]) for number in range(1, 301)]
    assert sequences(cut(*mine, beside=[theirs])[0])[0] == 1
    theirs[99] = entry(100, name="all_gather")
    assert sequences(cut(*mine, beside=[theirs])[0])[0] == 100


def test_groups_of_one_name_are_told_apart_by_their_order() -> None:
    # After destroy_process_group and init_process_group names begin anew; torch's own numbers differ between ranks.
    def worker(*idents: int, second: str) -> list[dict[str, Any]]:
        old = [entry(number, pg_id=idents[0]) for number in range(1, 200)]
        return [*old, *(entry(number, pg_id=idents[1], name=second) for number in range(1, 200))]

    mine = worker(0, 1, second="barrier")
    assert [sequences(group)[0] for group in cut(*mine, beside=[worker(0, 7, second="barrier")])] == [136, 136]
    assert sorted(sequences(group)[0] for group in cut(*mine, beside=[worker(3, 7, second="gather")])) == [1, 136]


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J\x07", "\ud800x", "\u202eabc", "a\0b", "\U0001f600" * 50, "g" * 9999])
def test_names_hold_nothing_that_a_terminal_obeys_and_are_short(name: str) -> None:
    odd: dict[str, Any] = {"process_group": [name, name], "profiling_name": f"gloo:{name}", "input_dtypes": [name]}
    (group,) = cut(entry(1, **odd), entry(2))[:1]
    texts = [group.name, group.description, group.operations[0].name, group.operations[0].shape]
    assert all(text.isprintable() and len(to_json(text)) - 2 <= MAX_NAME for text in texts)
    assert to_json(texts).encode().decode() == to_json(texts)


def test_long_names_that_differ_at_their_end_stay_different() -> None:
    groups = cut(*(entry(1, process_group=["g" * 500 + end]) for end in "ab"), room=1 << 20)
    assert len(groups) == 2
    assert len({group.name for group in groups}) == 2


@given(TEXTS, st.integers(1, 90))
def test_clean_text_is_printable_and_as_short_as_asked(text: str, most: int) -> None:
    shown = clean(text, most)
    assert shown.isprintable()
    assert len(to_json(shown)) - 2 <= most


@given(st.lists(st.lists(ENTRIES, max_size=30), min_size=1, max_size=3), st.integers(SMALLEST, 5000))
def test_whatever_the_trace_its_groups_fit_and_what_matters_is_among_them(
    workers: list[list[dict[str, Any]]], room: int
) -> None:
    read = [read_groups(trace(*entries)) for entries in workers]
    mark_mismatches(read)
    for groups in read:
        sent = cut_groups(groups, NOW, room)
        assert bool(sent) == bool(groups)
        assert size(sent) <= room
        recorded = {(group.name, group.ident): group for group in groups}
        for group in sent:
            assert read_record(GroupTrace, json.loads(to_json(to_fields(group))), "group") == group
            whole = recorded[group.name, group.ident]
            rows = {row[0]: row for row in group.entries}
            assert [*rows] == sorted(rows)
            assert max(whole.entries) in rows or len(rows) <= 2
            waiting = {number for number, one in whole.entries.items() if one.progress != DONE}
            finished = {number for number in rows if number not in waiting} - {max(whole.entries), whole.mismatch}
            assert not finished or waiting <= {*rows}
            assert whole.mismatch is None or whole.mismatch in rows
            for number, (_, index, progress, age) in rows.items():
                assert group.operations[index] == whole.entries[number].operation
                assert progress == whole.entries[number].progress
                assert 0 <= age <= NOW // 1000


def read_or_refuse(read: Callable[[bytes], object], text: bytes) -> object:
    """What is read; of what is refused the reason, which is short."""
    try:
        return read(text)
    except DamagedError as error:
        return str(error)[:1000]


@given(st.lists(DAMAGED | VALUES, max_size=4))
def test_a_damaged_entry_is_refused_or_read_and_nothing_else(entries: list[Any]) -> None:
    found = read_or_refuse(lambda text: size(cut_groups(read_groups(text), NOW, ROOM)), trace(*entries))
    assert len(found) < 300 if isinstance(found, str) else found


@given(VALUES | st.dictionaries(st.text(max_size=3) | st.sampled_from([*COUNTERS]), VALUES, max_size=3))
def test_any_json_is_counters_or_a_trace_or_refused(value: Any) -> None:
    for one in (value, {"entries": value}):
        for read in (read_waits, read_groups):
            found = read_or_refuse(read, json.dumps(one).encode())
            assert len(found) < 300 if isinstance(found, str) else isinstance(found, (tuple, dict))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b'{"entries":{}}',
        b'{"entries":[' + b"[" * 99 + b"]" * 99 + b"]}",
        b'{"entries":[' + b"[" * 100_000,
        b'{"entries":[' + b"{}," * MAX_CONTAINERS + b"{}]}",
        b'{"entries":[' + b"1," * MAX_ENTRIES + b"1]}",
        b'{"entries":[],"entries":[]}',
        trace(entry(1, collective_seq_id=1 << 63)),
        trace(entry(1, collective_seq_id=-1)),
        trace(entry(1, collective_seq_id=1.5)),
        trace(entry(1)).replace(b'"op_id":1', b'"op_id":' + b"9" * 10_000),
        trace(entry(1, time_created_ns=float("inf"))),
        trace(entry(1, pg_id=True)),
        trace(entry(1, retired="yes")),
        trace(entry(1, process_group="0")),
        trace(entry(1, process_group=[1, 2])),
        trace(entry(1, profiling_name=None)),
        trace({}),
    ],
)
def test_what_is_no_trace_is_refused(text: bytes) -> None:
    with pytest.raises(DamagedError):
        read_groups(text)


def repeated(count: int) -> bytes:
    """A trace of many equal entries."""
    one = json.dumps(entry(1)).encode()
    return b'{"entries":[' + (one + b",") * (count - 1) + one + b"]}"


def test_a_trace_of_very_many_entries_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(read_groups(repeated(20_000))) == 1
    monkeypatch.setattr(trace_decoder, "parse_json", lambda _text: pytest.fail("it was read"))
    with pytest.raises(DamagedError, match="too many parts"):
        read_groups(repeated(100_000))


def test_very_many_groups_are_cut() -> None:
    groups = read_groups(trace(*(entry(1, pg_id=number) for number in range(5000))))
    assert len(groups) == 5000
    mark_mismatches([groups, groups])
    assert len(cut_groups(groups, NOW, 1 << 20)) == MAX_GROUPS


def test_the_waits_that_are_active_are_named_and_counted() -> None:
    assert read_waits(json.dumps(COUNTERS).encode()) == {"TCPStore__wait": 1}
    active = {"active_count": 1}
    assert read_waits(json.dumps({"other": active, "pytorch.wait_counter.\x1b\n": active}).encode()) == {"??": 0}
    many = {f"pytorch.wait_counter.{number:03}": active for number in range(100)}
    assert [*read_waits(json.dumps(many).encode())] == ["000", "001", "002", "003"][:MAX_WAITS]


@pytest.mark.parametrize("text", [b"", b"[]", b'{"a":1}', b'{"a":{"active_count":-1}}', b'{"a":{}}'])
def test_what_are_no_counters_is_refused(text: bytes) -> None:
    with pytest.raises(DamagedError):
        read_waits(text)
