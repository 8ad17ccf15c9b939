"""What tells two runs apart, as a table, and below it their code line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.cli.tables import Table, escape, line, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.runs.difference import Difference
    from clusterddp.sync.code_diff import FileDiff

_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def print_diff(a: str, b: str, found: Sequence[Difference], files: Sequence[FileDiff]) -> None:
    """A row for each difference, then the files."""
    if found:
        table = Table("what", a, b, long=True)
        for one in found:
            table.add(escape(one.what), escape(one.a or "-"), escape(one.b or "-"))
        show(table)
    for file in files:
        line(f"[bold]{escape(f'{file.change} {file.path}')}[/]{escape(f' ({file.note})' if file.note else '')}")
        for text in file.lines:
            style = _STYLES.get(text[:1])
            line(f"[{style}]{escape(text)}[/]" if style else escape(text))
