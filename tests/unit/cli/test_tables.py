"""Tables, as wide as what reads them: terminals of all widths, and programs."""

from __future__ import annotations

import io
import os
import re
import sys
from typing import TYPE_CHECKING

import pytest

from clusterddp.cli import tables
from clusterddp.cli.tables import Table, escape, is_piped, line, show

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = (
    ("4w3actrwq8", "succeeded", "gpu[00:03]", "0", "train.py --data /mnt/data --out last.pt"),
    ("ybfvbzmjn8", "failed", "", "143", "fail.py"),
)


def drawn(capsys: pytest.CaptureFixture[str], *rows: tuple[str, ...], long: bool = True) -> list[str]:
    table = Table("run", "state", "hosts", "exit", "script", long=long)
    for row in rows or ROWS:
        table.add(*(cell.replace("[", "\\[") for cell in row))
    show(table)
    return re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()


def test_a_program_gets_a_line_a_row_that_awk_can_take_apart(capsys: pytest.CaptureFixture[str]) -> None:
    lines = drawn(capsys, ("a b", "x", "", "1", "train.py " + "x" * 300), *ROWS)
    assert [len(line.split(None, 4)) for line in lines] == [5] * 4
    assert lines[0].split() == ["run", "state", "hosts", "exit", "script"]
    assert lines[1].split(None, 4) == ["a_b", "x", "-", "1", "train.py " + "x" * 300]
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("name", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_a_program_gets_the_same_where_colours_are_forced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    lines = drawn(capsys)
    monkeypatch.setenv(name, "1")
    assert is_piped()
    assert drawn(capsys) == lines
    line("[bold]x[/]")
    assert capsys.readouterr().out == "x\n"


@pytest.mark.parametrize("text", ["2001:db8:a:b::1", "-x = rows[i:x:2]", "--mix 1:100:x:2"])
def test_colons_are_shown_as_they_are(capsys: pytest.CaptureFixture[str], text: str) -> None:
    line(escape(text))
    assert capsys.readouterr().out == f"{text}\n"
    table = Table("text")
    table.add(escape(text))
    show(table)
    assert capsys.readouterr().out == f"text\n{text}\n"
    assert tables.drawn([escape(text), table]) == [text, "text", text]


def test_a_line_whose_reader_has_gone_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with io.TextIOWrapper(io.FileIO(writer, "w"), write_through=True) as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        with pytest.raises(BrokenPipeError):
            line("x")


def test_a_wide_terminal_gets_a_line_a_row_with_the_script_cut_in_its_middle(
    capsys: pytest.CaptureFixture[str], terminal: Callable[[int], None]
) -> None:
    terminal(72)
    assert drawn(capsys) == [
        "run         state      hosts       exit  script",
        "4w3actrwq8  succeeded  gpu[00:03]  0     train.py --data…a --out last.pt",
        "ybfvbzmjn8  failed                 143   fail.py",
    ]


def test_a_narrower_one_gets_two_lines_a_row(
    capsys: pytest.CaptureFixture[str], terminal: Callable[[int], None]
) -> None:
    terminal(45)
    assert drawn(capsys) == [
        "run         state      hosts       exit",
        "  script",
        "4w3actrwq8  succeeded  gpu[00:03]  0",
        "  train.py --data /mnt/data --out last.pt",
        "ybfvbzmjn8  failed                 143",
        "  fail.py",
    ]


def test_a_narrow_one_gets_a_block_a_row(capsys: pytest.CaptureFixture[str], terminal: Callable[[int], None]) -> None:
    terminal(24)
    assert drawn(capsys) == [
        "4w3actrwq8",
        "  state   succeeded",
        "  hosts   gpu[00:03]",
        "  exit    0",
        "  script  train.p…ast.pt",
        "ybfvbzmjn8",
        "  state   failed",
        "  exit    143",
        "  script  fail.py",
    ]


def test_no_first_cell_is_ever_broken_and_no_line_is_too_long(
    capsys: pytest.CaptureFixture[str], terminal: Callable[[int], None]
) -> None:
    for width in range(5, 120):
        terminal(width)
        lines = drawn(capsys)
        assert [sum(run in line.split() for line in lines) for run in ("4w3actrwq8", "ybfvbzmjn8")] == [1, 1]
        assert all(len(line) <= max(width, 20) for line in lines)


def test_cells_that_may_not_be_cut_never_are(
    capsys: pytest.CaptureFixture[str], terminal: Callable[[int], None]
) -> None:
    for width in range(5, 120):
        terminal(width)
        assert ROWS[0][4] in "\n".join(drawn(capsys, long=False))


def test_wide_letters_take_two_columns(capsys: pytest.CaptureFixture[str], terminal: Callable[[int], None]) -> None:
    terminal(60)
    assert drawn(capsys, ("日本", "x", "y", "0", "日本語" * 20), ("a", "x", "y", "0", "b"))[1:] == [
        "日本  x      y      0     日本語日本語日本…本語日本語日本語",
        "a     x      y      0     b",
    ]
