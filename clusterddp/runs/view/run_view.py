"""A run's state, verdict and JSON status, computed from what its hosts report of their spools. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clusterddp.errors import RunError
from clusterddp.remote.shared.run.event_schema import WORKER_STARTED, newest_start, of_kind
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.remote.shared.run.run_state import ENDED_STATES, RunState
from clusterddp.remote.shared.verdict.judge import VerdictRecord, best_verdict, judge
from clusterddp.remote.shared.verdict.node_report import NodeReport
from clusterddp.runs.view.managed_job import JobReport
from clusterddp.runs.view.notices import (
    following_notices,
    late_notices,
    output_notices,
    preload_notices,
    replication_notices,
    stalls_found,
)
from clusterddp.runs.view.preload_hint import slow_imports
from clusterddp.runs.view.run_status import (
    NOT_ASKED,
    UNREACHABLE,
    HostDetails,
    HostStatus,
    LastHeard,
    RunSummary,
    seconds,
)
from clusterddp.runs.view.verdict_lines import Verdict, all_recovered, node_end, remedy
from clusterddp.text.folding import few

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from clusterddp.runs.view.managed_job import JobStatus

Reports = Sequence[NodeReport | JobReport]
WATCHER = "who watched it"  # in place of a host's name
NO_MEMBER = 1 << 20  # member index of a writer that is not one of the run's nodes
_NO_START_TIME = 1 << 62  # sorts runs without a recorded start last


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView:
    """One run as the hosts report it: the nodes of its last attempt, and hosts of its plan that did not answer."""

    run: str
    nodes: tuple[NodeReport, ...]
    silent: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()  # all hosts that did not answer, in the run's plan or not
    earlier: tuple[NodeReport, ...] = ()  # nodes of earlier attempts, oldest first
    spares: tuple[NodeReport, ...] = ()  # nodes that wait for a relaunch
    copies: tuple[VerdictRecord, ...] = ()  # all saved copies of the verdict: its hosts' and the project's
    # the project's record of a run of which no host answers; such a run has no nodes
    local_record: RunRecord | None = None
    job: JobStatus | None = None  # the job of the workload manager that started the run, if any
    shown: VerdictRecord | None = None  # the project's copy of the verdict, which was shown here before
    watched: bool = False  # it was followed to its end, so a host that does not answer is lost

    @property
    def id(self) -> str:
        """The run id, named as in ``Run``."""
        return self.run

    @property
    def record(self) -> RunRecord:
        """What the run recorded about itself when it started."""
        return self.nodes[0].record if self.nodes else self.local_record or RunRecord(hosts=())

    @property
    def kept(self) -> VerdictRecord | None:
        """The authoritative copy of the verdict; None if there is none for the last attempt.

        Hosts that lost contact with each other may write two verdicts by equally many nodes; then the copy shown here
        before is authoritative.
        """
        chosen, shown = best_verdict(self.copies), self.shown
        if chosen and shown and shown.member != NO_MEMBER:
            one, other = ((copy.attempt, copy.by_majority, len(copy.reported)) for copy in (shown, chosen))
            chosen = shown if one == other else chosen
        return chosen if chosen and chosen.attempt >= self._reported_attempt else None

    @property
    def other_copies(self) -> list[VerdictRecord]:
        """The copies that differ from the authoritative one, without duplicates."""
        distinct = {(copy.attempt, copy.writer, copy.reported): copy for copy in self.copies}
        chosen = self.kept or best_verdict(self.copies)
        return [copy for copy in distinct.values() if chosen and _judgement_of(copy) != _judgement_of(chosen)]

    @property
    def _reported_attempt(self) -> int:
        """The last attempt that nodes or the workload manager report; a saved verdict may be of a later one."""
        return max(self.nodes[0].attempt if self.nodes else 0, self.job.attempt if self.job else 0)

    @property
    def name(self) -> str:
        """The run's name, or its id."""
        return self.record.name or self.run

    @property
    def attempt(self) -> int:
        """The last attempt's number."""
        return max([self._reported_attempt, *(copy.attempt for copy in self.copies)])

    @property
    def spools(self) -> dict[int, dict[str, str]]:
        """Each attempt's folder on each of its hosts: attempt → host → spool, in order."""
        spools: dict[int, dict[str, str]] = {}
        for node in (*self.earlier, *self.nodes):
            spools.setdefault(node.attempt, {})[node.host] = node.spool
        return spools

    @property
    def current(self) -> dict[str, str]:
        """The last attempt's folder on each host; empty for one that did not answer."""
        return self.spools.get(self.attempt, {}) | dict.fromkeys(self.silent, "")

    @property
    def live(self) -> bool:
        """Whether any node still runs or starts, or the nodes have not yet agreed on how the run ended.

        A final verdict ends the run, whatever a node reports that had lost contact with the others.
        """
        kept = self.kept
        if kept and (kept.stands or not self.nodes):
            return False
        if any(node.state not in ENDED_STATES for node in self.nodes) or (self.job and not self.job.ended):
            return True
        concluded = kept or any(node.state == RunState.LOST for node in self.nodes)
        return not self.watched and not concluded and any(node.concluding for node in self.nodes)

    @property
    def unended(self) -> list[str]:
        """The hosts on which a part of a run that is over goes on: they were cut off when it was stopped or ended.

        Also in an earlier attempt: a host that claims a later one hides the others from no `stop`.
        """
        newest = {node.host: node for node in (*self.earlier, *self.nodes)}
        return [] if self.live else [host for host, node in newest.items() if node.state not in ENDED_STATES]

    @property
    def goes_on(self) -> bool:
        """Whether any part of it still runs: it is live, or it is over and a host goes on."""
        return self.live or bool(self.unended)

    @property
    def settled(self) -> bool:
        """Whether hosts have saved a verdict, and the hosts missing from it are too few to continue the run."""
        kept = self.kept
        if kept is None or kept.stands:
            return kept is not None
        missing, min_nodes = len(kept.missing), self.record.min_nodes
        may_relaunch = self.record.relaunch and missing > len(kept.reported)
        return not may_relaunch and (min_nodes is None or missing < min_nodes)

    @property
    def ended_ns(self) -> int | None:
        """When the last node ended, by the operator's clock."""
        if self.live:
            return None
        if self.kept:
            return self.kept.ended
        times = [node.exit.ended_unstepped - node.clock_offset_ns for node in self.nodes if node.exit]
        return max(times, default=None)

    @property
    def last_output_ns(self) -> int | None:
        """When any worker of the last attempt last printed, by the operator's clock; None if none has."""
        return max((time_ns for node in self.nodes if (time_ns := _last_output_ns(node)) is not None), default=None)

    def notices(self) -> list[str]:
        """Return what else the user must know about the last attempt: about its output, and about what follows it."""
        lines = [
            *preload_notices(self.nodes),
            *replication_notices(self.nodes),
            *output_notices(self.nodes),
            *following_notices(self.nodes, live=self.live),
        ]
        if self.kept and not self.live:
            lines += late_notices(self.run, self.kept, self.nodes, self.silent)
        return lines

    def _stall_notices(self) -> list[str]:
        """Return the stalls of the last attempt, without one that the verdict says."""
        said = self.kept.line if self.kept and not self.live else ""
        return [line for line in dict.fromkeys(line for _, line in stalls_found(self.nodes)) if line not in said]

    def verdict(self) -> Verdict | None:
        """Return how the run ended, as its hosts have saved it or as judged from their reports; None while live."""
        if self.live:
            return None
        record = self.kept or self._judge_reports()
        return Verdict(
            record=record,
            notices=(*([record.notice] if record.notice else ()), *self.notices()),
            remedy=remedy(record, self.nodes if self.kept else ()),
            silent=self.silent,
            slow_imports=slow_imports(self.nodes),
        )

    def _judge_reports(self) -> VerdictRecord:
        """Judge the run from what the hosts report now, as they do; their copies by equally many nodes count first."""
        ends, limits = [node_end(node) for node in self.nodes], (self.record.min_nodes, self.record.max_restarts)
        judged = judge(ends, self.silent, *limits, final=self.watched)
        return judged._replace(writer=WATCHER, member=NO_MEMBER)

    def refined(self) -> RunView:
        """Add a verdict judged here if more nodes report now than the saved one includes: a lost host may explain why.

        Only for a watched run. It changes the verdict's line, never its state or exit code.
        """
        kept = self.kept
        if not self.watched or kept is None or len(self.nodes) <= len(kept.reported):
            return self
        states = {node.state for node in self.nodes}
        if RunState.LOST not in states or not states <= {*ENDED_STATES}:
            return self
        judged = self._judge_reports()
        if (judged.state, judged.exit_code) != (kept.state, kept.exit_code):
            return self
        return replace(self, copies=(*self.copies, judged.bounded()))

    def to_keep(self) -> VerdictRecord | None:
        """Return the verdict to save in the project; None if there is none."""
        if self.live or self.kept:
            return self.kept
        judged = self._judge_reports()
        return None if judged.state == RunState.UNKNOWN else judged.bounded()

    def state(self) -> str:
        """Return the state of the whole run, in the terms of docs/status.md."""
        if verdict := self.verdict():
            return verdict.state
        if self.job and (not self.nodes or self.nodes[0].attempt < self.job.attempt):
            return self.job.state
        states = {node.state for node in self.nodes}
        if states <= {*ENDED_STATES}:
            return RunState.RUNNING  # the nodes have not agreed on the verdict yet
        return next((state for state in (RunState.RUNNING, RunState.STARTING) if state in states), RunState.QUEUED)

    def to_json(self, *, hosts: bool = True) -> dict[str, Any]:
        """Return the status object of docs/labels-and-json.md; without ``hosts``, the shorter one of ``runs``."""
        value = self.summary().to_json()
        return {**value, **self.details().to_json()} if hosts else value

    def summary(self) -> RunSummary:
        """Return the run's status as a value, without its hosts'."""
        return RunSummary(
            run=self.run,
            record=self.record,
            state=self.state(),
            attempt=self.attempt,
            round=_latest_round(self.nodes),
            world_size=_world_size(self.nodes) or self.record.world_size,
            started=seconds(self.record.started),
            ended=seconds(self.ended_ns),
            verdict=self.verdict(),
            notices=(*self.notices(), *self._stall_notices()),
            job=self.job,
        )

    def details(self) -> HostDetails:
        """Return the status of the run's hosts, and its failures."""
        verdict = self.verdict()
        return HostDetails(
            failures=(*all_recovered(self.nodes, self.earlier), *(verdict.failures if verdict else ())),
            last_output=seconds(self.last_output_ns),
            hosts=self.hosts(),
            spares=tuple(map(_host_status, self.spares)),
        )

    def hosts(self) -> tuple[HostStatus, ...]:
        """Return the status of each host that takes part in the last attempt."""
        ends = {end.host: end for end in reversed(self.kept.hosts if self.kept else ())}  # a host's first one counts
        hosts = [*map(_host_status, self.nodes), *map(self._absent_status, self._absent_hosts())]
        return tuple(replace(host, end=ends.get(host.name)) for host in hosts)

    def holders(self, ranks: Iterable[int]) -> dict[int, str]:
        """Return the host that holds each of these ranks; raises RunError if one is nowhere."""
        hosts = self.hosts()
        held = {rank: host.name for host in hosts for rank in host.ranks}
        missing = sorted(set(ranks).difference(held))
        if not missing:
            return {rank: held[rank] for rank in ranks}
        if silent := [host.name for host in hosts if host.state == UNREACHABLE]:  # its ranks are not known
            raise RunError(
                f"rank {missing[0]} of run {self.run} was not found", remedy=f"{few(silent, 3)} did not answer"
            )
        remedy = f"its last rank is {max(held)}" if held else "no worker of it has started yet"
        raise RunError(f"run {self.run} has no rank {missing[0]}", remedy=remedy)

    def _absent_hosts(self) -> list[str]:
        """Return the hosts of the plan that did not answer, or were not asked."""
        answered = {node.host for node in self.nodes}
        return [name for name in self.record.hosts if name not in answered]

    def _absent_status(self, name: str) -> HostStatus:
        """Describe a host that did not answer, or was not asked, by the last status that another received from it."""
        state = UNREACHABLE if name in self.silent or self.job else NOT_ASKED
        for node in self.nodes:
            heard = node.peers.nodes.get(name) if node.peers else None
            if heard and heard.attempt == self.attempt:
                last = LastHeard(node.host, heard.state, heard.age)
                return HostStatus(name=name, state=state, heard=last)
        return HostStatus(name=name, state=state)


