"""Print tables as wide as the output; the only module that imports rich. Log lines are drawn in logs/.

A terminal that is wide enough gets a line per row, a narrower one two, and a still narrower one a block per row. A pipe
or a file gets a line per row and a header for awk, whatever their width: one word per column, and no blank in a cell
except in the last column.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from clusterddp.cli.output import MESSAGE_PREFIX
from clusterddp.text.folding import cut_in_the_middle
from clusterddp.text.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Table", "drawn", "escape", "is_piped", "line", "show", "time_text"]

_GAP = 2  # blanks between columns, and before the second line of a row
_MIN_LAST_WIDTH = 20  # columns that the last cell keeps at least, if it may be cut


class Table:
    """A header and rows of markup; callers escape text that comes from elsewhere.

    Control characters in a cell have no effect on a terminal. ``long``: the last column's cells may be cut in the
    middle.
    """

    def __init__(self, *columns: str, long: bool = False) -> None:
        self.rows = [[Text(one_line(column), style="bold") for column in columns]]
        self.long = long

    def add(self, *cells: str) -> None:
        """Add a row."""
        self.rows.append([_text(cell) for cell in cells])


def line(markup: str) -> None:
    """Print one line on stdout without wrapping it; control characters have no effect."""
    console = _console()
    with console.capture() as captured:
        console.print(_text(markup))
    _write(captured.get())


def show(table: Table, *, stderr: bool = False) -> None:
    """Print a table on stdout, or on stderr as messages of ours."""
    console = _console(stderr=stderr)
    prefix = MESSAGE_PREFIX if stderr else ""
    width = console.width - len(prefix)
    with console.capture() as captured:
        for drawn in _draw_for_terminal(table, width) if console.is_terminal else _draw_for_programs(table):
            console.print(drawn)
    _write("".join(f"{prefix}{text.rstrip()}\n" for text in captured.get().splitlines()), stderr=stderr)


def drawn(parts: Sequence[str | Table]) -> list[str]:
    """Return lines of markup and tables as the lines that this output shows; control characters have no effect."""
    console = _console()
    with console.capture() as captured:
        for part in parts:
            if isinstance(part, str):
                _print_folded(console, part)
                continue
            for row in _draw_for_terminal(part, console.width) if console.is_terminal else _draw_for_programs(part):
                console.print(row)
    return [text.rstrip() for text in captured.get().splitlines()]


def _print_folded(console: Console, markup: str) -> None:
    """Print a line of markup, on a terminal as several that are no wider than it."""
    text = _text(markup)
    for part in text.wrap(console, console.width) if console.is_terminal else [text]:
        part.rstrip()
        console.print(part)


def is_piped() -> bool:
    """Whether stdout is a pipe or a file rather than a terminal."""
    return not sys.stdout.isatty()


def time_text(seconds: float | None) -> str:
    """Return a time as text; ``-`` for none."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "-"


def _text(markup: str) -> Text:
    return Text.from_markup(one_line(markup), emoji=False)  # the :a: of an address is no emoji


def _console(*, stderr: bool = False) -> Console:
    forced = bool(os.environ.get("CLICOLOR_FORCE", "0").strip("0")) and not os.environ.get("NO_COLOR")
    return Console(
        stderr=stderr,
        highlight=False,
        soft_wrap=True,
        color_system="standard" if forced else "auto",
        force_terminal=(sys.stderr if stderr else sys.stdout).isatty(),  # whatever FORCE_COLOR says
    )


def _write(text: str, *, stderr: bool = False) -> None:
    """Write to stdout or stderr at once; a console's own way to write exits with 1 when the reader has gone."""
    stream = sys.stderr if stderr else sys.stdout
    stream.write(text)
    stream.flush()


def _draw_for_programs(table: Table) -> Iterator[Text]:
    """Draw one line per row; a blank in a cell becomes ``_`` and no cell is empty, except in the last column."""
    header, *rows = table.rows
    rows = [list(map(_as_one_word, header)), *([*map(_as_one_word, row[:-1]), row[-1]] for row in rows)]
    return _align(rows, _column_widths(rows))


def _as_one_word(cell: Text) -> Text:
    """Return the cell with ``_`` for each blank, and ``-`` if it is empty."""
    return Text(cell.plain.replace(" ", "_") or "-", style=cell.style, spans=cell.spans)


def _draw_for_terminal(table: Table, width: int) -> Iterator[Text]:
    """Draw a line for each row if it fits into ``width`` columns, else two lines, else a block."""
    widths = _column_widths(table.rows)
    needed = [*widths[:-1], min(widths[-1], _MIN_LAST_WIDTH) if table.long else widths[-1]]
    first = _count_fitting(needed, width)
    if first == len(needed):
        yield from _align(_cut_last_cells(table, width - sum(needed[:-1]) - _GAP * (first - 1)), widths)
    elif first and first + _count_fitting(needed[first:], width - _GAP) == len(needed):
        rows = _cut_last_cells(table, width - sum(needed[first:-1]) - _GAP * (len(needed) - first))
        upper = _align([row[:first] for row in rows], widths)
        lower = _align([row[first:] for row in rows], widths[first:])
        for above, below in zip(upper, lower, strict=True):
            yield above
            yield Text(" " * _GAP).append_text(below)
    else:
        yield from _draw_blocks(table, width)


def _count_fitting(widths: Sequence[int], width: int) -> int:
    """Return how many columns, from the first, fit beside each other."""
    taken = -_GAP
    for count, one in enumerate(widths):
        taken += _GAP + one
        if taken > width:
            return count
    return len(widths)


def _cut_last_cells(table: Table, room: int) -> list[list[Text]]:
    """Return the rows, with their last cells cut to ``room`` where that is allowed."""
    if not table.long:
        return table.rows
    return [[*row[:-1], _shorten(row[-1], room)] for row in table.rows]


def _shorten(cell: Text, room: int) -> Text:
    return cell if cell.cell_len <= room else Text(cut_in_the_middle(cell.plain, room))


def _align(rows: Sequence[Sequence[Text]], widths: Sequence[int]) -> Iterator[Text]:
    """Draw each row as one line, its cells padded to the widths of their columns."""
    for row in rows:
        drawn = Text()
        for cell, width in zip(row, widths, strict=False):
            drawn.append_text(cell).append(" " * (_GAP + max(0, width - cell.cell_len)))
        drawn.rstrip()
        yield drawn


def _draw_blocks(table: Table, width: int) -> Iterator[Text]:
    """Draw each row as its first cell on a line and below it the others, each after its column's name."""
    header, *rows = table.rows
    (label,) = _column_widths([[max(header[1:], key=lambda cell: cell.cell_len, default=Text())]])
    for row in rows:
        yield Text(style=header[0].style).append_text(row[0])
        for number, cell in enumerate(row[1:], 1):
            if cell.plain not in ("", "-"):
                name = header[number].plain.ljust(label)
                room = width - label - 2 * _GAP
                last = table.long and number == len(row) - 1
                yield Text(f"{' ' * _GAP}{name}{' ' * _GAP}").append_text(_shorten(cell, room) if last else cell)


def _column_widths(rows: Sequence[Sequence[Text]]) -> list[int]:
    """Return the width of each column's widest cell."""
    return [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
