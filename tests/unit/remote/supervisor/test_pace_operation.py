"""A worker's calls as they are sent: cut on its host, put together again by who reads them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterddp.remote.processes.trace_decoder import RecordedGroup, read_groups
from clusterddp.remote.shared.collectives.pace_records import MAX_ENTRIES, GroupPace
from clusterddp.remote.shared.schema.fields import DamagedError
from clusterddp.remote.shared.schema.record import read_record, to_fields
from clusterddp.remote.supervisor.pace_operation import MAX_GROUPS, calls_per_second, cut
from tests.unit.json_values import VALUES
from tests.unit.remote.processes.traces_made import ENTRIES, NOW, entry, trace

US = 1000


def recorded(count: int, *, name: str = "0", ident: int = 0, ms: int = 100) -> tuple[RecordedGroup, ...]:
    """A group with ``count`` operations, the last one called at NOW."""
    began = NOW - (count - 1) * ms * 1000 * US
    entries = (
        entry(1 + number, process_group=[name, ""], pg_id=ident, time_created_ns=began + number * ms * 1000 * US)
        for number in range(count)
    )
    return read_groups(trace(*entries))


def sent(groups: tuple[RecordedGroup, ...]) -> list[GroupPace]:
    return [read_record(GroupPace, json.loads(json.dumps(to_fields(one))), "group") for one in cut(groups)]


def test_the_last_calls_arrive_as_they_were() -> None:
    (group,) = sent(recorded(2000))
    calls = group.calls()
    assert list(calls) == list(range(2001 - MAX_ENTRIES, 2001))
    assert (calls[2000], calls[1999]) == (NOW, NOW - 100_000 * US)
    assert len(json.dumps(to_fields(group))) < 8000
    assert [len(one.calls()) for one in cut(recorded(2000), 128)] == [128]


def test_of_groups_with_one_name_the_newest_counts_and_of_many_those_used_last() -> None:
    old, new = recorded(3, ident=1), recorded(2, ident=7)
    (group,) = sent((*new, *old))
    assert (group.ident, len(group.calls())) == (7, 2)
    many = tuple(one for number in range(40) for one in recorded(99, name=str(number), ident=number, ms=number + 1))
    found = sent(many)
    assert len(found) == MAX_GROUPS
    assert {len(one.calls()) for one in found} == {MAX_ENTRIES // MAX_GROUPS}


def test_calls_a_second() -> None:
    assert calls_per_second(recorded(200), NOW) == pytest.approx(10, rel=0.02)
    assert calls_per_second(recorded(2000, ms=1), NOW) == pytest.approx(1000, rel=0.01)  # two seconds are recorded
    assert calls_per_second(recorded(50), NOW + 60_000_000 * US) == 0
    assert calls_per_second((), NOW) == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(ENTRIES, max_size=40))
def test_whatever_a_worker_tells_is_sent_and_read(entries: list[dict[str, object]]) -> None:
    try:
        groups = read_groups(json.dumps({"entries": entries}).encode())
    except DamagedError:
        return
    for group in sent(groups):
        assert group.calls()
    assert calls_per_second(groups, NOW) >= 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers() | VALUES, max_size=6))
def test_whatever_a_host_sends_is_read_or_refused(steps: list[object]) -> None:
    data = {"name": "0", "ident": 0, "first": 1, "called_us": 5, "steps": steps}
    try:
        group = read_record(GroupPace, data, "group")
    except DamagedError:
        return
    assert sorted(group.calls()) == list(group.calls())
