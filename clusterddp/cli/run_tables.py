"""Print runs as tables: their list, one host by host, where its workers are; and what differs between two."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING

from clusterddp.cli.command_lines import complete_commands
from clusterddp.cli.tables import Table, escape, is_piped, line, show, time_text
from clusterddp.remote.shared.processes.worker_stacks import group_stacks
from clusterddp.remote.shared.run.run_state import RunState
from clusterddp.remote.shared.text.counted import counted
from clusterddp.remote.shared.text.short_duration import ago, short_duration
from clusterddp.runs.difference import code_of, describe_code, environment_of
from clusterddp.runs.run_folders import describe_workdirs, workdir_label
from clusterddp.runs.view.run_status import UNREACHABLE
from clusterddp.text.folding import folded_names
from clusterddp.text.units import human_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.remote.shared.processes.worker_stacks import WorkerStack
    from clusterddp.remote.shared.verdict.judge import Failure
    from clusterddp.runs.difference import Difference
    from clusterddp.runs.view.run_status import HostDetails
    from clusterddp.runs.view.run_view import RunView
    from clusterddp.sync.code_diff import FileDiff

_MAX_FRAMES = 20  # of a stack that are shown
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}  # of a line of a diff, by its first character
_MIN_SILENCE = 5  # seconds without output of any rank, from which on `status` reports it
_MAX_RECOVERED = 5  # rounds that are shown of those that failed and were repeated
_STATE_STYLES = {
    RunState.RUNNING: "green",
    RunState.SUCCEEDED: "green",
    RunState.FAILED: "red",
    RunState.LOST: "red",
    UNREACHABLE: "red",
}


def print_runs(views: Sequence[RunView], *, everything: bool = False) -> None:
    """Print one row per run; with ``everything`` also its project and operator."""
    folders = any(workdir_label(view.record) for view in views)
    environments = any(view.record.environment for view in views)
    extra = ["code", *(["environment"] if environments else []), *(["folder"] if folders else [])]
    extra += ["project", "operator"] if everything else []
    table = Table("run", "name", "state", "hosts", "ranks", "started", "duration", "exit", *extra, "script", long=True)
    now = time.time()
    for view in views:
        summary, record = view.summary(), view.record
        ended = summary.ended or (now if view.live else None)
        started = summary.started
        extra_cells = [code_of(view.record) or "-", *([environment_of(view.record) or "-"] if environments else [])]
        extra_cells += [workdir_label(view.record) or "-"] if folders else []
        extra_cells += [view.record.label or "-", record.operator or "-"] if everything else []
        table.add(
            escape(view.run),
            escape(record.name or "-"),
            _state_markup(summary.state),
            escape(folded_names(view.record.hosts, separator=",")),
            str(summary.world_size),
            _start_time(started, now),
            human_duration(ended - started) if ended and started else "-",
            str(summary.verdict.exit_code) if summary.verdict else "-",
            *map(escape, extra_cells),
            escape(shlex.join([str(record.script), *record.argv])),
        )
    show(table)


def folders_line(views: Sequence[RunView]) -> str:
    """Return the line below `runs` that names the folder of all runs without a workdir label; empty if they differ."""
    unmarked = {describe_workdirs(view.record) for view in views if not workdir_label(view.record)}
    if len(unmarked) != 1 or "" in unmarked:
        return ""
    marked = any(workdir_label(view.record) for view in views)
    return f"folder: {unmarked.pop()}{'; what is marked stands beside it' if marked else ''}"


def _start_time(seconds: float | None, now: float) -> str:
    """Return when a run began: in full for programs; on a terminal the time if it was today, else the date."""
    if is_piped():
        return time_text(seconds).replace(" ", "T")
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
    line(f"run {escape(view.run)}{name}: {_state_markup(summary.state)}{ranks}")
    command = shlex.join([str(record.script), *record.argv])
    line(escape(f"started {time_text(summary.started)} by {record.operator}: {command}"))
    versions = describe_code(record)
    if versions:
        line(escape(versions))
    folder = describe_workdirs(record)
    if folder:
        line(f"folder: {escape(folder)}")
    for replaced_host, spare in record.replaced.items():
        line(escape(f"{replaced_host} could not be reached at the start; spare {spare} has its place"))
    for note in recovered_lines(details.failures):
        line(escape(note))
    for notice in summary.notices:
        line(escape(complete_commands(notice)))
    if view.live and details.last_output and time.time() - details.last_output >= _MIN_SILENCE:
        line(f"no rank has printed for {short_duration(time.time() - details.last_output)}")
    _print_hosts(details, live=view.live)
    if summary.verdict and summary.verdict.remedy:
        line(escape(f"remedy: {complete_commands(summary.verdict.remedy)}"))
    if summary.verdict and summary.verdict.line:
        line(escape(f"verdict: {summary.verdict.line}"))


def recovered_lines(failures: Sequence[Failure]) -> list[str]:
    """Return a line for each round that failed and was recovered: its first cause, and how many more ranks failed."""
    rounds: dict[tuple[int, int], list[Failure]] = {}
    for failure in failures:
        if failure.recovered:
            rounds.setdefault((failure.attempt, failure.worker.start), []).append(failure)
    lines = []
    for (attempt, number), group in rounds.items():
        first = min(group, key=lambda failure: failure.kind)  # the cause first
        others = f"; {counted(len(group) - 1, 'other')}" if group[1:] else ""
        rank = f"rank {first.worker.rank} ({first.host}:{first.worker.local_rank})"
        lines.append(f"recovered (attempt {attempt}, round {number}): {rank}: {first.worker.text}{others}")
    if lines[_MAX_RECOVERED:]:
        left_out = f"recovered: {counted(len(lines) - _MAX_RECOVERED, 'round')} before (--json has all of them)"
        return [left_out, *lines[-_MAX_RECOVERED:]]
    return lines


def _print_hosts(details: HostDetails, *, live: bool) -> None:
    """Print a row for each host and spare of a run; ``live``: its last output is shown as an age."""
    table = Table("host", "state", "ranks", "processes", "last output")
    for host in details.hosts:
        ranks = ",".join(map(str, host.ranks))
        printed = ago(time.time() - host.last_output) if live and host.last_output else time_text(host.last_output)
        state = _state_markup(host.state)
        if host.heard:
            state += escape(f" ({host.heard.state} {ago(host.heard.seconds_ago)}, says {host.heard.by})")
        table.add(escape(host.name), state, ranks, str(len(host.pids)), printed)
    for host in details.spares:
        table.add(escape(host.name), escape(f"spare, {host.state}"), "", "", "")
    show(table)


def print_stacks(stacks: Sequence[WorkerStack]) -> None:
    """Print workers at the same position together: where they are, then their calls, the outermost first."""
    if not stacks:
        line("no worker is there to be asked")
    for group in group_stacks(stacks):
        line(f"[bold]{escape(str(group))}[/]")
        frames = group.workers[0].frames
        if len(frames) > _MAX_FRAMES:
            line("    …")
        for frame in frames[-_MAX_FRAMES:]:
            text = escape(f"    {frame.file}:{frame.line} in {frame.function}")
            line(f"[dim]{text}[/]" if frame.installed else text)


def _state_markup(state: str) -> str:
    """Return a run's or host's state as markup in its colour."""
    style = _STATE_STYLES.get(state)
    return f"[{style}]{state}[/]" if style else escape(state)


def print_diff(a: str, b: str, differences: Sequence[Difference], files: Sequence[FileDiff]) -> None:
    """Print a row for each difference between two runs, then the differing files."""
    if differences:
        table = Table("what", a, b, long=True)
        for difference in differences:
            table.add(escape(difference.what), escape(difference.a or "-"), escape(difference.b or "-"))
        show(table)
    for file in files:
        line(f"[bold]{escape(f'{file.change} {file.path}')}[/]{escape(f' ({file.note})' if file.note else '')}")
        for text in file.lines:
            style = _DIFF_STYLES.get(text[:1])
            line(f"[{style}]{escape(text)}[/]" if style else escape(text))
