"""What a host answers in a sync is read whole, or refused with the one error, whatever it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given

from clusterddp.remote.shared.schema.fields import DamagedError
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.workdir.manifest import Entry
from clusterddp.remote.shared.workdir.sync_records import (
    DataState,
    DataThere,
    HostChanged,
    StandingVersions,
    Synced,
    WorkdirState,
    read_unless_changed,
    read_workdir_state,
)
from tests.unit.json_values import VALUES

if TYPE_CHECKING:
    from collections.abc import Callable

STANDING = StandingVersions((("ckpt.pt", ""),), ("ckpt.pt",))
STATE = WorkdirState(
    ready=False,
    digest="",
    workdir="/w",
    live=("r1",),
    shared=None,
    notice="",
    links=("a line",),
    data=DataThere(settled=True, digest="d", standing=STANDING),
    base="b",
    have=[Entry("a\udcff", "file", True, 3, "c"), Entry("b", "link", False, 0, "a")],
    missing=["x"],
    chunks=["c1", "c2"],
)
DATA = DataState(["p"], ["p"], [], ["c1"])
DONE = Synced("/w", "d", 1, 2, (("a", "a.kept"),), "", (), STANDING)


def wire(record: Any) -> Any:
    return json.loads(json.dumps(to_fields(record)))


def read_done(data: Any) -> Any:
    return read_unless_changed(Synced, data)


def read_data(data: Any) -> Any:
    return read_unless_changed(DataState, data)


READERS: list[tuple[Any, Callable[[Any], Any]]] = [(STATE, read_workdir_state), (DATA, read_data), (DONE, read_done)]
FIELDS = [(one, read, name) for one, read in READERS for name in wire(one)]


@pytest.mark.parametrize(("record", "read"), READERS, ids=["state", "data", "done"])
def test_what_a_host_writes_is_read_alike(record: Any, read: Callable[[Any], Any]) -> None:
    assert read(wire(record)) == record


def test_where_the_host_has_changed_there_is_no_record() -> None:
    changed = wire(HostChanged(missing=("a",)))
    assert read_done(changed) is None
    assert read_data(changed) is None


@pytest.mark.parametrize(("record", "read", "name"), FIELDS, ids=[f"{type(one).__name__}.{n}" for one, _, n in FIELDS])
@given(value=VALUES)
def test_whatever_a_field_holds_it_is_read_or_the_one_error_raised(
    record: Any, read: Callable[[Any], Any], name: str, value: Any
) -> None:
    try:
        read({**wire(record), name: value})
    except DamagedError as error:
        assert name in str(error)  # noqa: PT017 - either is right


@pytest.mark.parametrize("read", [read_workdir_state, read_data, read_done])
@given(value=VALUES)
def test_whatever_a_host_answers_is_the_one_error(read: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(DamagedError):
        read(value)


ROWS = [
    7, [7], [None], ["abcde"], [["a"]], [["a", "file", False, 1, "c", "more"]], [[1, "file", False, 1, "c"]],
    [["a", None, False, 1, "c"]], [["a", "file", 0, 1, "c"]], [["a", "file", False, "1", "c"]],
    [["a", "file", False, True, "c"]], [["a", "file", False, 1, []]],
    [["a", "file", False, 1, "c"], ["b", "file", False, 1, None]],
]  # fmt: skip


@pytest.mark.parametrize("rows", ROWS, ids=repr)
def test_rows_that_are_no_entries_are_refused(rows: Any) -> None:
    with pytest.raises(DamagedError, match=r"workdir\.have is not a list"):
        read_workdir_state({**wire(STATE), "have": rows})
