"""What a host of a run tells those that join: whole, or an error of its own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.launch.ssh.join import read_invitation
from clusterddp.remote.shared.schema.record import to_fields
from tests.unit.plan_made import PLAN

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def answer(**other: Any) -> dict[str, Any]:
    ready = {"store": 29400, "peers": [["10.0.0.1", 29401]]}
    return {"plan": to_fields(PLAN), "ready": ready, "key": "k", "secrets": {"HF_TOKEN": "t"}, **other}


def test_what_a_host_tells_is_a_value() -> None:
    told = read_invitation(answer())
    assert (told.ready.store, told.ready.peers, told.secrets) == (29400, (("10.0.0.1", 29401),), {"HF_TOKEN": "t"})


@pytest.mark.parametrize("name", ["plan", "ready", "key", "secrets"])
@given(value=ANYTHING)
def test_whatever_else_stands_there_is_a_value_error(name: str, value: object) -> None:
    try:
        read_invitation(answer(**{name: value}))
    except ValueError:
        return
    assert isinstance(value, str | dict)


def test_what_is_left_out_is_one_too() -> None:
    for name in answer():
        with pytest.raises(ValueError, match=name):
            read_invitation({key: value for key, value in answer().items() if key != name})
