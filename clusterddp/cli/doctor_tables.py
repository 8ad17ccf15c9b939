"""Print what the doctor found and measured, as lines and tables."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from clusterddp.checks.model import worst
from clusterddp.cli.command_lines import complete_commands
from clusterddp.cli.tables import Table, escape, line, show
from clusterddp.remote.shared.probes.network_records import BLACK_HOLE
from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.folding import folded_names
from clusterddp.text.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterddp.checks.model import CheckResult
    from clusterddp.facts.bench import Bench, Together
    from clusterddp.facts.dials import Pair
    from clusterddp.facts.speeds import Speed

_MAX_COLUMNS = 12  # hosts in a matrix of pairs; for more hosts only some pairs are shown
_MARKS = {
    "pass": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red"), "unknown": ("?", "yellow"),
    "skipped": ("–", "dim"),
}  # fmt: skip


def print_doctor(results: Sequence[CheckResult], *, verbose: bool) -> None:
    """Print each category: what is wrong, on which hosts, what a user would see, and the fix."""
    for category, members in _results_by_category(results).items():
        line(_heading(category, members, worst(members)))
        for result in members:
            if verbose or result.verdict not in ("pass", "skipped"):
                _print_result(result, verbose=verbose)


def print_summary(results: Sequence[CheckResult]) -> None:
    """Print the doctor's last line."""
    verdicts = [worst(members) for members in _results_by_category(results).values()]
    bad = len(verdicts) - verdicts.count("pass")
    line(f"{bad} of {len(verdicts)} categories need attention" if bad else "nothing is wrong")


def _results_by_category(results: Sequence[CheckResult]) -> dict[str, list[CheckResult]]:
    categories: dict[str, list[CheckResult]] = {}
    for result in results:
        categories.setdefault(result.category, []).append(result)
    return categories


def _heading(category: str, results: Sequence[CheckResult], verdict: str) -> str:
    """Return a category's line; if nothing is wrong, it says how many checks were judged."""
    judged = {result.name for result in results if result.verdict == "pass"}
    skipped = len({result.name for result in results} - judged)
    if verdict != "pass":
        return f"{_mark(verdict, brackets=True)} [bold]{escape(category)}[/]"
    counts = [counted(len(judged), "check")] if judged else []
    counts += [f"{skipped} skipped"] if skipped else []
    passed = {host for result in results if result.verdict == "pass" for host in result.hosts}
    left_out = dict.fromkeys(host for result in results for host in result.hosts if host not in passed)
    counts += [escape(f"without {folded_names(list(left_out))}")] if passed and left_out else []
    return f"{_mark('pass' if judged else 'skipped', brackets=True)} [bold]{escape(category)}[/]  {', '.join(counts)}"


def _print_result(result: CheckResult, *, verbose: bool) -> None:
    hosts = ", ".join(result.hosts) if verbose else folded_names(result.hosts)
    skipped = "skipped " if result.verdict == "skipped" else ""
    line(f"    {_mark(result.verdict)} {escape(f'{result.name}: {hosts}: {skipped}{result.message}')}")
    if result.symptom:
        line(f"[dim]{escape(f'      you would see: {result.symptom}')}[/]")
    if result.fix:
        line(escape(f"      fix: {complete_commands(result.fix)}"))


def _mark(verdict: str, *, brackets: bool = False) -> str:
    """Return the sign of a verdict in its colour, as markup."""
    sign, style = _MARKS[verdict]
    return f"[{style}]{escape(f'[{sign}]') if brackets else sign}[/]"


def print_bench(bench: Bench) -> None:
    """Print what was measured, as tables."""
    if bench.speeds:
        sys.stdout.write(f"\nbandwidth by TCP in Gbit/s on {one_line(bench.label)}, one stream, row → column\n")
        show(_bandwidth_table(bench.speeds))
    if bench.together:
        _print_together(bench.together)


