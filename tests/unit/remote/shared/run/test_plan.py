"""A node's plan: read whole or refused with one line; what makes other plans of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.remote.shared.run.host_settings import HostSettings
from clusterddp.remote.shared.run.node_env import Node
from clusterddp.remote.shared.run.plan import NodePlan, Peer, joined_plan, next_plan, read_plan, with_peer
from clusterddp.remote.shared.run.run_settings import RunSettings
from clusterddp.remote.shared.schema.fields import DamagedError
from clusterddp.remote.shared.schema.record import parse_record, to_fields
from tests.unit.json_values import VALUES
from tests.unit.plan_made import PLAN

WHOLE = json.loads(json.dumps(to_fields(PLAN)))
DEFAULTS: dict[str, Any] = NodePlan._field_defaults
REQUIRED = sorted(set(WHOLE) - set(DEFAULTS))


def test_what_is_written_is_read_again() -> None:
    assert read_plan(WHOLE) == PLAN
    assert set(WHOLE) == set(NodePlan._fields) - {"more"}


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_field_is_named(name: str) -> None:
    with pytest.raises(DamagedError, match=rf"^plan\.{name} is not there; it must be "):
        read_plan({key: value for key, value in WHOLE.items() if key != name})


@pytest.mark.parametrize("name", sorted(set(DEFAULTS) - {"more", "peers"}))
def test_a_field_that_came_later_has_its_default_in_an_older_plan(name: str) -> None:
    found = read_plan({key: value for key, value in WHOLE.items() if key != name})
    assert getattr(found, name) == DEFAULTS[name]


def test_the_first_versions_plan_can_be_read() -> None:
    assert read_plan({name: WHOLE[name] for name in REQUIRED}).run == "run1"


def test_the_plan_of_a_run_that_lives_through_an_upgrade_can_be_read() -> None:
    older = {"time_limit": 60.0, "relaunch": 2, "elastic": True, "policy": {"run": "run1", "env": {}, "grace": 5.0}}
    found = read_plan({**{name: WHOLE[name] for name in WHOLE if name != "settings"}, **older})
    assert (found.settings, found.more) == (RunSettings(), older)


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_field_of_another_kind_is_named_with_its_value(name: str) -> None:
    wrong: object = {"neither": "this"} if not isinstance(WHOLE[name], dict) else "nor this"
    if name == "record":
        wrong = 3
    with pytest.raises(DamagedError, match=rf"^plan\.{name}(\.\w+)? is not .*"):
        read_plan({**WHOLE, name: wrong})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attempt": -1}, "plan.attempt is not a whole number up to 9223372036854775807: '-1'"),
        ({"attempt": True}, "plan.attempt is not a whole number up to 9223372036854775807: 'True'"),
        ({"nproc": 1 << 63}, f"plan.nproc is not a whole number up to {(1 << 63) - 1}: '{1 << 63}'"),
        ({"node": "../0-h"}, "plan.node is not a file's name: '../0-h'"),
        ({"run": ".."}, "plan.run is not a file's name: '..'"),
        ({"python": "a\0b"}, "plan.python is not a text: 'a\\x00b'"),
        ({"host_settings": {"ports": [1]}}, "plan.host_settings.ports is not two whole numbers: '(1,)'"),
        ({"settings": {"lease": float("nan")}}, "plan.settings.lease is not a number from 0: 'nan'"),
        ({"settings": {"time_limit": float("inf")}}, "plan.settings.time_limit is not a number from 0: 'inf'"),
        ({"member": 1}, "plan.member is 1; the run has 1 nodes"),
        ({"members": [0, 7]}, "plan.members is 7; the run has 1 nodes"),
        ({"env": {"A": 1}}, "plan.env.A is not a text: '1'"),
        ({"peers": [{"host": "h", "nproc": 1}]}, "plan.peers.item.address is not there; it must be a text"),
        ({"store": {}}, "plan.store.address is not there; it must be a text"),
    ],
)
def test_a_value_out_of_range_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DamagedError) as error:
        read_plan({**WHOLE, **changes})
    assert str(error.value) == said


def test_fields_of_a_newer_version_are_kept_at_every_depth() -> None:
    newer = {**WHOLE, "colour": {"deep": [1]}, "store": {"address": "a", "tls": True}}
    newer["peers"] = [{**WHOLE["peers"][0], "rack": "r7"}]
    newer["settings"] = {**WHOLE["settings"], "numa": "strict"}
    assert to_fields(read_plan(newer)) == newer


@given(st.dictionaries(st.sampled_from([*WHOLE, "other"]), VALUES, max_size=3))
def test_any_object_is_a_plan_or_one_error(changes: dict[str, Any]) -> None:
    try:
        plan = read_plan({**WHOLE, **changes})
    except DamagedError:
        return
    assert repr(read_plan(json.loads(json.dumps(to_fields(plan))))) == repr(plan)  # NaN is not equal to itself


@given(VALUES)
def test_what_is_no_object_is_one_error(value: object) -> None:
    with pytest.raises(DamagedError):
        read_plan(value)


@pytest.mark.parametrize("data", [b"[" * 200_000, b"9" * 10_000, b"\xff\xfe", b""])
def test_what_breaks_a_json_reader_is_one_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_record(data, read_plan)


def joining() -> Node:
    return Node(
        host="late",
        nproc=4,
        address="10.0.0.9",
        interface="eth1",
        python="/usr/bin/python3",
        env={"B": "2"},
        secrets=(),
        settings=HostSettings(ports=(1, 2)),
        workdir="/w",
        cwd="/w/sub",
        run_dir="/r",
        clock_offset_ns=5,
    )


def test_a_host_that_joins_has_the_next_member_index_and_its_own_facts() -> None:
    guide = PLAN._replace(settings=RunSettings(env={"C": "3"}, elastic=True), standby=True)
    plan = joined_plan(guide, joining())
    assert (plan.node, plan.member, plan.node_rank, plan.members) == ("1-late", 1, 1, (0, 1))
    assert plan.peers == (*PLAN.peers, Peer(host="late", address="10.0.0.9", nproc=4))
    assert (plan.joined, plan.standby, plan.store, plan.cwd, plan.clock_offset_ns) == (True, False, None, "/w/sub", 5)
    assert (plan.env["B"], plan.env["C"], plan.env["CLUSTERDDP_HOST"]) == ("2", "3", "late")
    assert plan.record.hosts == ("h", "late")
    assert repr(read_plan(json.loads(json.dumps(to_fields(plan))))) == repr(plan)  # NaN is not equal to itself


def test_the_record_of_each_node_has_a_host_that_joined_and_later_was_lost() -> None:
    plan = with_peer(PLAN, Peer.of(joining()))
    assert (plan.members, plan.record.hosts, plan.record.lost) == ((0, 1), ("h", "late"), ())
    following = next_plan(plan, 2, [0], 0)
    assert (following.record.hosts, following.record.lost) == (("h",), ("late",))


def test_the_record_has_a_host_that_joined_to_no_part_in_the_attempt_as_a_spare() -> None:
    plan = with_peer(PLAN, Peer.of(joining()), takes_part=False)
    assert (plan.members, plan.record.hosts, plan.record.spares) == ((0,), ("h",), ("late",))
    following = next_plan(plan, 2, [0, 1], 0)
    assert (following.record.hosts, following.record.lost) == (("h", "late"), ())


def test_the_next_attempt_keeps_what_a_newer_version_has_said() -> None:
    old = read_plan({**WHOLE, "colour": "red"})
    new = next_plan(old, 2, [0], 0)
    assert (new.attempt, new.more) == (2, {"colour": "red"})
