"""Fills the doctor's page, one self-contained HTML file; colour is never the only sign (report.html.j2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.folding import folded_names
from clusterddp.text.html_page import render_page

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Protocol

    from clusterddp.checks.evidence import HostEvidence
    from clusterddp.checks.model import CheckResult, Diagnosis
    from clusterddp.facts.dials import Pair
    from clusterddp.facts.host import Facts
    from clusterddp.facts.speeds import Speed

    class _Limit(Protocol):
        def __call__(self, cost: float, *, last: bool) -> str: ...


SIGNS = {"pass": "✓", "warn": "!", "fail": "✗", "unknown": "?", "skipped": "–"}
_BAD_VERDICTS = ("fail", "unknown", "warn")
MAX_DRAWN_HOSTS = 64  # hosts in the matrix; of more only those with a direction that did not pass
_MAX_NUMBERED_HOSTS = 20  # hosts up to which a cell has room for its number
_SHADES = 5  # shades of the round trips
_GIB = 1 << 30
_MIN_ROUND_TRIP = 0.05  # ms; below this, round trips differ by chance
_ROUND_TRIP = "shortest round trip in ms"
_COLUMNS = ("host", "address", "GPUs", "driver", "cores", "memory", "kernel", "Python", "torch", "clock")
_MEANINGS = {"fail": "does not come through", "warn": "loses packets", "unknown": "not dialled"}


def doctor_page(diagnosis: Diagnosis, made: str) -> str:
    """The whole page; ``made`` says by what and when it was made, in a few words."""
    names = [report.name for report in diagnosis.evidence.hosts]
    bench, worst = diagnosis.evidence.bench, _worst_verdicts(diagnosis.results)
    bad = [item for item in diagnosis.results if item.verdict in _BAD_VERDICTS]
    categories = dict.fromkeys(item.category for item in diagnosis.results)
    return render_page(
        "doctor/report.html.j2",
        signs=SIGNS,
        folded=folded_names,
        columns=_COLUMNS,
        cluster=f"{counted(len(names), 'host')}: {folded_names(names)}",
        verdict=diagnosis.verdict,
        made=made,
        counts=_verdict_counts(diagnosis),
        findings=sorted(bad, key=lambda item: _BAD_VERDICTS.index(item.verdict)),
        ways=_matrix([_connection_direction(item) for item in diagnosis.pairs], _ROUND_TRIP, _within_ms),
        speeds=_matrix([_speed_direction(item) for item in bench.speeds], "Gbit/s", _at_least_gbit) if bench else None,
        hosts=[_host(report, worst.get(report.name, "skipped")) for report in diagnosis.evidence.hosts],
        checks=[(name, [item for item in diagnosis.results if item.category == name]) for name in categories],
    )


def _verdict_counts(diagnosis: Diagnosis) -> str:
    """The number of checks by verdict; a check counts by its worst one."""
    worst: dict[str, str] = {}
    for result in diagnosis.results:  # each check's worst result comes first
        worst.setdefault(result.name, result.verdict)
    verdicts = list(worst.values())
    return (
        ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in SIGNS if verdict in verdicts)
        or "no check was run"
    )


class _Direction(NamedTuple):
    """What a matrix shows of one direction between two hosts: verdict, cost (its shade), number, tooltip."""

    source: str
    target: str
    verdict: str
    cost: float | None
    number: str
    tooltip: str


def _connection_direction(pair: Pair) -> _Direction:
    """Show the result of the connections tried in one direction; its cost is the round trip."""
    tooltip = f"{pair.source} → {pair.target}: {pair.word}" + (f" on {pair.ports} ports" if pair.ports else "")
    if pair.rtt_ms is not None:
        tooltip += f", {pair.rtt_ms:.2f} ms"
    if pair.loss:
        tooltip += f", {pair.loss:.1%} sent again"
    cost, number = (max(pair.rtt_ms, _MIN_ROUND_TRIP), f"{pair.rtt_ms:.2f}") if pair.rtt_ms is not None else (None, "")
    return _Direction(pair.source, pair.target, pair.verdict, cost, number, tooltip)


def _speed_direction(speed: Speed) -> _Direction:
    """Show the bandwidth measured in one direction; its cost is the time per Mbit."""
    tooltip = f"{speed.source} → {speed.target}: " + (speed.error or f"{speed.mbit:.0f} Mbit/s")
    cost, number = (1 / speed.mbit, f"{speed.mbit / 1000:.1f}") if speed.mbit else (None, "")
    verdict = "fail" if speed.error else "pass"
    return _Direction(speed.source, speed.target, verdict, cost, number, tooltip)


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
    left_out: str  # how many hosts are not drawn, and that pairs were not tried; else empty
    meanings: list[tuple[str, str]]  # the verdicts that occur, with what they mean
    unit: str  # what the numbers are
    shades: list[str]  # what each shade means, from the least cost on


def _matrix(ways: Sequence[_Direction], unit: str, describe: _Limit) -> _Matrix | None:
    """The matrix of directions between hosts, None if there are none; ``describe`` names a shade by its limit."""
    if not ways:
        return None
    names, left_out = _drawn_hosts(ways)
    hosts = {way.source for way in ways}
    if len(ways) < len(hosts) * (len(hosts) - 1):
        left_out = f"{left_out} An empty cell was not tried.".lstrip()
    least = min((way.cost for way in ways if way.cost is not None), default=0.0)
    limits = [least * 2**step for step in range(1, _SHADES)]
    shades = [describe(limit, last=False) for limit in limits] + [describe(limits[-1], last=True)] if least else []
    numbered = len(names) <= _MAX_NUMBERED_HOSTS
    cells = {(way.source, way.target): _cell(way, limits, numbered=numbered) for way in ways}
    verdicts = {way.verdict for way in ways}
    return _Matrix(
        rows=[(source, [cells.get((source, target)) for target in names]) for source in names],
        left_out=left_out,
        meanings=[(verdict, meaning) for verdict, meaning in _MEANINGS.items() if verdict in verdicts],
        unit=unit,
        shades=shades,
    )


def _drawn_hosts(ways: Sequence[_Direction]) -> tuple[list[str], str]:
    """The hosts that a matrix has room for, and a sentence that says how many it leaves out."""
    names = list(dict.fromkeys(way.source for way in ways))
    if len(names) <= MAX_DRAWN_HOSTS:
        return names, ""
    failing = {host for way in ways if way.verdict != "pass" for host in (way.source, way.target)}
    drawn_names = [name for name in names if name in failing][:MAX_DRAWN_HOSTS]
    return drawn_names, f"{len(names) - len(drawn_names)} of {counted(len(names), 'host')} are not drawn."


def _cell(way: _Direction, limits: Sequence[float], *, numbered: bool) -> _Cell:
    step = sum((way.cost or 0.0) > limit for limit in limits)
    return _Cell(verdict=way.verdict, tooltip=way.tooltip, step=step, number=way.number if numbered else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Host:
    """A row of the hosts' table: its facts in the order of ``_COLUMNS``, or why there are none."""

    name: str
    verdict: str
    facts: tuple[str, ...] = ()
    why: str = ""


def _worst_verdicts(results: Iterable[CheckResult]) -> dict[str, str]:
    """The worst verdict on each host that a check has judged."""
    order = ("pass", *reversed(_BAD_VERDICTS))
    judged = sorted((result for result in results if result.verdict in order), key=lambda one: order.index(one.verdict))
    return {host: result.verdict for result in judged for host in result.hosts}


def _host(report: HostEvidence, verdict: str) -> _Host:
    if report.facts is None:
        why = report.error.message if report.error else report.facts_error
        return _Host(name=report.name, verdict=verdict, why=why or "it was not asked")
    return _Host(name=report.name, verdict=verdict, facts=_facts_row(report.facts))


def _facts_row(facts: Facts) -> tuple[str, ...]:
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
