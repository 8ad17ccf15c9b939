"""Values in, tables out: the only importer of rich. Log lines never pass here (logs/)."""

from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.errors import HostKeyError
    from clusterddp.prepare import HostReport
    from clusterddp.runs import RunView

_GIB = 1 << 30
_STYLES = {"running": "green", "succeeded": "green", "failed": "red", "lost": "red", "unreachable": "red"}


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print(table: Table, *, stderr: bool = False) -> None:
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = 200  # a pipe has no width; never fold what a program may read
    if not stderr:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        sys.stderr.write(f"clusterddp: {line.rstrip()}\n")


def print_up(reports: Sequence[HostReport]) -> None:
    """The cluster as ``up`` found it."""
    table = _table("host", "address", "nic", "gpus", "cores", "memory", "python", "torch", "ranks")
    for report in reports:
        facts = report.facts
        memory = f"{facts.memory_bytes / _GIB:.0f} GiB" if facts.memory_bytes else "?"
        first, last = report.ranks
        table.add_row(
            escape(report.host),
            report.address,
            escape(report.interface),
            escape(_gpus(report)),
            str(facts.cores),
            memory,
            escape(facts.python_version or "-"),
            escape(facts.torch.version if facts.torch else "-"),
            str(first) if first == last else f"{first}-{last}",
        )
    _print(table)


def _gpus(report: HostReport) -> str:
    names: dict[str, int] = {}
    for gpu in report.facts.gpus:
        names[gpu.name] = names.get(gpu.name, 0) + 1
    return ", ".join(f"{count}× {name}" for name, count in names.items()) or "-"


def print_keys(errors: Sequence[HostKeyError]) -> None:
    """Unknown host keys, as one table on stderr."""
    table = _table("host", "key")
    for error in errors:
        table.add_row(escape(error.host), error.fingerprint)
    _print(table, stderr=True)


def print_runs(found: Sequence[RunView]) -> None:
    """One line a run."""
    table = _table("run", "name", "state", "started", "ranks", "script", "operator", "verdict")
    for view in found:
        value = view.to_json(hosts=False)
        table.add_row(
            view.run,
            escape(value["name"] or ""),
            _coloured(value["state"]),
            _when(value["started"]),
            str(value["world_size"]),
            escape(shlex.join([str(value["script"]), *(value["argv"] or [])]).replace("\n", "\\n")[:60]),
            escape(value["operator"] or ""),
            escape(value["verdict"] or ""),
        )
    _print(table)


def print_status(view: RunView) -> None:
    """One run, host by host."""
    value = view.to_json()
    console = Console(highlight=False)
    name = f" ({escape(value['name'])})" if value["name"] else ""
    console.print(f"run {view.run}{name}: {_coloured(value['state'])}, {value['world_size']} ranks")
    console.print(
        f"started {_when(value['started'])} by {escape(str(value['operator']))}: {escape(str(value['script']))}"
    )
    if value["verdict"]:
        console.print(f"verdict: {escape(value['verdict'])}")
    table = _table("host", "state", "ranks", "processes")
    for host in value["hosts"]:
        ranks = ",".join(map(str, host["ranks"]))
        table.add_row(escape(host["name"]), _coloured(host["state"]), ranks, str(len(host["pids"])))
    _print(table)


def _coloured(state: str) -> str:
    style = _STYLES.get(state)
    return f"[{style}]{state}[/]" if style else state


def _when(seconds: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "-"
