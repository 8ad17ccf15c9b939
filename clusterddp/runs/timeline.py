"""Show how long each part of a start took, on this machine and on every host, as text and as an HTML page.

Nothing is conveyed by colour alone: every bar stands beside its numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.hosts import spans
from clusterddp.text.html_page import drawn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterddp.remote.shared.verdict.node_report import NodeReport

HERE = "this machine"
SPANS = spans.LOGGER  # where hosts' activities are reported
GOES_ON = 2.0  # seconds of the workers' work that are still drawn
COLUMNS = 50  # width of a bar in the text


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedSpan:
    """One activity on one host, with its begin and end."""

    host: str  # its name, or ``HERE``
    name: str  # of the activity
    began: float  # seconds since the epoch by this machine's clock
    ended: float  # the same for its end


def of_events(nodes: Iterable[NodeReport]) -> list[TimedSpan]:
    """Return the spans of a run's first start on each host from its nodes' events, in this machine's time."""
    found = []
    for node in nodes:
        if node.attempt != 1:
            continue
        times: dict[str, list[float]] = {}
        for event in node.events:
            if not event.start:  # of the first start of the workers, or of none
                times.setdefault(event.kind, []).append((event.time - node.clock_offset_ns) / 1e9)
        agent, workers = times.get("agent_started", []), times.get("worker_started", [])
        server, left = times.get("fork_server_ready", []), times.get("worker_exited", [])
        begun, warm = times.get("supervisor_started", []), times.get("from_warm_server", [])
        host = node.host
        if agent and workers:
            found.append(TimedSpan(host=host, name="agent: imports, rendezvous", began=agent[0], ended=min(workers)))
        if begun and server and not warm:
            found.append(TimedSpan(host=host, name="fork server: imports", began=begun[0], ended=server[0]))
        if workers:
            end = max(left, default=max(workers) + GOES_ON)
            found.append(TimedSpan(host=host, name=f"workers ({len(workers)})", began=min(workers), ended=end))
    return found


def _placed(spans: Sequence[TimedSpan]) -> tuple[list[TimedSpan], float, float]:
    """Sort the spans, this machine's first; return them with the times of the left and the right edge."""
    first = min(one.began for one in spans)
    starts = [one.began for one in spans if one.name.startswith("workers")]
    last = min(max(one.ended for one in spans), max(starts) + GOES_ON) if starts else max(one.ended for one in spans)
    last = max(last, first + 0.01)
    shown = [one for one in spans if one.began < last]
    return sorted(shown, key=lambda one: (one.host != HERE, one.host, one.began)), first, last


def _took(span: TimedSpan, last: float) -> str:
    return f"{span.ended - span.began:.2f}{' …' if span.ended > last else ''}"


def as_text(spans: Sequence[TimedSpan]) -> str:
    """Draw one line per span: host, activity, begin and duration in seconds, and a bar."""
    ordered, first, last = _placed(spans)
    wide = max(len(one.host) for one in ordered)
    long = max(len(one.name) for one in ordered)
    lines = [f"{'host':{wide}}  {'what':{long}}  {'from':>7} {'took':>8}  |{f' {last - first:.2f} s ':-^{COLUMNS}}|"]
    for one in ordered:
        left = round((one.began - first) / (last - first) * (COLUMNS - 1))
        right = round((min(one.ended, last) - first) / (last - first) * (COLUMNS - 1))
        bar = " " * left + "#" * max(1, right - left)
        took = _took(one, last)
        lines.append(f"{one.host:{wide}}  {one.name:{long}}  {one.began - first:7.2f} {took:>8}  |{bar:{COLUMNS}}|")
    return "\n".join(line.rstrip() for line in lines) + "\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """A row of the page: the host if it is another than above, its activity, times in seconds, a bar in per cent."""

    host: str
    name: str
    began: float
    took: str
    left: float
    width: float


def as_page(spans: Sequence[TimedSpan], title: str) -> str:
    """Draw the spans as one self-contained HTML page without scripts."""
    ordered, first, last = _placed(spans)
    rows, host = [], ""
    for one in ordered:
        left = (one.began - first) / (last - first) * 100
        width = max(0.2, (min(one.ended, last) - first) / (last - first) * 100 - left)
        shown = one.host if one.host != host else ""
        host = one.host
        row = _Row(host=shown, name=one.name, began=one.began - first, took=_took(one, last), left=left, width=width)
        rows.append(row)
    return drawn("runs/timeline.html.j2", title=title, seconds=last - first, rows=rows)
