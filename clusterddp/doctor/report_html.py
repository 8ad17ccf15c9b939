"""Renders the doctor's results as one self-contained HTML page: a string, nothing to load, no script.

Colour is never the only sign: every mark and every cell has a symbol or a number too.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence
    from typing import Protocol

    from clusterddp.checks.evidence import Seen
    from clusterddp.checks.model import CheckResult, Diagnosis
    from clusterddp.facts import Facts, Pair, Speed

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


def page(found: Diagnosis, made: str) -> str:
    """The whole page; ``made`` says by what and when it was made, in a few words."""
    names = [seen.name for seen in found.evidence.hosts]
    cluster = f"{counted(len(names), 'host')}: {folded_names(names)}"
    bad = [one for one in found.results if one.verdict in _BAD]
    body = [
        f"<header><h1>{_mark(found.verdict)} {escape(cluster)}</h1><p>{escape(made)} · {_counted(found)}</p></header>",
        _section("Findings", _findings(bad) if bad else "<p>Nothing is wrong.</p>"),
        _ways(found.pairs),
        _speeds(found.evidence.bench.speeds) if found.evidence.bench else "",
        _section("Hosts", _hosts(found.evidence.hosts, found.results)),
        _section("Every check", _checks(found.results)),
    ]
    return _FRAME.format(title=escape(f"doctor: {cluster}"), style=_STYLE, body="\n".join(body))


def _section(title: str, inner: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{inner}\n</section>"


def _mark(verdict: str) -> str:
    return f'<span class="mark {verdict}" title="{verdict}">{SIGNS[verdict]}</span>'


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


def _findings(bad: Sequence[CheckResult]) -> str:
    return "\n".join(_finding(one) for one in sorted(bad, key=lambda one: _BAD.index(one.verdict)))


def _finding(one: CheckResult) -> str:
    symptom = f"<dt>you would see</dt><dd>{escape(one.symptom)}</dd>" if one.symptom else ""
    fix = f"<dt>fix</dt><dd>{escape(one.fix)}</dd>" if one.fix else ""
    hosts = escape(folded_names(one.hosts))
    head = f"{_mark(one.verdict)} <b>{escape(one.name)}</b> <i>{escape(one.category)}</i> {hosts}"
    more = f"<dl>{symptom}{fix}</dl>" if symptom or fix else ""
    return f'<article class="{one.verdict}"><h3>{head}</h3><p>{escape(one.message)}</p>{more}</article>'


def _ways(pairs: Sequence[Pair]) -> str:
    drawn = [_way(one) for one in pairs]
    return _section("Ways between the hosts", _matrix(drawn, _ROUND_TRIP, _within_ms)) if drawn else ""


def _speeds(speeds: Sequence[Speed]) -> str:
    drawn = [_speed(one) for one in speeds]
    return _section("Bandwidth", _matrix(drawn, "Gbit/s", _at_least_gbit)) if drawn else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Drawn:
    """A cell of a matrix: verdict, cost (its shade), a number if there is room for it, and a text as tooltip."""

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


def _matrix(ways: Sequence[_Drawn], unit: str, describe: _Limit) -> str:
    """An HTML table with sources as rows and targets as columns; shades show the cost, symbols what did not pass.

    ``unit`` names the numbers; ``describe`` names a shade by its limit.
    """
    names = list(dict.fromkeys(one.source for one in ways))
    cells = {(one.source, one.target): one for one in ways}
    left = ""
    if len(names) > MOST_DRAWN:
        ill = {host for one in ways if one.verdict != "pass" for host in (one.source, one.target)}
        drawn = [name for name in names if name in ill][:MOST_DRAWN]
        left = f"<p>{len(names) - len(drawn)} of {counted(len(names), 'host')} are not drawn.</p>"
        names = drawn
    if not names:
        return left
    least = min((one.cost for one in ways if one.cost is not None), default=0.0)
    limits = [least * 2**step for step in range(1, _STEPS)]
    numbered = len(names) <= _MOST_NUMBERED
    head = "".join(f'<th scope="col"><span>{escape(name)}</span></th>' for name in names)
    rows = "\n".join(
        f'<tr><th scope="row">{escape(source)}</th>'
        + "".join(_cell(cells.get((source, target)), limits, numbered=numbered) for target in names)
        + "</tr>"
        for source in names
    )
    table = f'<table class="matrix"><thead><tr><td>from ↓ to →</td>{head}</tr></thead><tbody>{rows}</tbody></table>'
    shades = [describe(limit, last=False) for limit in limits] + [describe(limits[-1], last=True)] if least else []
    legend = _legend({one.verdict for one in ways}, unit, shades)
    return f'<div class="wide">{table}</div>{left}<p class="legend">{legend}</p>'


def _cell(one: _Drawn | None, limits: Sequence[float], *, numbered: bool) -> str:
    """One cell; its shade is the number of doublings above the least cost, so that noise does not change colours."""
    if one is None:
        return '<td class="self"></td>'
    tooltip = escape(one.tooltip)
    if one.verdict != "pass":
        return f'<td class="{one.verdict}" title="{tooltip}">{SIGNS[one.verdict]}</td>'
    step = sum((one.cost or 0.0) > limit for limit in limits)
    return f'<td class="pass step{step}" title="{tooltip}">{one.number if numbered else ""}</td>'


def _legend(verdicts: Container[str], unit: str, shades: Sequence[str]) -> str:
    signs = [f"{_mark(name)} {meaning}" for name, meaning in _MEANINGS.items() if name in verdicts]
    drawn = "".join(f'<span class="swatch pass step{step}"></span>{escape(name)}' for step, name in enumerate(shades))
    return " · ".join([*signs, *([f"{escape(unit)}: {drawn}"] if drawn else [])])


def _hosts(hosts: Sequence[Seen], results: Sequence[CheckResult]) -> str:
    rows = "\n".join(_host(seen, _worst_of(seen.name, results)) for seen in hosts)
    heads = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def _worst_of(host: str, results: Iterable[CheckResult]) -> str:
    own = {one.verdict for one in results if host in one.hosts}
    return next((verdict for verdict in (*_BAD, "pass") if verdict in own), "skipped")


def _host(seen: Seen, verdict: str) -> str:
    head = f'<th scope="row">{_mark(verdict)} {escape(seen.name)}</th>'
    if seen.facts is None:
        why = seen.error.message if seen.error else seen.facts_error
        return f'<tr>{head}<td colspan="{len(_COLUMNS) - 1}">{escape(why or "it was not asked")}</td></tr>'
    return f"<tr>{head}{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(seen.facts))}</tr>"


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


def _checks(results: Sequence[CheckResult]) -> str:
    categories = list(dict.fromkeys(one.category for one in results))
    return "\n".join(
        f"<details><summary>{escape(category)}</summary>{_table(category, results)}</details>"
        for category in categories
    )


def _table(category: str, results: Iterable[CheckResult]) -> str:
    rows = "\n".join(
        f"<tr><td>{_mark(one.verdict)}</td><td>{escape(one.name)}</td>"
        f"<td>{escape(folded_names(one.hosts))}</td><td>{escape(one.message)}</td></tr>"
        for one in results
        if one.category == category
    )
    return f"<table><tbody>{rows}</tbody></table>"


_COLUMNS = ("host", "address", "GPUs", "driver", "cores", "memory", "kernel", "Python", "torch", "clock")
_MEANINGS = {"fail": "does not come through", "warn": "loses packets", "unknown": "not dialled"}
_FRAME = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
_STYLE = """
:root { color-scheme: light dark; --text: #1d2430; --soft: #5d6775; --line: #d9dee6; --ground: #fff; --card: #f6f8fa;
  --pass: #1a7f37; --warn: #9a6700; --fail: #cf222e; --unknown: #6e5494; --skipped: #6e7781;
  --s0: #d3f0dc; --s1: #a6dfc4; --s2: #7cc7c0; --s3: #5aa7c7; --s4: #4a7fc4; --ink: #10202c; }
@media (prefers-color-scheme: dark) { :root { --text: #e2e8f0; --soft: #9aa7b6; --line: #364150; --ground: #11161d;
  --card: #1a212b; --pass: #3fb950; --warn: #d29922; --fail: #f85149; --unknown: #b392f0; --skipped: #8b949e; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 78rem; padding: 1.5rem; background: var(--ground); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 0; font-weight: 400; } header p, i, dt { color: var(--soft); font-style: normal; }
header p { margin: .2rem 0 0; }
.mark { font-weight: 700; } .mark.pass { color: var(--pass); } .mark.warn { color: var(--warn); }
.mark.fail { color: var(--fail); } .mark.unknown { color: var(--unknown); } .mark.skipped { color: var(--skipped); }
article { background: var(--card); border-left: 4px solid var(--skipped); border-radius: 4px; margin: .6rem 0;
  padding: .6rem .9rem; overflow-wrap: anywhere; }
article.fail { border-color: var(--fail); } article.warn { border-color: var(--warn); }
article.unknown { border-color: var(--unknown); }
article p { margin: .25rem 0; } dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 .8rem; margin: 0; }
dd { margin: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th { font-weight: 600; text-align: left; white-space: nowrap; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem; vertical-align: top; }
.matrix th, .matrix td { border: 2px solid var(--ground); padding: .15rem .3rem; text-align: center; }
.matrix td { height: 1.6rem; min-width: 1.6rem; } .matrix thead td { color: var(--soft); font-size: .8rem; }
.matrix thead th span { writing-mode: vertical-rl; transform: rotate(180deg); }
.matrix tbody th { text-align: right; }
.matrix td.pass { color: var(--ink); } .matrix td.self { background: var(--card); }
.matrix td.fail { background: var(--fail); color: #fff; font-weight: 700; }
.matrix td.warn { background: #e3b341; color: var(--ink); font-weight: 700; }
.matrix td.unknown { background: var(--line); font-weight: 700; }
.step0 { background: var(--s0); } .step1 { background: var(--s1); } .step2 { background: var(--s2); }
.step3 { background: var(--s3); } .step4 { background: var(--s4); }
.legend { color: var(--soft); font-size: .85rem; } .swatch { display: inline-block; width: 1em; height: 1em;
  border-radius: 2px; margin: 0 .2em 0 .6em; vertical-align: -.12em; }
details { margin: .3rem 0; } summary { cursor: pointer; font-weight: 600; }
"""
