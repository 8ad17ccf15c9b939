"""Values in, tables out: the only importer of rich. Log lines never pass here (logs/)."""

from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from clusterddp.checks.model import worst
from clusterddp.facts import BLACK_HOLE
from clusterddp.runs.stacks import groups
from clusterddp.text.folding import collapsed
from clusterddp.text.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterddp.checks.model import CheckResult
    from clusterddp.errors import HostKeyError
    from clusterddp.facts import Bench, Pair, Speed, Together
    from clusterddp.launch.prepare import HostReport
    from clusterddp.runs.stacks import WorkerStack
    from clusterddp.runs.view import RunView

_GIB = 1 << 30
_MOST_FRAMES = 20  # of a stack that are shown
_MOST_COLUMNS = 12  # hosts in a matrix of pairs; of more the slowest ways are shown
_MOST_RECOVERED = 5  # earlier failures that status shows
_MARKS = {
    "pass": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red"), "unknown": ("?", "yellow"),
    "skipped": ("–", "dim"),
}  # fmt: skip
_STYLES = {"running": "green", "succeeded": "green", "failed": "red", "lost": "red", "unreachable": "red"}


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(one_line(column), overflow="fold")
    return table


def _row(table: Table, *cells: str) -> None:
    """A row; nothing in its cells is obeyed by a terminal. What comes from elsewhere is escaped by who writes it."""
    table.add_row(*(one_line(cell) for cell in cells))


