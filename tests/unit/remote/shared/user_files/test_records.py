"""What a host answers in a push or pull is read whole, or refused with the one error, whatever it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given

from clusterddp.remote.shared.schema.fields import DamagedError
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.user_files.file_records import PullList, PushCheck, read_pull_list, read_push_check
from tests.unit.json_values import VALUES

if TYPE_CHECKING:
    from collections.abc import Callable

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
CHECK = PushCheck("/w", None, False, ["c1"])
READERS: list[tuple[Any, Callable[[Any], Any]]] = [(FOUND, read_pull_list), (CHECK, read_push_check)]
FIELDS = [(one, read, name) for one, read in READERS for name in to_fields(one)]


@pytest.mark.parametrize(("record", "read"), READERS, ids=["pull", "push"])
def test_what_a_host_writes_is_read_alike(record: Any, read: Callable[[Any], Any]) -> None:
    assert read(json.loads(json.dumps(to_fields(record)))) == record


@pytest.mark.parametrize(("record", "read", "name"), FIELDS, ids=[f"{type(one).__name__}.{n}" for one, _, n in FIELDS])
@given(value=VALUES)
def test_whatever_a_field_holds_it_is_read_or_the_one_error_raised(
    record: Any, read: Callable[[Any], Any], name: str, value: Any
) -> None:
    try:
        read({**to_fields(record), name: value})
    except DamagedError as error:
        assert name in str(error)  # noqa: PT017 - either is right


@pytest.mark.parametrize("read", [read_pull_list, read_push_check])
@given(value=VALUES)
def test_whatever_a_host_answers_is_the_one_error(read: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(DamagedError):
        read(value)
