"""The scripts of benchmarks/hangs say of themselves what is right, and answers are held against that."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.hang_scripts import FALSE_HUNG, FOLDER, RIGHT, UNDECIDED, WORLD, WRONG_NAME, HangScript, find
from clusterddp.remote.shared.collectives import hang_judge
from clusterddp.remote.shared.collectives.stack_judge import POINT_TO_POINT

CLASSES = {
    hang_judge.MISSING,
    hang_judge.OTHER_OPERATION,
    hang_judge.OTHER_SHAPE,
    hang_judge.OTHER_ROOT,
    hang_judge.OTHER_ORDER,
    hang_judge.BEFORE_FIRST,
    hang_judge.TRANSPORT,
    POINT_TO_POINT,
    "failed",
}
MOST_LINES = 30


@pytest.mark.parametrize("script", find([]), ids=lambda script: script.name)
def test_script_says_what_is_right(script: HangScript) -> None:
    assert script.about.endswith(".")
    assert len((FOLDER / f"{script.name}.py").read_text().splitlines()) <= MOST_LINES
    if not script.clean:
        assert set(script.classes) <= CLASSES
        assert {rank for ranks in script.ranks for rank in ranks} <= set(range(WORLD))
        assert script.places
        assert 1 <= script.ready <= WORLD


def _answer(**changes: Any) -> dict[str, Any]:
    where = "missing_sleep.py:18 in <module>"
    return {"state": "hung", "class": "missing", "ranks": [1], "where": where, **changes}


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, RIGHT),
        ({"ranks": [1, 2]}, WRONG_NAME),
        ({"state": "waiting"}, "says waiting"),
        ({"state": "undecided", "class": None, "ranks": []}, UNDECIDED),
        ({"class": "transport"}, "wrong class"),
        ({"where": "missing_sleep.py:19 in <module>"}, "wrong line"),
        ({"where": None}, "wrong line"),
    ],
)
def test_answer_is_held_against_the_script(changes: dict[str, Any], outcome: str) -> None:
    (script,) = find(["missing_sleep"])
    assert script.outcome(_answer(**changes)) == outcome


def test_clean_script_is_never_hung() -> None:
    (script,) = find(["clean_slow_steps"])
    assert script.outcome(_answer()) == FALSE_HUNG
    assert script.outcome(_answer(state="waiting")) == RIGHT
