"""Show how long each part of a start took, on this machine and on every host, as text and as an HTML page.

Nothing is conveyed by colour alone: every bar stands beside its numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.hosts import spans
from clusterddp.text.html_page import render_page

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterddp.remote.shared.verdict.node_report import NodeReport

THIS_MACHINE = "this machine"
SPAN_LOGGER = spans.LOGGER  # where hosts' activities are reported
MAX_WORK = 2.0  # seconds of the workers' work that are drawn
BAR_WIDTH = 50  # characters


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedSpan:
    """One activity on one host, with its begin and end."""

    host: str  # its name, or ``THIS_MACHINE``
    name: str  # of the activity
    began: float  # seconds since the epoch by this machine's clock
    ended: float  # the same for its end


def start_spans(nodes: Iterable[NodeReport]) -> list[TimedSpan]:
    """Return the spans of a run's first start on each host from its nodes' events, in this machine's time."""
    found = []
    for node in nodes:
        if node.attempt != 1:  # only the run's first start is shown
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
            end = max(left, default=max(workers) + MAX_WORK)
            found.append(TimedSpan(host=host, name=f"workers ({len(workers)})", began=min(workers), ended=end))
    return found


def _arrange(spans: Sequence[TimedSpan]) -> tuple[list[TimedSpan], float, float]:
    """Sort the spans, this machine's first; return them with the times of the left and the right edge."""
    first, last = min(span.began for span in spans), max(span.ended for span in spans)
    starts = [span.began for span in spans if span.name.startswith("workers")]
    if starts:
        last = min(last, max(starts) + MAX_WORK)
    last = max(last, first + 0.01)
    shown = [span for span in spans if span.began < last]
    return sorted(shown, key=lambda span: (span.host != THIS_MACHINE, span.host, span.began)), first, last


def _duration_text(span: TimedSpan, last: float) -> str:
    """Return the span's seconds; a span that ends after ``last``, the right edge, gets an ellipsis."""
    return f"{span.ended - span.began:.2f}{' …' if span.ended > last else ''}"


def as_text(spans: Sequence[TimedSpan]) -> str:
    """Draw one line per span: host, activity, begin and duration in seconds, and a bar."""
    ordered, first, last = _arrange(spans)
    host_width = max(len(span.host) for span in ordered)
    name_width = max(len(span.name) for span in ordered)
    scale = f" {last - first:.2f} s ".center(BAR_WIDTH, "-")
    lines = [f"{'host':{host_width}}  {'what':{name_width}}  {'from':>7} {'took':>8}  |{scale}|"]
    for span in ordered:
        left = round((span.began - first) / (last - first) * (BAR_WIDTH - 1))
        right = round((min(span.ended, last) - first) / (last - first) * (BAR_WIDTH - 1))
        bar = (" " * left + "#" * max(1, right - left)).ljust(BAR_WIDTH)
        took = _duration_text(span, last)
        label = f"{span.host:{host_width}}  {span.name:{name_width}}"
        lines.append(f"{label}  {span.began - first:7.2f} {took:>8}  |{bar}|")
    return "\n".join(line.rstrip() for line in lines) + "\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """A row of the page."""

    host: str  # empty if it is the same as in the row above
    name: str  # of the activity
    began: float  # seconds since the left edge
    took: str  # seconds
    left: float  # where the bar begins, in per cent of the width
    width: float  # of the bar, in per cent


def as_page(spans: Sequence[TimedSpan], title: str) -> str:
    """Draw the spans as one self-contained HTML page without scripts."""
    ordered, first, last = _arrange(spans)
    rows, host = [], ""
    for span in ordered:
        left = (span.began - first) / (last - first) * 100
        width = max(0.2, (min(span.ended, last) - first) / (last - first) * 100 - left)
        shown = span.host if span.host != host else ""
        host = span.host
        took = _duration_text(span, last)
        rows.append(_Row(host=shown, name=span.name, began=span.began - first, took=took, left=left, width=width))
    return render_page("runs/timeline.html.j2", title=title, seconds=last - first, rows=rows)
