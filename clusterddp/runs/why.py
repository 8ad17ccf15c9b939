"""Why a run does not go on, or failed: the rank, the collective operation and the line, in a sentence.

Two looks at all workers, a second apart, are judged (remote/shared/collectives/hang_judge.py). Only then are stacks
taken, of one worker of those that wait and of each that is to blame: where py-spy is missing, the signal that prints a
stack may end a C call of the worker early.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterddp.hosts.ask import ask_list
from clusterddp.remote.shared.collectives import hang_judge, hang_sentence, stack_judge
from clusterddp.remote.shared.collectives.hang_judge import ADVANCING, UNDECIDED
from clusterddp.remote.shared.collectives.trace_records import MAX_WORLD, TracesRequest, WorkerTrace
from clusterddp.remote.shared.run.run_state import RunState
from clusterddp.runs.ask_workers import each_spool, take_stacks
from clusterddp.runs.failure_lines import failure_output
from clusterddp.runs.view.run_status import NOT_ASKED
from clusterddp.runs.wrong_results import find_wrong_result
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.remote.shared.collectives.hang_judge import Finding
    from clusterddp.runs.run_on_hosts import RunOnHosts
    from clusterddp.runs.view.run_view import RunView
    from clusterddp.runs.wrong_results import WrongResult

PAUSE = 1.0  # seconds between two looks
TIMEOUT = 10.0  # seconds for a host's answer
FAILED, ENDED = "failed", "ended"  # states of a run that is over
_ENDED_WELL = {RunState.SUCCEEDED, RunState.STOPPED}


@dataclass(frozen=True, kw_only=True, slots=True)
class Why:
    """The answer of ``why``; ``kind`` is the class of docs/why.md, None where nobody waits for anybody."""

    run: str
    state: str  # advancing, waiting, hung, failed, ended or undecided
    kind: str | None = None
    ranks: tuple[int, ...] = ()  # those to blame
    hosts: tuple[str, ...] = ()  # theirs
    where: str | None = None  # ``FILE:LINE in FUNCTION`` of the user's own code of the first of them
    group: str | None = None
    sequence: int | None = None
    operation: str | None = None
    sentence: str = ""
    evidence: tuple[str, ...] = ()
    remedy: str | None = None
    asked_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the object of ``why --json``."""
        return {
            "run": self.run,
            "state": self.state,
            "class": self.kind,
            "ranks": list(self.ranks),
            "hosts": list(self.hosts),
            "where": self.where,
            "group": self.group,
            "sequence": self.sequence,
            "operation": self.operation,
            "sentence": self.sentence,
            "evidence": list(self.evidence),
            "remedy": self.remedy,
            "asked_ms": self.asked_ms,
        }


class Look(NamedTuple):
    """What all workers do at one moment: by host, and the reasons of the hosts that do not say."""

    traces: Mapping[str, Sequence[WorkerTrace]]
    reasons: Sequence[str]


def explain(run: RunOnHosts, view: RunView, note: Callable[[Look], object] = lambda _: None) -> Why:
    """Explain a run: a live one by two looks at its workers, one that is over by its verdict.

    ``note`` receives the second look.
    """
    began = time.monotonic()
    now = run.at(view)  # it may have been looked up in an earlier attempt
    why = _explain_live(now, view, note) if view.live else _explain_end(now, view)
    return replace(why, asked_ms=round((time.monotonic() - began) * 1000))


def _explain_end(run: RunOnHosts, view: RunView) -> Why:
    """Return the verdict, with the lines that the first failed worker printed."""
    verdict = view.verdict()
    if verdict is None:
        return _undecided(run.id, f"run {run.id} has just ended: ask again")
    if verdict.state in _ENDED_WELL:
        sentence = f"run {run.id} {verdict.line}"
        why = Why(run=run.id, state=ENDED, sentence=sentence, evidence=verdict.notices, remedy=verdict.remedy or None)
        wrong = find_wrong_result(run, verdict.silent) if verdict.state == RunState.SUCCEEDED else None
        return _with_wrong_result(why, wrong) if wrong else why
    sentence = f"run {run.id}: {verdict.line}"
    if verdict.state == RunState.UNKNOWN:
        return replace(_undecided(run.id, sentence), evidence=verdict.notices)
    first = verdict.failures[0] if verdict.failures else None
    blamed = [(early.rank, early.host) for early in verdict.record.early]  # of one that ended well no line is known
    where = first.worker.location if first and not blamed else ""
    blamed = blamed or [(failure.worker.rank, failure.host) for failure in verdict.failures[:1]]
    return Why(
        run=run.id,
        state=FAILED,
        ranks=tuple(rank for rank, _ in blamed),
        hosts=tuple(host for _, host in blamed),
        where=where or None,
        sentence=sentence,
        evidence=(*verdict.notices, *(failure_output(run, first) if first else ())),
        remedy=verdict.remedy or None,
    )


