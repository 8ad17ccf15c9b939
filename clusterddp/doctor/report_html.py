"""Fills the doctor's page, one self-contained HTML file; colour is never the only sign (report.html.j2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.folding import folded_names
from clusterddp.text.html_page import render_page

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Protocol

    from clusterddp.checks.evidence import Seen
    from clusterddp.checks.model import CheckResult, Diagnosis
    from clusterddp.facts.dials import Pair
    from clusterddp.facts.host import Facts
    from clusterddp.facts.speeds import Speed

    class _Limit(Protocol):
        def __call__(self, cost: float, *, last: bool) -> str: ...


SIGNS = {"pass": "✓", "warn": "!", "fail": "✗", "unknown": "?", "skipped": "–"}
_BAD = ("fail", "unknown", "warn")
MOST_DRAWN = 64  # hosts in the matrix; of more only those with a direction that did not pass
_MOST_NUMBERED = 20  # hosts up to which a cell has room for its number
_STEPS = 5  # shades of the round trips
_GIB = 1 << 30
_QUICK = 0.05  # ms; below this, round trips differ by chance
_ROUND_TRIP = "shortest round trip in ms"
_COLUMNS = ("host", "address", "GPUs", "driver", "cores", "memory", "kernel", "Python", "torch", "clock")
_MEANINGS = {"fail": "does not come through", "warn": "loses packets", "unknown": "not dialled"}


def page(found: Diagnosis, made: str) -> str:
    """The whole page; ``made`` says by what and when it was made, in a few words."""
    names = [seen.name for seen in found.evidence.hosts]
    bench = found.evidence.bench
    bad = [one for one in found.results if one.verdict in _BAD]
    categories = dict.fromkeys(one.category for one in found.results)
    return render_page(
        "doctor/report.html.j2",
        signs=SIGNS,
        folded=folded_names,
        columns=_COLUMNS,
        cluster=f"{counted(len(names), 'host')}: {folded_names(names)}",
        verdict=found.verdict,
        made=made,
        counts=_counted(found),
        findings=sorted(bad, key=lambda one: _BAD.index(one.verdict)),
        ways=_matrix([_way(one) for one in found.pairs], _ROUND_TRIP, _within_ms),
        speeds=_matrix([_speed(one) for one in bench.speeds], "Gbit/s", _at_least_gbit) if bench else None,
        hosts=[_host(seen, _worst_of(seen.name, found.results)) for seen in found.evidence.hosts],
        checks=[(name, [one for one in found.results if one.category == name]) for name in categories],
    )


def _counted(found: Diagnosis) -> str:
    """The number of checks by verdict; a check counts by its worst one."""
    worst: dict[str, str] = {}
    for one in found.results:  # each check's worst result comes first
        worst.setdefault(one.name, one.verdict)
    verdicts = list(worst.values())
    return (
        ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in SIGNS if verdict in verdicts)
        or "no check was run"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Drawn:
    """A direction in a matrix: verdict, cost (its shade), a number if there is room for it, and a text as tooltip."""

    source: str
    target: str
    verdict: str
    cost: float | None
    number: str
    tooltip: str


def _way(one: Pair) -> _Drawn:
    tooltip = f"{one.source} → {one.target}: {one.word}" + (f" on {one.ports} ports" if one.ports else "")
    if one.rtt_ms is not None:
        tooltip += f", {one.rtt_ms:.2f} ms"
    if one.loss:
        tooltip += f", {one.loss:.1%} sent again"
    cost, number = (max(one.rtt_ms, _QUICK), f"{one.rtt_ms:.2f}") if one.rtt_ms is not None else (None, "")
    return _Drawn(source=one.source, target=one.target, verdict=one.verdict, cost=cost, number=number, tooltip=tooltip)


def _speed(one: Speed) -> _Drawn:
    tooltip = f"{one.source} → {one.target}: " + (one.error or f"{one.mbit:.0f} Mbit/s")
    cost, number = (1 / one.mbit, f"{one.mbit / 1000:.1f}") if one.mbit else (None, "")
    verdict = "fail" if one.error else "pass"
    return _Drawn(source=one.source, target=one.target, verdict=verdict, cost=cost, number=number, tooltip=tooltip)


def _within_ms(cost: float, *, last: bool) -> str:
    return f"beyond {cost:.2f}" if last else f"up to {cost:.2f}"


def _at_least_gbit(cost: float, *, last: bool) -> str:
    return f"below {1e-3 / cost:.1f}" if last else f"down to {1e-3 / cost:.1f}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cell:
    """One cell: its shade is ``step``, the number of doublings above the least cost, so that noise changes none."""

    verdict: str
    tooltip: str
    step: int
    number: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Matrix:
    """A table with sources as rows and targets as columns; shades show the cost, symbols what did not pass."""

    # each source with a cell for each target, in the same order; None where both are one host
    rows: list[tuple[str, list[_Cell | None]]]
    left_out: str  # how many hosts are not drawn; empty if all are
    meanings: list[tuple[str, str]]  # the verdicts that occur, with what they mean
    unit: str  # what the numbers are
    shades: list[str]  # what each shade means, from the least cost on


def _matrix(ways: Sequence[_Drawn], unit: str, describe: _Limit) -> _Matrix | None:
    """The matrix of some directions; ``describe`` names a shade by its limit."""
    if not ways:
        return None
    names, left_out = _drawn_hosts(ways)
    least = min((one.cost for one in ways if one.cost is not None), default=0.0)
    limits = [least * 2**step for step in range(1, _STEPS)]
    shades = [describe(limit, last=False) for limit in limits] + [describe(limits[-1], last=True)] if least else []
    numbered = len(names) <= _MOST_NUMBERED
    cells = {(one.source, one.target): _cell(one, limits, numbered=numbered) for one in ways}
    verdicts = {one.verdict for one in ways}
    return _Matrix(
        rows=[(source, [cells.get((source, target)) for target in names]) for source in names],
        left_out=left_out,
        meanings=[(verdict, meaning) for verdict, meaning in _MEANINGS.items() if verdict in verdicts],
        unit=unit,
        shades=shades,
    )


def _drawn_hosts(ways: Sequence[_Drawn]) -> tuple[list[str], str]:
    """The hosts that a matrix has room for, and a sentence that says how many it leaves out."""
    names = list(dict.fromkeys(one.source for one in ways))
    if len(names) <= MOST_DRAWN:
        return names, ""
    ill = {host for one in ways if one.verdict != "pass" for host in (one.source, one.target)}
    some = [name for name in names if name in ill][:MOST_DRAWN]
    return some, f"{len(names) - len(some)} of {counted(len(names), 'host')} are not drawn."


def _cell(one: _Drawn, limits: Sequence[float], *, numbered: bool) -> _Cell:
    step = sum((one.cost or 0.0) > limit for limit in limits)
    return _Cell(verdict=one.verdict, tooltip=one.tooltip, step=step, number=one.number if numbered else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Host:
    """A row of the hosts' table: its facts in the order of ``_COLUMNS``, or why there are none."""

    name: str
    verdict: str
    facts: tuple[str, ...] = ()
    why: str = ""