def _line(console: Console, line: str) -> None:
    """A line, as ``_row``."""
    console.print(one_line(line))


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
        first, last = report.ranks or ("spare", "spare")
        _row(
            table,
            escape(report.host),
            escape(report.address),
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
        _row(table, escape(error.host), escape(error.fingerprint))
    _print(table, stderr=True)


def print_runs(found: Sequence[RunView]) -> None:
    """One line a run."""
    table = _table("run", "name", "state", "started", "ranks", "script", "operator", "verdict")
    for view in found:
        value = view.to_json(hosts=False)
        _row(
            table,
            escape(view.run),
            escape(value["name"] or ""),
            _coloured(value["state"]),
            _when(value["started"]),
            str(value["world_size"]),
            escape(shlex.join([str(value["script"]), *(value["argv"] or [])])[:60]),
            escape(value["operator"] or ""),
            escape(value["verdict"] or ""),
        )
    _print(table)


def print_status(view: RunView) -> None:
    """One run, host by host."""
    value = view.to_json()
    console = Console(highlight=False, soft_wrap=True)  # a line is a line, also for a pipe
    name = f" ({escape(value['name'])})" if value["name"] else ""
    _line(console, f"run {escape(view.run)}{name}: {_coloured(value['state'])}, {value['world_size']} ranks")
    _line(
        console,
        f"started {_when(value['started'])} by {escape(str(value['operator']))}: {escape(str(value['script']))}",
    )
    if value["verdict"]:
        _line(console, f"verdict: {escape(value['verdict'])}")
    if value["remedy"]:
        _line(console, f"remedy: {escape(value['remedy'])}")
    for failure in [failure for failure in value["failures"] if failure["recovered"]][-_MOST_RECOVERED:]:
        where = f"rank {failure['rank']} ({failure['host']}:{failure['local_rank']})"
        when = f"attempt {failure['attempt']}, round {failure['round']}"
        _line(console, f"recovered ({when}): {escape(where)}: {escape(failure['message'])}")
    for notice in value["notices"]:
        _line(console, escape(notice))
    if view.live and value["last_output"]:
        _line(console, f"no rank has printed for {_ago(value['last_output'])}")
    table = _table("host", "state", "ranks", "processes", "last output")
    for host in value["hosts"]:
        ranks = ",".join(map(str, host["ranks"]))
        printed = _when(host["last_output"])
        if view.live and host["last_output"]:
            printed = f"{_ago(host['last_output'])} ago"
        state = _coloured(host["state"])
        if host.get("told"):
            told = host["told"]
            state += escape(f" ({told['state']} {told['seconds_ago']:.0f} s ago, says {told['by']})")
        _row(table, escape(host["name"]), state, ranks, str(len(host["pids"])), printed)
    for host in value["spares"]:
        _row(table, escape(host["name"]), escape(f"spare, {host['state']}"), "", "", "")
    _print(table)


def print_doctor(results: Sequence[CheckResult], *, verbose: bool) -> None:
    """Category by category: what is wrong, on which hosts, what a user would have seen, what to do."""
    console = Console(highlight=False, soft_wrap=True)
    categories = list(dict.fromkeys(result.category for result in results))
    bad = 0
    for category in categories:
        own = [result for result in results if result.category == category]
        verdict = worst(own)
        bad += verdict != "pass"
        _line(console, _heading(category, own, verdict))
        for result in own:
            if verbose or result.verdict not in ("pass", "skipped"):
                _print_result(console, result, verbose=verbose)
    _line(console, f"{bad} of {len(categories)} categories need attention" if bad else "nothing is wrong")


def _heading(category: str, own: Sequence[CheckResult], verdict: str) -> str:
    """A category's line; where nothing is wrong, how much was judged at all."""
    judged = {result.name for result in own if result.verdict == "pass"}
    skipped = len({result.name for result in own} - judged)
    if verdict != "pass":
        return f"{_mark(verdict, brackets=True)} [bold]{escape(category)}[/]"
    counts = [f"{len(judged)} check{'' if len(judged) == 1 else 's'}"] if judged else []
    counts += [f"{skipped} skipped"] if skipped else []
    return f"{_mark('pass' if judged else 'skipped', brackets=True)} [bold]{escape(category)}[/]  {', '.join(counts)}"


def _print_result(console: Console, result: CheckResult, *, verbose: bool) -> None:
    hosts = ", ".join(result.hosts) if verbose else collapsed(result.hosts)
    skipped = "skipped " if result.verdict == "skipped" else ""
    _line(console, f"    {_mark(result.verdict)} {escape(f'{result.name}: {hosts}: {skipped}{result.message}')}")
    if result.symptom:
        _line(console, f"[dim]{escape(f'      you would see: {result.symptom}')}[/]")
    if result.fix:
        _line(console, escape(f"      fix: {result.fix}"))


def _mark(verdict: str, *, brackets: bool = False) -> str:
    sign, style = _MARKS[verdict]
    return f"[{style}]{escape(f'[{sign}]') if brackets else sign}[/]"


def print_bench(bench: Bench) -> None:
    """What was measured, as tables."""
    if bench.speeds:
        sys.stdout.write(f"\nbandwidth by TCP in Gbit/s on {one_line(bench.label)}, one stream, row → column\n")
        _print(_pairs(bench.speeds))
    if bench.together:
        _print_together(bench.together)


def _print_together(together: Together) -> None:
    """All-reduces in the columns of nccl-tests, then a line for each rank."""
    measured = together.measured
    if measured.reduces:
        sys.stdout.write(f"\nall-reduce by {together.backend} over {measured.reduces[0].world} ranks\n")
        times = ("time (us)", "p95 (us)", "algbw (GB/s)", "busbw (GB/s)")
        table = _table("size (B)", "count", "type", "redop", *times, "#wrong")
        for one in measured.reduces:
            words = one.to_json()
            numbers = (f"{words[name]:.2f}" for name in ("time_us", "time_p95_us", "algbw", "busbw"))
            _row(table, str(one.size), str(one.count), escape(one.type), escape(one.redop), *numbers, str(one.wrong))
        _print(table)
    if measured.gemms:
        sys.stdout.write("\nranks: a matrix product; equal work between two meetings\n")
        table = _table("rank", "host", "device", "product", "TFLOP/s", "#wrong", "worked (ms)", "waited (ms)")
        late = {one.rank: one.to_json() for one in measured.lateness}
        for gemm in measured.gemms:
            own = late.get(gemm.rank, {})
            product = (escape(gemm.device or "CPU"), f"{gemm.size} {gemm.type}", f"{gemm.tflops:.3g}", str(gemm.wrong))
            met = (str(own.get(name, "-")) for name in ("worked_ms", "waited_ms"))
            _row(table, str(gemm.rank), escape(gemm.host), *product, *met)
        _print(table)


def _pairs(speeds: Sequence[Speed]) -> Table:
    """Who sends by row, who receives by column; of many hosts the slowest ways."""
    names = list(dict.fromkeys(one.source for one in speeds))
    if len(names) > _MOST_COLUMNS:
        table = _table("from", "to", "Gbit/s")
        for one in sorted(speeds, key=lambda one: one.mbit)[:_MOST_COLUMNS]:
            _row(table, escape(one.source), escape(one.target), _gbit(one))
        return table
    return _grid(names, names, {(one.source, one.target): _gbit(one) for one in speeds})


def _grid(sources: Sequence[str], targets: Sequence[str], cells: Mapping[tuple[str, str], str]) -> Table:
    """A row for each source, a column for each target."""
    table = _table("", *targets)
    for source in sources:
        row = ["X" if source == target else cells.get((source, target), "") for target in targets]
        _row(table, escape(source), *row)
    return table


def print_pairs(pairs: Sequence[Pair], *, verbose: bool) -> None:
    """What the dials between all hosts came to; where not all is wanted, only rows and columns of trouble."""
    names = list(dict.fromkeys(one.source for one in pairs))
    bad = [one for one in pairs if one.verdict != "pass"]
    if not pairs or not (bad or verbose):
        return
    sources, targets = names, names
    if bad and (not verbose or len(names) > _MOST_COLUMNS):
        sources = [name for name in names if any(one.source == name for one in bad)]
        targets = [name for name in names if any(one.target == name for one in bad)]
    left_out = max(0, len(sources) - _MOST_COLUMNS) + max(0, len(targets) - _MOST_COLUMNS)
    sys.stdout.write("\nround trips by TCP in ms, row → column; X: itself, ?: not dialled\n")
    cells = {(one.source, one.target): _way(one) for one in pairs}
    _print(_grid(sources[:_MOST_COLUMNS], targets[:_MOST_COLUMNS], cells))
    if left_out:
        sys.stdout.write(f"and {left_out} rows and columns more (--json has all of them)\n")


def _way(pair: Pair) -> str:
    """A pair in a few letters, in the colour of its verdict."""
    text = "-" if pair.rtt_ms is None else f"{pair.rtt_ms:.2g}"
    if pair.verdict == "unknown":
        text = "?"
    elif pair.verdict == "warn":
        text = f"{100 * pair.loss:.0f}% lost"
    elif pair.verdict == "fail":
        text = pair.word if pair.ports in ("", "all") or pair.word == BLACK_HOLE else f"{pair.word} ({pair.ports})"
    return f"[{_MARKS[pair.verdict][1]}]{escape(text)}[/]"


def _gbit(speed: Speed) -> str:
    return "-" if speed.error else f"{speed.mbit / 1000:.3g}"


def print_stacks(found: Sequence[WorkerStack]) -> None:
    """Workers at the same place together: where they are, then their calls, the outermost first."""
    console = Console(highlight=False, soft_wrap=True)
    if not found:
        _line(console, "no worker is there to be asked")
    for group in groups(found):
        _line(console, f"[bold]{escape(str(group))}[/]")
        frames = group.workers[0].frames
        if len(frames) > _MOST_FRAMES:
            _line(console, "    …")
        for frame in frames[-_MOST_FRAMES:]:
            text = escape(f"    {frame.file}:{frame.line} in {frame.function}")
            _line(console, f"[dim]{text}[/]" if frame.installed else text)


def _coloured(state: str) -> str:
    style = _STYLES.get(state)
    return f"[{style}]{state}[/]" if style else escape(state)


def _ago(seconds: float) -> str:
    """``4 s``, ``12 min``, ``3 h``, ``2 d``: how long ago a time was."""
    passed = max(0.0, time.time() - seconds)
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if passed >= 2 * unit:
            return f"{passed // unit:.0f} {name}"
    return f"{passed:.0f} s"


def _when(seconds: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "-"
