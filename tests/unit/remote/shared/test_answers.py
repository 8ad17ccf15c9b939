"""The records that hosts answer are read whole, or refused with the one error, whatever they are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from clusterddp.remote.shared.cleanup.cleanup_records import PathLeft
from clusterddp.remote.shared.schema.fields import DamagedError
from clusterddp.remote.shared.schema.record import read_record, to_fields
from clusterddp.remote.shared.user_files.file_records import PullList, PushCheck
from clusterddp.remote.shared.workdir.manifest import Entry
from clusterddp.remote.shared.workdir.named_workdir_records import NamedWorkdir, NamedWorkdirs, RemoveWorkdirsAnswer
from clusterddp.remote.shared.workdir.sync_records import (
    DataState,
    DataThere,
    HostChanged,
    StandingVersions,
    Synced,
    WorkdirState,
    read_unless_changed,
)
from tests.unit.json_values import VALUES

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
FOUND = PullList(
    there=True,
    folder=True,
    root="/w",
    shared="w 7",
    entries=[["a\udcff", "file", False, 3, "c"]],
    chunks={"c-2": ["c1", "c2"]},
    skipped=(("pipe", "neither files nor links"),),
    others=("r2",),
)
ANSWERS: list[Any] = [
    STATE,
    DataState(["p"], ["p"], [], [], ["c1"]),
    Synced("/w", "d", 1, 2, (("a", "a.kept"),), "", (), STANDING),
    FOUND,
    PushCheck("/w", None, False, ["c1"]),
    NamedWorkdirs((NamedWorkdir("/w@a", "id", 7, 0, ("r1",)), NamedWorkdir("/w@\udcff", "", 0, 1, ()))),
    RemoveWorkdirsAnswer(("/w@a",), 7, (PathLeft("/w@b", "run r1 is live there"),)),
]
FIELDS = [(answer, name) for answer in ANSWERS for name in answer._fields]


def as_json(record: Any) -> Any:
    return json.loads(json.dumps(to_fields(record)))


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_what_a_host_writes_is_read_alike(answer: Any) -> None:
    assert read_record(type(answer), as_json(answer), "answer") == answer


@pytest.mark.parametrize(("answer", "name"), FIELDS, ids=[f"{type(answer).__name__}.{name}" for answer, name in FIELDS])
@given(value=VALUES)
def test_whatever_a_field_holds_it_is_read_or_the_one_error_raised(answer: Any, name: str, value: Any) -> None:
    try:
        read_record(type(answer), {**as_json(answer), name: value}, "answer")
    except DamagedError as error:
        assert name in str(error)  # noqa: PT017 - either is right


@pytest.mark.parametrize("kind", [type(answer) for answer in ANSWERS])
@given(value=VALUES)
def test_whatever_a_host_answers_is_the_one_error(kind: type[Any], value: Any) -> None:
    with pytest.raises(DamagedError):
        read_record(kind, value, "answer")


@pytest.mark.parametrize("kind", [Synced, DataState])
def test_where_the_host_has_changed_there_is_no_record(kind: type[Any]) -> None:
    assert read_unless_changed(kind, as_json(HostChanged(missing=("a",)))) is None


@pytest.mark.parametrize("kind", [Synced, DataState])
@given(value=VALUES)
def test_what_is_neither_an_answer_nor_a_change_is_the_one_error(kind: type[Any], value: Any) -> None:
    with pytest.raises(DamagedError):
        read_unless_changed(kind, value)


ROWS = [
    7, [7], [None], ["abcde"], [["a"]], [["a", "file", False, 1, "c", "more"]], [[1, "file", False, 1, "c"]],
    [["a", None, False, 1, "c"]], [["a", "file", 0, 1, "c"]], [["a", "file", False, "1", "c"]],
    [["a", "file", False, True, "c"]], [["a", "file", False, 1, []]],
    [["a", "file", False, 1, "c"], ["b", "file", False, 1, None]],
]  # fmt: skip


@pytest.mark.parametrize("rows", ROWS, ids=repr)
def test_rows_that_are_no_entries_are_refused(rows: Any) -> None:
    with pytest.raises(DamagedError, match=r"answer\.have is not a list"):
        read_record(WorkdirState, {**as_json(STATE), "have": rows}, "answer")