def _worst_of(host: str, results: Iterable[CheckResult]) -> str:
    own = {one.verdict for one in results if host in one.hosts}
    return next((verdict for verdict in (*_BAD, "pass") if verdict in own), "skipped")


def _host(seen: Seen, verdict: str) -> _Host:
    if seen.facts is None:
        why = seen.error.message if seen.error else seen.facts_error
        return _Host(name=seen.name, verdict=verdict, why=why or "it was not asked")
    return _Host(name=seen.name, verdict=verdict, facts=_cells(seen.facts))


def _cells(facts: Facts) -> tuple[str, ...]:
    """A host's row of the table, in the order of ``_COLUMNS``."""
    models = list(dict.fromkeys(gpu.name for gpu in facts.gpus))
    torch = facts.torch
    offset, error = facts.clock_offset_ns / 1e6, facts.clock_error_ns / 1e6
    return (
        facts.ssh_address or "",
        f"{len(facts.gpus)} × {', '.join(models)}" if models else "none",
        facts.gpus[0].driver if facts.gpus else "",
        f"{facts.cores}",
        f"{facts.memory_bytes / _GIB:.0f} GiB" if facts.memory_bytes else "",
        facts.kernel,
        facts.python_version or "none",
        torch.version if torch and torch.version else "none",
        f"{offset:+.1f} ± {error:.1f} ms",
    )
