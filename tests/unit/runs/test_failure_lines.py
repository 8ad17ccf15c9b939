"""Which lines of a failed worker's stderr are shown at the end of its run."""

from __future__ import annotations

import pytest

from clusterddp.runs.failure_lines import FIRST_LINES, LAST_LINES, MAX_LINE_LENGTH, relevant_lines, shorten

HEAD = "Traceback (most recent call last):"
TRACE = [HEAD, '  File "train.py", line 81, in <module>', "    step()", "ValueError: loss is NaN"]
CAUSE = [HEAD, '  File "data.py", line 3, in read', "KeyError: 'x'"]
BETWEEN = ["", "The above exception was the direct cause of the following exception:", ""]
HANDLING = ["", "During handling of the above exception, another exception occurred:", ""]
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
        ([f"line {number}" for number in range(20)], [f"line {number}" for number in range(10, 20)]),
        ([], []),
    ],
)
def test_the_last_traceback_and_what_it_is_chained_to_matter(lines: list[str], shown: list[str]) -> None:
    assert relevant_lines("\n".join(lines) + "\n") == shown


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
