"""What a host answers about the folders beside a workdir is read whole, or refused with the one error."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given

from clusterddp.remote.shared.cleanup.cleanup_records import PathLeft
from clusterddp.remote.shared.schema.fields import DamagedError
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.workdir.named_workdir_records import (
    NamedWorkdir,
    NamedWorkdirs,
    RemoveWorkdirsAnswer,
    read_named_workdirs,
    read_remove_answer,
)
from tests.unit.json_values import VALUES

if TYPE_CHECKING:
    from collections.abc import Callable

FOUND = NamedWorkdirs((NamedWorkdir("/w@a", "id", 7, 0, ("r1",)), NamedWorkdir("/w@\udcff", "", 0, 1, ())))
DONE = RemoveWorkdirsAnswer(("/w@a",), 7, (PathLeft("/w@b", "run r1 is live there"),))
READERS: list[tuple[Any, Callable[[Any], Any]]] = [(FOUND, read_named_workdirs), (DONE, read_remove_answer)]


@pytest.mark.parametrize(("record", "read"), READERS, ids=["list", "remove"])
def test_what_a_host_writes_is_read_alike(record: Any, read: Callable[[Any], Any]) -> None:
    assert read(json.loads(json.dumps(to_fields(record)))) == record


@pytest.mark.parametrize(("record", "read"), READERS, ids=["list", "remove"])
@given(value=VALUES)
def test_whatever_a_host_answers_is_read_or_the_one_error_raised(
    record: Any, read: Callable[[Any], Any], value: Any
) -> None:
    for name in record._fields:
        try:
            read({**to_fields(record), name: value})
        except DamagedError as error:
            assert name in str(error)  # noqa: PT017 - either is right
    with pytest.raises(DamagedError):
        read(value)
