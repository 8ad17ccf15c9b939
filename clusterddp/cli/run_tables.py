"""Print runs as tables: their list, one host by host, where its workers are; and what differs between two."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING

from clusterddp.cli.command_lines import completed
from clusterddp.cli.tables import Table, escape, line, piped, show, when
from clusterddp.remote.shared.run.run_state import RunState
from clusterddp.remote.shared.text.counted import counted
from clusterddp.runs.difference import code_of, describe_code, environment_of
from clusterddp.runs.run_folders import describe_workdirs, workdir_label
from clusterddp.runs.run_status import UNREACHABLE
from clusterddp.runs.stacks import group_stacks
from clusterddp.text.folding import folded_names
from clusterddp.text.units import human_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.remote.shared.verdict.judge import Failure
    from clusterddp.runs.difference import Difference
    from clusterddp.runs.run_status import HostDetails
    from clusterddp.runs.run_view import RunView
    from clusterddp.runs.stacks import WorkerStack
    from clusterddp.sync.code_diff import FileDiff

_MOST_FRAMES = 20  # of a stack that are shown
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}  # of a line of a diff, by its first character
_SILENCE = 5  # seconds without output of any rank, from which on `status` says it
_MOST_RECOVERED = 5  # rounds that failed and were made good
_STYLES = {
    RunState.RUNNING: "green",
    RunState.SUCCEEDED: "green",
    RunState.FAILED: "red",
    RunState.LOST: "red",
    UNREACHABLE: "red",
}


def print_runs(found: Sequence[RunView], *, everything: bool = False) -> None:
    """Print one row per run; with ``everything`` also its project and operator."""
    folders = any(workdir_label(view.record) for view in found)
    environments = any(view.record.environment for view in found)
    more = ["code", *(["environment"] if environments else []), *(["folder"] if folders else [])]
    more += ["project", "operator"] if everything else []
    table = Table("run", "name", "state", "hosts", "ranks", "started", "duration", "exit", *more, "script", long=True)
    now = time.time()
    for view in found:
        summary, record = view.summary(), view.record
        ended = summary.ended or (now if view.live else None)
        begun = summary.started
        whose = [code_of(view.record) or "-", *([environment_of(view.record) or "-"] if environments else [])]
        whose += [workdir_label(view.record) or "-"] if folders else []
        whose += [view.record.label or "-", record.operator or "-"] if everything else []
        table.add(
            escape(view.run),
            escape(record.name or "-"),
            _coloured(summary.state),
            escape(folded_names(view.record.hosts, separator=",")),
            str(summary.world_size),
            _started(begun, now),
            human_duration(ended - begun) if ended and begun else "-",
            str(summary.verdict.exit_code) if summary.verdict else "-",
            *map(escape, whose),
            escape(shlex.join([str(record.script), *record.argv])),
        )
    show(table)


def folders_line(found: Sequence[RunView]) -> str:
    """Return a line on where runs in the project's own folder worked, and what the marks mean; empty for several."""
    own = {describe_workdirs(view.record) for view in found if not workdir_label(view.record)}
    if len(own) != 1 or "" in own:
        return ""
    marked = any(workdir_label(view.record) for view in found)
    return f"folder: {own.pop()}{'; what is marked stands beside it' if marked else ''}"


def _started(seconds: float | None, now: float) -> str:
    """Return when a run began: in full for programs, for people only as long as needed to distinguish it."""
    if piped():
        return when(seconds).replace(" ", "T")
    if seconds is None:
        return "-"
    begun, today = time.localtime(seconds), time.localtime(now)
    same_year = begun.tm_year == today.tm_year
    if same_year and begun.tm_yday == today.tm_yday:
        return time.strftime("%H:%M:%S", begun)
    return time.strftime("%m-%d %H:%M" if same_year else "%Y-%m-%d", begun)


