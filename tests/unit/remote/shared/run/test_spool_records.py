"""The records of a node's spool: read whole, or one error that names the field."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterddp.remote.shared.run.event_schema import EVENTS, OPTIONAL, event_json, maybe_event, read_event
from clusterddp.remote.shared.run.spool_records import (
    ExitRecord,
    LeftProcess,
    PeersRecord,
    PeerStatus,
    Ready,
    StopOrder,
    read_exit,
    read_peers,
    read_ready,
    read_stop_order,
)
from clusterddp.remote.shared.schema.fields import DamagedError
from clusterddp.remote.shared.schema.record import to_fields
from tests.unit.json_values import VALUES

if TYPE_CHECKING:
    from collections.abc import Callable

EXIT = ExitRecord(
    state="stopped",
    exit_code=143,
    reason="by a test",
    ended=5,
    agent_exit=0,
    survivors=(LeftProcess(pid=7, ticks=8, command="python", state="D", user="root"),),
    unseen=(9,),
    final="attempt 2",
)
PEERS = PeersRecord(
    nodes={"b": PeerStatus(state="ended", attempt=1, age=0.5, more={"left": True})},
    missing=("c",),
    leader="b",
    addresses=(("10.0.0.1", 29400), ("::1", 29401)),
    time=3,
)
RECORDS: list[tuple[Callable[[Any], Any], Any]] = [
    (read_exit, EXIT),
    (read_stop_order, StopOrder(reason="by a test", grace=30.0)),
    (read_ready, Ready(store=29400, peers=(("10.0.0.1", 29401),))),
    (read_peers, PEERS),
]


class Field(NamedTuple):
    """One field of one record."""

    read: Callable[[Any], Any]
    whole: dict[str, Any]
    name: str
    default: bool


FIELDS = [
    pytest.param(Field(read, json.loads(json.dumps(to_fields(value))), name, name in value._field_defaults), id=name)
    for read, value in RECORDS
    for name in value._fields
    if name != "more"
]


@pytest.mark.parametrize(("read", "value"), RECORDS)
def test_what_is_written_is_read_again(read: Callable[[Any], Any], value: Any) -> None:
    assert read(json.loads(json.dumps(to_fields(value)))) == value


@pytest.mark.parametrize("field", FIELDS)
def test_a_missing_field_has_its_default_or_is_named(field: Field) -> None:
    fewer = {name: value for name, value in field.whole.items() if name != field.name}
    if field.default:
        found = field.read(fewer)
        assert getattr(found, field.name) == found._field_defaults[field.name]
        return
    with pytest.raises(DamagedError, match=rf"\.{field.name} is not there; it must be "):
        field.read(fewer)


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_of_another_kind_is_named(field: Field) -> None:
    with pytest.raises(DamagedError, match=rf"\.{field.name} is not "):
        field.read({**field.whole, field.name: 1.5 if field.name != "grace" else "soon"})


@pytest.mark.parametrize(("read", "value"), RECORDS)
def test_fields_of_a_newer_version_are_kept(read: Callable[[Any], Any], value: Any) -> None:
    newer = {**json.loads(json.dumps(to_fields(value))), "colour": ["red"]}
    assert to_fields(read(newer)) == newer


@given(data=st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.parametrize(("read", "value"), RECORDS)
def test_any_object_is_a_record_or_one_error(read: Callable[[Any], Any], value: Any, data: st.DataObject) -> None:
    whole = json.loads(json.dumps(to_fields(value)))
    for given_value in (data.draw(VALUES), {**whole, data.draw(st.sampled_from(sorted(whole))): data.draw(VALUES)}):
        try:
            found = read(given_value)
        except DamagedError:
            continue
        assert repr(read(json.loads(json.dumps(to_fields(found))))) == repr(found)  # NaN is not equal to itself


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, fields in EVENTS.items() for name in fields])
def test_an_event_without_a_field_of_its_kind_is_none(kind: str, name: str) -> None:
    others: dict[str, Any] = {"reason": "x", "error": "x", "packages": "x", "orphan": True, "modules": []}
    whole: dict[str, Any] = {field: others.get(field, 1) for field in EVENTS[kind] if field != "signals_received"}
    whole.update(event=kind, time=5)
    event = read_event({**whole, "newer": [1]})
    signals = {"signals_received": None} if "signals_received" in EVENTS[kind] else {}
    sent = json.loads(json.dumps(event_json(event)))
    assert sent == {**whole, **signals, "newer": [1]}
    assert read_event(sent) == event
    fewer = {field: value for field, value in whole.items() if field != name}
    assert (maybe_event(fewer) is not None) == (name in OPTIONAL)
    assert maybe_event({**whole, name: {}}) is None  # no field is a mapping


@given(VALUES)
def test_anything_is_an_event_or_none(value: object) -> None:
    found = maybe_event(value)
    assert found is None or found.kind
