"""Which lines of a failed worker's stderr are shown at the end of its run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterddp.errors import UnreachableError
from clusterddp.runs.failure_lines import (
    FIRST_LINES,
    LAST_LINES,
    MAX_LINE_LENGTH,
    failure_output,
    relevant_lines,
    shorten,
)
from clusterddp.runs.view.run_view import run_views
from tests.unit.runs_told import Told, verdict

HEAD = "Traceback (most recent call last):"
TRACE = [HEAD, '  File "train.py", line 81, in <module>', "    step()", "ValueError: loss is NaN"]
CAUSE = [HEAD, '  File "data.py", line 3, in read', "KeyError: 'x'"]
BETWEEN = ["", "The above exception was the direct cause of the following exception:", ""]
HANDLING = ["", "During handling of the above exception, another exception occurred:", ""]
UNRAISED = "ValueError: the root"  # `raise … from ValueError("the root")`
IGNORED = ["Exception ignored in: <function Loader.__del__ at 0x7f>"]
CRASH = ["Fatal Python error: Segmentation fault", "", "Current thread 0x7f (most recent call first):"]


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (["step 1", *TRACE], TRACE),
        ([*CAUSE, "retried", *TRACE], TRACE),  # an earlier one that was printed and survived
        (["step 1", *CAUSE, *BETWEEN, *TRACE, "", ""], [*CAUSE, *BETWEEN, *TRACE]),
        ([*TRACE, "step 2", *CAUSE, *HANDLING, *TRACE], [*CAUSE, *HANDLING, *TRACE]),
        ([*CAUSE, *HANDLING, *CAUSE, *BETWEEN, *TRACE], [*CAUSE, *HANDLING, *CAUSE, *BETWEEN, *TRACE]),
        (["step 1", "  + Exception Group " + HEAD, "  | two"], ["  + Exception Group " + HEAD, "  | two"]),
        (["step 1", *CRASH], CRASH),
        (["step 1", "", UNRAISED, *BETWEEN, *TRACE], [UNRAISED, *BETWEEN, *TRACE]),
        ([UNRAISED, *BETWEEN, *CAUSE, *HANDLING, *TRACE], [UNRAISED, *BETWEEN, *CAUSE, *HANDLING, *TRACE]),
        ([*BETWEEN, *TRACE], TRACE),
        ([*TRACE, *IGNORED, *CAUSE], TRACE),
        (["no data", *IGNORED, *CAUSE], ["no data"]),
        ([*IGNORED, *CAUSE], CAUSE),  # nothing else tells
        ([f"line {number}" for number in range(20)], [f"line {number}" for number in range(10, 20)]),
        ([], []),
    ],
)
def test_the_last_traceback_and_what_it_is_chained_to_matter(lines: list[str], shown: list[str]) -> None:
    assert relevant_lines("\n".join(lines) + "\n") == shown


@pytest.mark.parametrize(
    ("lines", "heading"),
    [(TRACE, "traceback"), ([UNRAISED, *BETWEEN, *TRACE], "traceback"), (["no data"], "last lines")],
)
def test_what_is_shown_has_a_heading(lines: list[str], heading: str) -> None:
    (failure,) = verdict(Told().died(5, code=3).failed(6)).failures
    host = SimpleNamespace(name="gpu00", call=lambda *_, **__: {"text": "\n".join(lines)})
    run: Any = SimpleNamespace(id="r1", attempt=1, spools={"gpu00": "/s"}, reader=lambda _: host)
    assert failure_output(run, failure) == [f"{heading} of rank 0 (gpu00:0):", *(f"  {line}" for line in lines)]


def test_the_middle_of_a_long_one_is_left_out_with_what_shows_it() -> None:
    lines = [f"line {number}" for number in range(FIRST_LINES + LAST_LINES + 5)]
    shown = shorten(lines, "`clusterddp logs r` shows all")
    assert shown[FIRST_LINES - 1 : FIRST_LINES + 2] == [
        *("  line 7", "  … 5 lines; `clusterddp logs r` shows all", "  line 13"),
    ]
    assert (len(shown), shown[-1]) == (FIRST_LINES + LAST_LINES + 1, f"  {lines[-1]}")


def test_nothing_is_left_out_to_save_a_line() -> None:
    assert len(shorten(["x"] * (FIRST_LINES + LAST_LINES + 1), "")) == FIRST_LINES + LAST_LINES + 1


def test_a_line_of_any_length_takes_a_few_of_the_terminals() -> None:
    (line,) = shorten(["x" * 100_000], "")
    assert len(line) == len("  ") + MAX_LINE_LENGTH


@pytest.mark.parametrize(
    ("spools", "attempt", "spool"),
    [
        ({"gpu00": "/known", "gpu01": "/known"}, 1, "/known"),
        ({"gpu00": "/known", "gpu01": ""}, 1, "/s/runs/r1/1/1-gpu01"),  # it joined, or it did not answer
        ({"gpu00": "/known"}, 1, "/s/runs/r1/1/1-gpu01"),
        ({"gpu00": "/known", "gpu01": "/known"}, 2, "/s/runs/r1/1/1-gpu01"),
    ],
)
def test_a_worker_that_failed_is_asked_for_where_the_run_was_not_looked_up(
    spools: dict[str, str], attempt: int, spool: str
) -> None:
    node = Told(1).died(5, raised="ValueError: loss is NaN").failed(6)
    (failure,) = verdict(node).failures
    (view,) = run_views([node.node])

    def last_words(_operation: str, request: dict[str, Any], **_: object) -> dict[str, Any]:
        return {"text": "\n".join(TRACE) if request["spool"] == spool else ""}

    host = SimpleNamespace(name="gpu01", call=last_words)
    run: Any = SimpleNamespace(
        id="r1", attempt=attempt, spools=spools, view=lambda **_: view, reader=lambda name: {"gpu01": host}[name]
    )
    assert failure_output(run, failure)[-1] == f"  {TRACE[-1]}"

    def no_answer(**_: object) -> None:
        raise UnreachableError("gpu01", "no answer")

    run.view = no_answer
    assert bool(failure_output(run, failure)) == (spool == "/known")
