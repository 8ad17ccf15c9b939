"""The states are declared once: every other list of them is made of that declaration."""

from __future__ import annotations

import re
from pathlib import Path

from clusterddp.launch.slurm.client.states import STATES, meaning
from clusterddp.remote.shared.run.run_state import (
    ALL_STATES,
    ENDED_STATES,
    LIVE_STATES,
    RunState,
    end_event,
)
from clusterddp.remote.shared.run.webhook_request import END_EVENTS

DOCS = Path(__file__).parents[5] / "docs"


def test_every_name_is_live_or_ended_or_unknown() -> None:
    names = {value for name, value in vars(RunState).items() if name.isupper()}
    assert len(ALL_STATES) == len(names)
    assert names == {*ALL_STATES} == {*LIVE_STATES, *ENDED_STATES, RunState.UNKNOWN}


def test_a_job_of_slurm_is_over_unless_its_state_is_a_live_one() -> None:
    for name, means in STATES.items():
        assert means.state in ALL_STATES
        assert meaning(name).over == (means.state not in LIVE_STATES)


def test_every_end_has_an_event_for_the_webhook() -> None:
    assert [end_event(state) for state in ENDED_STATES] == ["done", "failed", "stopped", "failed"]
    assert {*END_EVENTS} == {"done", "failed", "stopped"}


def test_the_page_of_the_json_output_lists_them() -> None:
    (row,) = re.findall(r"^\| `state` \| (`queued`.*)$", (DOCS / "labels-and-json.md").read_text(), re.MULTILINE)
    assert tuple(re.findall(r"`(\w+)`", row)) == ALL_STATES
