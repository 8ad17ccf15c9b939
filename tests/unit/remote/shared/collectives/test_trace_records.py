"""A worker's operations as another machine sends them: each row is checked where it is decoded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.remote.shared.collectives.trace_records import GroupTrace
from clusterddp.remote.shared.schema.fields import DamagedError
from clusterddp.remote.shared.schema.record import read_record, to_fields
from tests.unit.json_values import VALUES
from tests.unit.remote.shared.collectives.evidence_made import in_operation

GOOD = to_fields(in_operation(0).groups[0])  # it has one operation
SMALL = st.integers(-1, 3)


def read(**fields: Any) -> GroupTrace:
    return read_record(GroupTrace, {**GOOD, **fields}, "group")


@pytest.mark.parametrize("row", [[0, 0, 0, 0], [1, 0, 2, 1], [(1 << 63) - 1, 0, 1, (1 << 63) - 1]])
def test_rows_are_read_as_they_are(row: list[int]) -> None:
    assert read(entries=[row, row]).entries == [row, row]


@pytest.mark.parametrize(
    "row",
    [
        *([], [1, 0, 2], [1, 0, 2, 1, 1], {}, "1021", None, 7),
        *([True, 0, 2, 1], [1, 0.0, 2, 1], [1, 0, "2", 1], [1, 0, 2, None], [1, 0, 2, [1]]),
        *([-1, 0, 2, 1], [1, -1, 2, 1], [1, 1, 2, 1], [1, 0, -1, 1], [1, 0, 3, 1], [1, 0, 2, -1]),
        *([1 << 63, 0, 2, 1], [1, 0, 2, 10**400]),
    ],
)
def test_a_row_that_is_none_is_refused_whatever_stands_before_it(row: Any) -> None:
    with pytest.raises(DamagedError, match=r"^group\.entries is not rows of ") as caught:
        read(entries=[[1, 0, 2, 1], row])
    assert len(str(caught.value)) < 300
    with pytest.raises(DamagedError):
        read(entries=[[1, 0, 2, 1]], operations=[])


@given(VALUES | st.lists(VALUES | st.lists(SMALL | VALUES, min_size=4, max_size=4), max_size=3))
def test_whatever_is_sent_is_read_or_refused(entries: Any) -> None:
    try:
        found = read(entries=entries)
    except DamagedError:
        return
    for sequence, operation, progress, age in found.entries:
        assert found.operations[operation]
        assert progress in (0, 1, 2)
        assert sequence >= 0 <= age