def print_status(view: RunView) -> None:
    """Print one run host by host; how it ended is the last line."""
    summary, details, record = view.summary(), view.details(), view.record
    name = f" ({escape(record.name)})" if record.name else ""
    ranks = "" if summary.world_size is None else f", {counted(summary.world_size, 'rank')}"
    line(f"run {escape(view.run)}{name}: {_coloured(summary.state)}{ranks}")
    command = shlex.join([str(record.script), *record.argv])
    line(escape(f"started {when(summary.started)} by {record.operator}: {command}"))
    ran = describe_code(record)
    if ran:
        line(escape(ran))
    folder = describe_workdirs(record)
    if folder:
        line(f"folder: {escape(folder)}")
    for off, spare in record.replaced.items():
        line(escape(f"{off} could not be reached at the start; spare {spare} has its place"))
    for note in recovered_lines(details.failures):
        line(escape(note))
    for notice in summary.notices:
        line(escape(completed(notice)))
    if view.live and details.last_output and time.time() - details.last_output >= _SILENCE:
        line(f"no rank has printed for {_passed(time.time() - details.last_output)}")
    _print_hosts(details, live=view.live)
    if summary.verdict and summary.verdict.remedy:
        line(escape(f"remedy: {completed(summary.verdict.remedy)}"))
    if summary.verdict and summary.verdict.line:
        line(escape(f"verdict: {summary.verdict.line}"))


def recovered_lines(failures: Sequence[Failure]) -> list[str]:
    """Return a line for each round that failed and was recovered: its first cause, and how many more ranks failed."""
    rounds: dict[tuple[int, int], list[Failure]] = {}
    for failure in failures:
        if failure.recovered:
            rounds.setdefault((failure.attempt, failure.worker.start), []).append(failure)
    lines = []
    for (attempt, number), own in rounds.items():
        first = min(own, key=lambda failure: failure.kind)  # the cause first
        others = f"; {counted(len(own) - 1, 'other')}" if own[1:] else ""
        rank = f"rank {first.worker.rank} ({first.host}:{first.worker.local_rank})"
        lines.append(f"recovered (attempt {attempt}, round {number}): {rank}: {first.worker.text}{others}")
    if lines[_MOST_RECOVERED:]:
        left_out = f"recovered: {counted(len(lines) - _MOST_RECOVERED, 'round')} before (--json has all of them)"
        return [left_out, *lines[-_MOST_RECOVERED:]]
    return lines


def _print_hosts(details: HostDetails, *, live: bool) -> None:
    table = Table("host", "state", "ranks", "processes", "last output")
    for host in details.hosts:
        ranks = ",".join(map(str, host.ranks))
        printed = _ago(time.time() - host.last_output) if live and host.last_output else when(host.last_output)
        state = _coloured(host.state)
        if host.heard:
            state += escape(f" ({host.heard.state} {_ago(host.heard.seconds_ago)}, says {host.heard.by})")
        table.add(escape(host.name), state, ranks, str(len(host.pids)), printed)
    for host in details.spares:
        table.add(escape(host.name), escape(f"spare, {host.state}"), "", "", "")
    show(table)


def print_stacks(found: Sequence[WorkerStack]) -> None:
    """Print workers at the same position together: where they are, then their calls, the outermost first."""
    if not found:
        line("no worker is there to be asked")
    for group in group_stacks(found):
        line(f"[bold]{escape(str(group))}[/]")
        frames = group.workers[0].frames
        if len(frames) > _MOST_FRAMES:
            line("    …")
        for frame in frames[-_MOST_FRAMES:]:
            text = escape(f"    {frame.file}:{frame.line} in {frame.function}")
            line(f"[dim]{text}[/]" if frame.installed else text)


def _coloured(state: str) -> str:
    style = _STYLES.get(state)
    return f"[{style}]{state}[/]" if style else escape(state)


def _ago(passed: float) -> str:
    """``now``, ``4 s ago``, ``12 min ago``."""
    return f"{_passed(passed)} ago" if passed >= 1 else "now"


def _passed(passed: float) -> str:
    """``4 s``, ``12 min``, ``3 h``, ``2 d``."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if passed >= 2 * unit:
            return f"{passed // unit:.0f} {name}"
    return f"{passed:.0f} s"


def print_diff(a: str, b: str, found: Sequence[Difference], files: Sequence[FileDiff]) -> None:
    """Print a row for each difference between two runs, then the differing files."""
    if found:
        table = Table("what", a, b, long=True)
        for one in found:
            table.add(escape(one.what), escape(one.a or "-"), escape(one.b or "-"))
        show(table)
    for file in files:
        line(f"[bold]{escape(f'{file.change} {file.path}')}[/]{escape(f' ({file.note})' if file.note else '')}")
        for text in file.lines:
            style = _DIFF_STYLES.get(text[:1])
            line(f"[{style}]{escape(text)}[/]" if style else escape(text))