def run_views(
    reports: Iterable[NodeReport | JobReport],
    unreachable: Sequence[str] = (),
    kept: Mapping[str, tuple[RunRecord, VerdictRecord]] | None = None,
    started: Iterable[RunRecord] = (),
    wanted: str = "",
) -> list[RunView]:
    """Build a view of every run, oldest first, from what hosts and the workload manager report.

    ``unreachable``: hosts of the inventory that did not answer. ``kept``: the project's saved records and verdicts, by
    run id; that of the run ``wanted`` counts even if its hosts answer, and know it no more. ``started``: its records of
    started runs; if none of a run's hosts answers, its end is unknown.
    """
    by_run: dict[str, list[NodeReport | JobReport]] = {}
    for report in reports:
        by_run.setdefault(report.run, []).append(report)
    saved, away = kept or {}, {*unreachable}
    views = [_view(run, own, unreachable, saved[run][1] if run in saved else None) for run, own in by_run.items()]
    for run, (record, copy) in saved.items():
        hosts = tuple(name for name in record.hosts if name in away)
        if run not in by_run and (hosts or run == wanted):
            views.append(RunView(run=run, nodes=(), silent=hosts, copies=(copy,), local_record=record))
    lost = [one for one in started if one.run not in by_run and one.run not in saved and away.issuperset(one.hosts)]
    views += [RunView(run=record.run, nodes=(), silent=record.hosts, local_record=record) for record in lost]
    return sorted(views, key=lambda view: view.record.started or _NO_START_TIME)


