"""The matrix of all pairs, drawn for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterddp.cli.doctor_tables import print_pairs
from tests.unit.evidence_made import ComparedName, comparisons, pairs

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    Changed = dict[tuple[str, str], dict[str, Any]]

LEGEND = "round trips by TCP in ms, row → column; X: itself, ?: not dialled"


def drawn(capsys: pytest.CaptureFixture[str], count: int, changed: Changed, *, verbose: bool = False) -> list[str]:
    """The lines printed."""
    names = [f"gpu{number:02}" for number in range(count)]
    print_pairs(pairs(*names, changed=changed), verbose=verbose)
    return capsys.readouterr().out.splitlines()


def test_what_is_well_is_only_drawn_with_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    assert drawn(capsys, 2, {}) == []
    assert drawn(capsys, 1, {}, verbose=True) == []
    assert drawn(capsys, 2, {}, verbose=True) == [
        "",
        LEGEND,
        "from   gpu00  gpu01",
        "gpu00  X      0.1",
        "gpu01  0.1    X",
    ]


def test_trouble_is_drawn_with_its_words_and_without_what_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    changed: Changed = {
        ("gpu00", "gpu01"): {"verdict": "fail", "word": "timeout", "ports": "all"},
        ("gpu02", "gpu01"): {"verdict": "fail", "word": "refused", "ports": "ephemeral"},
        ("gpu02", "gpu03"): {"verdict": "fail", "word": "black hole", "ports": "ephemeral"},
        ("gpu03", "gpu01"): {"verdict": "warn", "resent": 6},
        ("gpu03", "gpu02"): {"verdict": "unknown", "word": "not dialled", "rtt_ms": None},
    }
    assert drawn(capsys, 5, changed) == [
        "",
        LEGEND,
        "from   gpu01                gpu02  gpu03",
        "gpu00  timeout              0.1    0.1",
        "gpu02  refused_(ephemeral)  X      black hole",
        "gpu03  10%_lost             ?      X",
    ]


def test_of_many_hosts_only_the_rows_and_columns_of_trouble_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    bad = {"verdict": "fail", "word": "timeout", "ports": "all"}
    for verbose in (False, True):
        assert drawn(capsys, 32, {("gpu07", "gpu20"): bad}, verbose=verbose)[2:] == [
            "from   gpu20",
            "gpu07  timeout",
        ]
    everywhere = {(f"gpu{one:02}", f"gpu{other:02}"): bad for one in range(32) for other in range(32)}
    lines = drawn(capsys, 32, everywhere)
    assert len(lines) == 3 + 12 + 1
    assert lines[-1] == "and 40 rows and columns more (`doctor --json` has all of them)"


def test_a_switch_that_is_down_costs_no_search_of_every_bad_pair_for_every_host() -> None:
    def act(names: list[ComparedName]) -> None:
        half, first = len(names) // 2, names[0]
        shut: Changed = {
            (name, first): {"verdict": "fail", "word": "timeout", "ports": "all"} for name in names[1:half]
        }
        print_pairs([way for name in names[1:] for way in pairs(name, first, changed=shut)], verbose=False)

    assert comparisons(act, 40) <= 2 * comparisons(act, 20)


def test_a_terminal_shows_verdicts_in_colour(
    capsys: pytest.CaptureFixture[str], terminal: Callable[[int], None]
) -> None:
    terminal(80)
    changed: Changed = {("gpu00", "gpu01"): {"verdict": "fail", "word": "timeout", "ports": "all"}}
    assert "\x1b[31mtimeout" in "\n".join(drawn(capsys, 2, changed))