def _print_together(together: Together) -> None:
    """Print what all ranks measured together: all-reduces in the columns of nccl-tests, then a line for each rank."""
    measured = together.measured
    if measured.reduces:
        sys.stdout.write(f"\nall-reduce by {together.backend} over {measured.reduces[0].world} ranks\n")
        units = ("time (us)", "p95 (us)", "algbw (GB/s)", "busbw (GB/s)")
        table = Table("size (B)", "count", "type", "redop", *units, "#wrong")
        for row in measured.reduces:
            fields = row.to_json()
            numbers = (f"{fields[name]:.2f}" for name in ("time_us", "time_p95_us", "algbw", "busbw"))
            table.add(str(row.size), str(row.count), escape(row.type), escape(row.redop), *numbers, str(row.wrong))
        show(table)
    if measured.gemms:
        sys.stdout.write("\nranks: a matrix product; equal work between two meetings\n")
        table = Table("rank", "host", "device", "product", "TFLOP/s", "#wrong", "worked (ms)", "waited (ms)")
        lateness_by_rank = {row.rank: row.to_json() for row in measured.lateness}
        for gemm in measured.gemms:
            rank_lateness = lateness_by_rank.get(gemm.rank, {})
            names = (escape(gemm.host), escape(gemm.device or "CPU"), escape(f"{gemm.size} {gemm.type}"))
            times = (str(rank_lateness.get(name, "-")) for name in ("worked_ms", "waited_ms"))
            table.add(str(gemm.rank), *names, f"{gemm.tflops:.3g}", str(gemm.wrong), *times)
        show(table)


def _bandwidth_table(speeds: Sequence[Speed]) -> Table:
    """Return a table of bandwidths: senders by row, receivers by column; for many hosts only the slowest pairs."""
    names = list(dict.fromkeys(speed.source for speed in speeds))
    if len(names) > _MAX_COLUMNS:
        table = Table("from", "to", "Gbit/s")
        for speed in sorted(speeds, key=lambda speed: speed.mbit)[:_MAX_COLUMNS]:
            table.add(escape(speed.source), escape(speed.target), _bandwidth(speed))
        return table
    return _grid(names, names, {(speed.source, speed.target): _bandwidth(speed) for speed in speeds})


def _grid(sources: Sequence[str], targets: Sequence[str], cells: Mapping[tuple[str, str], str]) -> Table:
    """Return a table with a row for each source and a column for each target."""
    table = Table("from", *targets)
    for source in sources:
        row = ["X" if source == target else cells.get((source, target), "") for target in targets]
        table.add(escape(source), *row)
    return table


def print_pairs(pairs: Sequence[Pair], *, verbose: bool) -> None:
    """Print the TCP round trips between the hosts; without ``verbose`` only hosts with a problem."""
    names = list(dict.fromkeys(pair.source for pair in pairs))
    bad = [pair for pair in pairs if pair.verdict != "pass"]
    if not pairs or not (bad or verbose):
        return
    sources, targets = names, names
    if bad and (not verbose or len(names) > _MAX_COLUMNS):
        bad_sources, bad_targets = {pair.source for pair in bad}, {pair.target for pair in bad}
        sources = [name for name in names if name in bad_sources]
        targets = [name for name in names if name in bad_targets]
    left_out = max(0, len(sources) - _MAX_COLUMNS) + max(0, len(targets) - _MAX_COLUMNS)
    empty = "" if len(pairs) == len(names) * (len(names) - 1) else ", empty: not to be dialled"
    sys.stdout.write(f"\nround trips by TCP in ms, row → column; X: itself, ?: not dialled{empty}\n")
    cells = {(pair.source, pair.target): _round_trip(pair) for pair in pairs}
    show(_grid(sources[:_MAX_COLUMNS], targets[:_MAX_COLUMNS], cells))
    if left_out:
        sys.stdout.write(f"and {left_out} rows and columns more (`doctor --json` has all of them)\n")


def _round_trip(pair: Pair) -> str:
    """Return a pair's result in a few letters, in the colour of its verdict."""
    text = "-" if pair.rtt_ms is None else f"{pair.rtt_ms:.2g}"
    if pair.verdict == "unknown":
        text = "?"
    elif pair.verdict == "warn":
        text = f"{100 * pair.loss:.0f}% lost"
    elif pair.verdict == "fail":
        text = pair.word if pair.ports in ("", "all") or pair.word == BLACK_HOLE else f"{pair.word} ({pair.ports})"
    return f"[{_MARKS[pair.verdict][1]}]{escape(text)}[/]"


def _bandwidth(speed: Speed) -> str:
    return "-" if speed.error else f"{speed.mbit / 1000:.3g}"