def _view(run: str, reports: Reports, unreachable: Sequence[str], shown: VerdictRecord | None) -> RunView:
    """Build the view of one run from its nodes, its job's state, and the project's copy of the verdict."""
    jobs = [report for report in reports if isinstance(report, JobReport)]
    nodes = [report for report in reports if isinstance(report, NodeReport)]
    job = jobs[-1].job if jobs else None
    verdicts = [*(node.verdict for node in nodes), *(report.verdict for report in jobs), shown]
    copies = tuple(copy for copy in verdicts if copy)
    if not nodes:
        return RunView(run=run, nodes=(), copies=copies, local_record=jobs[-1].record, job=job)
    nodes.sort(key=lambda node: (node.attempt, node.node_rank))
    participants = [node for node in nodes if not node.standby] or nodes
    last = participants[-1].attempt
    latest = [node for node in participants if node.attempt == last]
    latest_hosts = {node.host for node in latest}
    return RunView(
        run=run,
        nodes=tuple(latest),
        silent=tuple(name for name in latest[0].record.hosts if name in unreachable),
        unreachable=tuple(unreachable),
        earlier=tuple(participants[: -len(latest)]),
        spares=tuple(node for node in nodes if node.standby and node.host not in latest_hosts),
        copies=copies,
        job=job,
        shown=shown,
    )


