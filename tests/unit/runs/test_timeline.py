"""Where a start's time went, as text and as a page."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clusterddp.remote.shared.run.event_schema import NodeEvent
from clusterddp.runs.timeline import THIS_MACHINE, TimedSpan, as_page, as_text, start_spans
from tests.unit.runs_told import Told

if TYPE_CHECKING:
    from clusterddp.remote.shared.verdict.node_report import NodeReport

SECOND = 1_000_000_000


def node(host: str, *events: tuple[str, float], attempt: int = 1, offset: float = 0.0) -> NodeReport:
    told = [NodeEvent(name, int((1000 + at + offset) * SECOND)) for name, at in events]
    return Told(offset=offset).node._replace(host=host, attempt=attempt, events=tuple(told))


def span(host: str, name: str, began: float, ended: float) -> TimedSpan:
    return TimedSpan(host=host, name=name, began=1000 + began, ended=1000 + ended)


def test_spans_of_a_host_are_by_our_clock_and_of_the_first_start_alone() -> None:
    first = node("b", ("agent_started", 1.0), ("worker_started", 3.0), ("worker_started", 3.5), offset=7.0)
    again = node("b", ("agent_started", 50.0), ("worker_started", 60.0), attempt=2)
    late = NodeEvent("worker_started", 0, start=1)
    assert start_spans([first._replace(events=(*first.events, late)), again]) == [
        span("b", "agent: imports, rendezvous", 1.0, 3.0),
        span("b", "workers (2)", 3.0, 5.5),
    ]


def test_imports_count_from_their_process_s_start_and_only_where_it_was_not_there_before() -> None:
    events = ("supervisor_started", 1.0), ("agent_started", 3.0), ("fork_server_ready", 4.0), ("worker_started", 4.5)
    assert start_spans([node("a", *events)])[1] == span("a", "fork server: imports", 1.0, 4.0)
    assert "fork server: imports" not in [
        one.name for one in start_spans([node("a", ("from_warm_server", 0.9), *events)])
    ]


def test_a_host_that_never_started_workers_has_no_span_of_its_own() -> None:
    assert start_spans([node("a"), node("b", ("agent_started", 1.0))]) == []


SPANS = [
    span("gpu00", "workers (2)", 3.0, 90.0),
    span("gpu00", "runs", 80.0, 80.1),
    span("gpu00", "facts", 0.5, 1.0),
    span(THIS_MACHINE, "start-up", 0.0, 0.5),
    span("<b>", "connection", 0.5, 0.75),
]


def test_text_has_a_line_a_span_this_machine_first_and_ends_soon_after_the_workers_have_started() -> None:
    rows = [re.split(r"  +", line)[:4] for line in as_text(SPANS).splitlines()]
    assert rows[1:] == [
        ["this machine", "start-up", "0.00", "0.50"],
        ["<b>", "connection", "0.50", "0.25"],
        ["gpu00", "facts", "0.50", "0.50"],
        ["gpu00", "workers (2)", "3.00", "87.00 …"],
    ]
    assert " 5.00 s " in as_text(SPANS).splitlines()[0]
    assert as_text(SPANS).splitlines()[1].endswith("|#####" + " " * 45 + "|")


def test_the_page_stands_alone_and_shows_names_as_text() -> None:
    page = as_page(SPANS, "run <x>")
    assert not re.search(r"https?:|<script|<link|@import|url\(", page)
    assert "<th>&lt;b&gt;</th>" in page
    assert "<h1>run &lt;x&gt;</h1>" in page
    assert '<td>3.00</td><td>87.00 …</td><td><div style="margin-left:60.00%;width:40.00%">' in page
