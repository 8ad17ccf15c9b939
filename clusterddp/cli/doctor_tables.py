"""Print what the doctor found and measured, as lines and tables."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from clusterddp.checks.model import worst
from clusterddp.cli.command_lines import completed
from clusterddp.cli.tables import Table, escape, line, show
from clusterddp.facts.dials import BLACK_HOLE
from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.folding import folded_names
from clusterddp.text.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterddp.checks.model import CheckResult
    from clusterddp.facts.bench import Bench, Together
    from clusterddp.facts.dials import Pair
    from clusterddp.facts.speeds import Speed

_MOST_COLUMNS = 12  # hosts in a matrix of pairs; of more the slowest ways are shown
_MARKS = {
    "pass": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red"), "unknown": ("?", "yellow"),
    "skipped": ("–", "dim"),
}  # fmt: skip


def print_doctor(results: Sequence[CheckResult], *, verbose: bool) -> None:
    """Print each category: what is wrong, on which hosts, what a user would see, and the fix."""
    for category, own in _by_category(results).items():
        line(_heading(category, own, worst(own)))
        for result in own:
            if verbose or result.verdict not in ("pass", "skipped"):
                _print_result(result, verbose=verbose)


def print_summary(results: Sequence[CheckResult]) -> None:
    """Print the doctor's last line."""
    verdicts = [worst(own) for own in _by_category(results).values()]
    bad = len(verdicts) - verdicts.count("pass")
    line(f"{bad} of {len(verdicts)} categories need attention" if bad else "nothing is wrong")


def _by_category(results: Sequence[CheckResult]) -> dict[str, list[CheckResult]]:
    found: dict[str, list[CheckResult]] = {}
    for result in results:
        found.setdefault(result.category, []).append(result)
    return found


def _heading(category: str, own: Sequence[CheckResult], verdict: str) -> str:
    """Return a category's line; if nothing is wrong, it says how many checks were judged."""
    judged = {result.name for result in own if result.verdict == "pass"}
    skipped = len({result.name for result in own} - judged)
    if verdict != "pass":
        return f"{_mark(verdict, brackets=True)} [bold]{escape(category)}[/]"
    counts = [counted(len(judged), "check")] if judged else []
    counts += [f"{skipped} skipped"] if skipped else []
    passed = {host for result in own if result.verdict == "pass" for host in result.hosts}
    left_out = dict.fromkeys(host for result in own for host in result.hosts if host not in passed)
    counts += [escape(f"without {folded_names(list(left_out))}")] if passed and left_out else []
    return f"{_mark('pass' if judged else 'skipped', brackets=True)} [bold]{escape(category)}[/]  {', '.join(counts)}"


def _print_result(result: CheckResult, *, verbose: bool) -> None:
    hosts = ", ".join(result.hosts) if verbose else folded_names(result.hosts)
    skipped = "skipped " if result.verdict == "skipped" else ""
    line(f"    {_mark(result.verdict)} {escape(f'{result.name}: {hosts}: {skipped}{result.message}')}")
    if result.symptom:
        line(f"[dim]{escape(f'      you would see: {result.symptom}')}[/]")
    if result.fix:
        line(escape(f"      fix: {completed(result.fix)}"))


def _mark(verdict: str, *, brackets: bool = False) -> str:
    sign, style = _MARKS[verdict]
    return f"[{style}]{escape(f'[{sign}]') if brackets else sign}[/]"


def print_bench(bench: Bench) -> None:
    """Print what was measured, as tables."""
    if bench.speeds:
        sys.stdout.write(f"\nbandwidth by TCP in Gbit/s on {one_line(bench.label)}, one stream, row → column\n")
        show(_pairs(bench.speeds))
    if bench.together:
        _print_together(bench.together)


def _print_together(together: Together) -> None:
    """Print the all-reduces in the columns of nccl-tests, then a line for each rank."""
    measured = together.measured
    if measured.reduces:
        sys.stdout.write(f"\nall-reduce by {together.backend} over {measured.reduces[0].world} ranks\n")
        times = ("time (us)", "p95 (us)", "algbw (GB/s)", "busbw (GB/s)")
        table = Table("size (B)", "count", "type", "redop", *times, "#wrong")
        for one in measured.reduces:
            words = one.to_json()
            numbers = (f"{words[name]:.2f}" for name in ("time_us", "time_p95_us", "algbw", "busbw"))
            table.add(str(one.size), str(one.count), escape(one.type), escape(one.redop), *numbers, str(one.wrong))
        show(table)
    if measured.gemms:
        sys.stdout.write("\nranks: a matrix product; equal work between two meetings\n")
        table = Table("rank", "host", "device", "product", "TFLOP/s", "#wrong", "worked (ms)", "waited (ms)")
        late = {one.rank: one.to_json() for one in measured.lateness}
        for gemm in measured.gemms:
            own = late.get(gemm.rank, {})
            product = (escape(gemm.device or "CPU"), f"{gemm.size} {gemm.type}", f"{gemm.tflops:.3g}", str(gemm.wrong))
            met = (str(own.get(name, "-")) for name in ("worked_ms", "waited_ms"))
            table.add(str(gemm.rank), escape(gemm.host), *product, *met)
        show(table)


def _pairs(speeds: Sequence[Speed]) -> Table:
    """Return a table of bandwidths: senders by row, receivers by column; of many hosts only the slowest pairs."""
    names = list(dict.fromkeys(one.source for one in speeds))
    if len(names) > _MOST_COLUMNS:
        table = Table("from", "to", "Gbit/s")
        for one in sorted(speeds, key=lambda one: one.mbit)[:_MOST_COLUMNS]:
            table.add(escape(one.source), escape(one.target), _gbit(one))
        return table
    return _grid(names, names, {(one.source, one.target): _gbit(one) for one in speeds})


def _grid(sources: Sequence[str], targets: Sequence[str], cells: Mapping[tuple[str, str], str]) -> Table:
    """Return a table with a row for each source and a column for each target."""
    table = Table("from", *targets)
    for source in sources:
        row = ["X" if source == target else cells.get((source, target), "") for target in targets]
        table.add(escape(source), *row)
    return table


def print_pairs(pairs: Sequence[Pair], *, verbose: bool) -> None:
    """Print the results of the dials between all hosts; without ``verbose`` only hosts with a problem."""
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
    show(_grid(sources[:_MOST_COLUMNS], targets[:_MOST_COLUMNS], cells))
    if left_out:
        sys.stdout.write(f"and {left_out} rows and columns more (`doctor --json` has all of them)\n")


def _way(pair: Pair) -> str:
    """Return a pair's result in a few letters, in the colour of its verdict."""
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