def _with_wrong_result(why: Why, wrong: WrongResult) -> Why:
    """Say of a run that ended well what was wrong in it."""
    finding = wrong.finding
    return replace(
        why,
        kind=finding.kind,
        ranks=finding.ranks,
        hosts=wrong.hosts,
        group=finding.group or None,
        sequence=finding.sequence,
        operation=hang_judge.describe(finding.operation) if finding.operation else None,
        sentence=wrong.sentence,
        remedy=wrong.remedy,
    )


def _undecided(run: str, sentence: str) -> Why:
    return Why(run=run, state=UNDECIDED, kind=UNDECIDED, sentence=sentence)


def _explain_live(run: RunOnHosts, view: RunView, note: Callable[[Look], object]) -> Why:
    if not view.nodes:
        return _undecided(run.id, f"run {run.id} is {view.state()}: it has no workers yet")
    first, _ = look(run)
    time.sleep(PAUSE)
    second, reasons = after_pause = look(run)
    note(after_pause)
    hosts = {trace.rank: host for host, traces in second.items() for trace in traces}
    if all(trace.ended for traces in second.values() for trace in traces):
        now = run.view(quiet=True)
        if not now.live:  # it ended meanwhile
            return _explain_end(run.at(now), now)
        if any(first.values()):
            return _undecided(run.id, f"run {run.id}: its workers have just ended: ask again")
    before, after = ([trace for traces in each.values() for trace in traces] for each in (first, second))
    size = view.summary().world_size or 0
    world = range(size) if hosts and size <= MAX_WORLD else ()
    finding = hang_judge.judge(world, before, after)
    unasked = [host.name for host in view.hosts() if host.state == NOT_ASKED]
    if unasked:
        reasons = [*reasons, f"{folded_names(unasked)} {'were' if unasked[1:] else 'was'} not asked"]
        finding = _blame_seen(finding, hosts)
    at_work = finding.state == ADVANCING and not finding.idle
    ranks = [] if at_work else stack_judge.ranks_to_look_at(finding, after)
    evidence = stack_judge.Evidence(
        finding=finding,
        traces={trace.rank: trace for trace in after},
        hosts=hosts,
        stacks={stack.rank: stack for stack in take_stacks(run, ranks)} if ranks else {},
        silent=view.silent,
        workdirs=dict(view.record.workdirs),
    )
    evidence = evidence._replace(finding=stack_judge.refine(evidence))
    return _from_evidence(run.id, evidence, reasons)


def _blame_seen(finding: Finding, seen: Container[int]) -> Finding:
    """Blame no rank that was not seen: it may be on a host that was not asked."""
    ranks = tuple(rank for rank in finding.ranks if rank in seen)
    if ranks or not finding.ranks:
        return finding._replace(ranks=ranks)
    return finding._replace(state=UNDECIDED, kind=None, ranks=(), notes=())


def _from_evidence(run: str, evidence: stack_judge.Evidence, reasons: Sequence[str]) -> Why:
    """Put what is known into the answer; ``reasons``: why hosts did not say what their workers do."""
    judged = evidence.finding
    finding = judged.mismatch if judged.state == ADVANCING and judged.mismatch else judged  # a wrong result is told
    ranks = finding.ranks
    return Why(
        run=run,
        state=judged.state,
        kind=finding.kind or (UNDECIDED if finding.state == UNDECIDED else None),
        ranks=ranks,
        hosts=tuple(dict.fromkeys(evidence.hosts[rank] for rank in ranks if rank in evidence.hosts)),
        where=next((place for rank in ranks if (place := hang_sentence.place(evidence, rank))), None),
        group=finding.group or None,
        sequence=finding.sequence,
        operation=hang_judge.describe(finding.operation) if finding.operation else None,
        sentence=hang_sentence.sentence(run, evidence),
        evidence=(*reasons, *hang_sentence.lines(evidence)),
        remedy=hang_sentence.remedy(judged),
    )


def look(run: RunOnHosts) -> Look:
    """Look at what each host's workers do now."""

    def ask(host: Host, spool: str) -> Sequence[WorkerTrace]:
        return ask_list(host, "traces", TracesRequest(spool=spool), WorkerTrace, timeout=TIMEOUT)

    outcomes = each_spool(run, ask)
    traces = {outcome.name: outcome.value for outcome in outcomes if outcome.value is not None}
    return Look(traces, [str(outcome.error) for outcome in outcomes if outcome.error])
