"""What a run writes down of itself: every version's can be read, and what is wrong in one is one line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.remote.shared.run.run_record import RunRecord, read_run_record
from clusterddp.remote.shared.schema.fields import DamagedError
from clusterddp.remote.shared.schema.record import to_fields
from tests.unit.json_values import VALUES

WHOLE: dict[str, Any] = {
    **to_fields(RunRecord(hosts=())),
    "hosts": ["gpu01", "gpu02"],
    "run": "abcdefghjk",
    "name": "night",
    "argv": ["--lr", "3e-4"],
    "git": {"commit": "4f1c", "dirty": True},
    "gpus": {"gpu01": ["NVIDIA H100"], "gpu02": []},
    "versions": {"clusterddp": "0.1.0", "torch": None},
    "started": 1_800_000_000_000_000_000,
    "world_size": 2,
    "workdirs": {"gpu01": "/home/u/w", "gpu02": "/home/u/w"},
}


def test_what_is_written_is_read_again() -> None:
    record = read_run_record(json.loads(json.dumps(WHOLE)))
    assert (record.hosts, record.gpus["gpu01"], record.versions["torch"]) == (
        ("gpu01", "gpu02"),
        ("NVIDIA H100",),
        None,
    )
    assert json.loads(json.dumps(to_fields(record))) == json.loads(json.dumps(WHOLE))


@pytest.mark.parametrize("name", sorted(set(WHOLE) - {"hosts"}))
def test_a_field_that_an_older_version_did_not_write_or_left_null_is_its_default(name: str) -> None:
    default = RunRecord._field_defaults[name]
    assert getattr(read_run_record({**WHOLE, name: None}), name) == default
    assert getattr(read_run_record({key: value for key, value in WHOLE.items() if key != name}), name) == default


def test_fields_of_a_newer_version_are_kept() -> None:
    newer = {**WHOLE, "weather": {"digest": "sha256:1"}}
    assert to_fields(read_run_record(newer))["weather"] == {"digest": "sha256:1"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hosts": None}, "record.hosts is not a list: 'None'"),
        ({"hosts": [3]}, "record.hosts.item is not a text: '3'"),
        ({"name": 3}, "record.name is not a text: '3'"),
        ({"started": -1}, "record.started is not a whole number up to 9223372036854775807: '-1'"),
        ({"gpus": {"gpu01": "H100"}}, "record.gpus.gpu01 is not a list: 'H100'"),
        ({"git": "4f1c"}, "record.git is not an object: '4f1c'"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DamagedError) as error:
        read_run_record({**WHOLE, **changes})
    assert said in str(error.value)


@given(st.dictionaries(st.sampled_from([*WHOLE, "other"]), VALUES, max_size=3))
def test_any_object_is_a_record_or_one_error(changes: dict[str, Any]) -> None:
    try:
        record = read_run_record({**WHOLE, **changes})
    except DamagedError:
        return
    assert repr(read_run_record(json.loads(json.dumps(to_fields(record))))) == repr(
        record
    )  # NaN is not equal to itself