def _judgement_of(copy: VerdictRecord) -> tuple[Any, ...]:
    """Return the fields in which two copies of one verdict agree: ``attempt`` to ``reported``."""
    return copy[:7]


def _host_status(node: NodeReport) -> HostStatus:
    """Return the status of a host from its report, with the ranks of its newest start of workers."""
    return HostStatus(
        name=node.host,
        state=node.state,
        ranks=tuple(sorted(event.rank for event in newest_start(node.events))),
        pids=node.pids,
        gpus=tuple(node.record.gpus.get(node.host, ())),
        last_output=seconds(_last_output_ns(node)),
    )


def _last_output_ns(node: NodeReport) -> int | None:
    """Return when a worker of the node last printed, by the operator's clock."""
    return None if node.last_output is None else node.last_output - node.clock_offset_ns


def _latest_round(nodes: Sequence[NodeReport]) -> int:
    """Return the latest round's number: torchrun's own, or without it the most starts that any host has counted."""
    events = [event for node in nodes for event in of_kind(node.events, WORKER_STARTED)]
    numbers = [event.round for event in events if event.round is not None]
    return max(numbers or [event.start for event in events], default=0)


def _world_size(nodes: Sequence[NodeReport]) -> int | None:
    """Return the newest round's world size, which may differ from the first; None if its workers are not reported."""
    events = [event for node in nodes for event in of_kind(node.events, WORKER_STARTED)]
    newest = max(events, key=lambda event: (event.round or 0, event.start), default=None)
    return newest.world_size if newest else None
