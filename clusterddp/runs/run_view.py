"""A run's state, verdict and JSON status, computed from what its hosts report of their spools. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clusterddp.remote.shared.run.event_schema import WORKER_STARTED, of_kind
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.remote.shared.run.run_state import ENDED_STATES, RunState
from clusterddp.remote.shared.verdict.node_report import NodeReport
from clusterddp.remote.shared.verdict.verdict_record import VerdictRecord, best
from clusterddp.runs.managed_job import JobReport
from clusterddp.runs.notices import carried_notices, copy_notices, following_notices, output_notices, preload_notices
from clusterddp.runs.preload_hint import slow_imports
from clusterddp.runs.run_status import UNREACHABLE, HostDetails, HostStatus, LastHeard, RunSummary, seconds
from clusterddp.runs.verdict_lines import NO_MEMBER, Verdict, judge, of_record, recovered, to_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from clusterddp.runs.managed_job import JobStatus

Reports = Sequence[NodeReport | JobReport]
_NEVER = 1 << 62


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView:
    """One run as the hosts report it: the nodes of its last attempt, and hosts of its plan that did not answer."""

    run: str
    nodes: tuple[NodeReport, ...]
    silent: tuple[str, ...] = ()
    earlier: tuple[NodeReport, ...] = ()  # nodes of earlier attempts, oldest first
    spares: tuple[NodeReport, ...] = ()  # nodes that wait for a relaunch
    copies: tuple[VerdictRecord, ...] = ()  # of the verdict, from its hosts and the project
    about: RunRecord | None = None  # the project's record of a run of which no host answers; such a run has no nodes
    job: JobStatus | None = None  # of the workload manager that started the run, if any
    shown: VerdictRecord | None = None  # the project's copy of the verdict
    watched: bool = False  # it was followed to its end, so a host that does not answer is lost

    @property
    def id(self) -> str:
        """The run id, named as in ``Run``."""
        return self.run

    @property
    def record(self) -> RunRecord:
        """What the run recorded about itself when it started."""
        return self.nodes[0].record if self.nodes else self.about or RunRecord(hosts=())

    @property
    def kept(self) -> VerdictRecord | None:
        """The copy of the verdict that counts; None if there is none for the last attempt.

        Hosts that lost contact with each other may write two verdicts by equally many nodes; then the copy shown here
        before counts.
        """
        found, shown = best(self.copies), self.shown
        if found and shown and shown.member != NO_MEMBER:
            same = (shown.attempt, len(shown.reported)) == (found.attempt, len(found.reported))
            found = shown if same else found
        return found if found and found.attempt >= self._seen_attempt else None

    @property
    def other_copies(self) -> list[VerdictRecord]:
        """The copies that differ from the one that counts, without duplicates."""
        known = {(copy.attempt, copy.writer, copy.reported): copy for copy in self.copies}
        counts = self.kept or best(self.copies)
        return [copy for copy in known.values() if counts and copy[:7] != counts[:7]]

    @property
    def _seen_attempt(self) -> int:
        return max(self.nodes[0].attempt if self.nodes else 0, self.job.attempt if self.job else 0)

    @property
    def name(self) -> str:
        """The run's name, or its id."""
        return self.record.name or self.run

    @property
    def attempt(self) -> int:
        """The last attempt's number."""
        return max([self._seen_attempt, *(copy.attempt for copy in self.copies)])

    @property
    def spools(self) -> dict[int, dict[str, str]]:
        """Each attempt's folder on each of its hosts: attempt → host → spool, in order."""
        found: dict[int, dict[str, str]] = {}
        for node in (*self.earlier, *self.nodes):
            found.setdefault(node.attempt, {})[node.host] = node.spool
        return found

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
        if any(node.state not in ENDED_STATES for node in self.nodes) or (self.job and not self.job.over):
            return True
        known = kept or any(node.state == RunState.LOST for node in self.nodes)
        return not self.watched and not known and any(node.concluding for node in self.nodes)

    @property
    def settled(self) -> bool:
        """Whether hosts have kept a verdict, and the hosts missing from it are too few to continue the run."""
        kept = self.kept
        if kept is None or kept.stands:
            return kept is not None
        missing, least = len(kept.missing), self.record.min_nodes
        relaunched = self.record.relaunch and missing > len(kept.reported)
        return not relaunched and (least is None or missing < least)

    @property
    def ended_ns(self) -> int | None:
        """When the last node ended, by the operator's clock."""
        if self.live:
            return None
        if self.kept:
            return self.kept.ended
        times = [node.exit.ended - node.clock_offset_ns for node in self.nodes if node.exit]
        return max(times, default=None)

    @property
    def last_output_ns(self) -> int | None:
        """When any worker of the last attempt last printed, by the operator's clock; None if none has."""
        return max((time_ns for node in self.nodes if (time_ns := _last_output(node)) is not None), default=None)

    def notices(self) -> list[str]:
        """Return what else the user must know about the last attempt: about its output, and about what follows it."""
        lines = [
            *preload_notices(self.nodes),
            *carried_notices(self.nodes),
            *output_notices(self.nodes),
            *following_notices(self.nodes, live=self.live),
        ]
        if self.kept and not self.live:
            lines += copy_notices(self.run, self.kept, self.nodes, self.silent)
        return lines

    def verdict(self) -> Verdict | None:
        """Return how the run ended, as its hosts have kept it or as judged from their reports; None while live."""
        if self.live:
            return None
        verdict = of_record(self.kept, self.nodes) if self.kept else self._judged()
        notices = (*verdict.notices, *self.notices())
        return replace(verdict, notices=notices, slow_imports=slow_imports(self.nodes))

    def _judged(self) -> Verdict:
        """Judge the run from what the hosts report now."""
        return judge(self.nodes, self.silent, watched=self.watched)

    def refined(self) -> RunView:
        """Add a verdict judged here if more nodes report now than the kept one includes: a lost host may explain why.

        Only for a watched run. It changes the verdict's line, never its state or exit code.
        """
        kept = self.kept
        if not self.watched or kept is None or len(self.nodes) <= len(kept.reported):
            return self
        states = {node.state for node in self.nodes}
        if RunState.LOST not in states or not states <= {*ENDED_STATES}:
            return self
        own = self._judged()
        if (own.state, own.exit_code) != (kept.state, kept.exit_code):
            return self
        return replace(self, copies=(*self.copies, to_record(own, self.nodes, self.silent)))

    def to_keep(self) -> VerdictRecord | None:
        """Return the verdict to save in the project; None if there is none."""
        if self.live or self.kept:
            return self.kept
        verdict = self._judged()
        return None if verdict.state == RunState.UNKNOWN else to_record(verdict, self.nodes, self.silent)

    def state(self) -> str:
        """Return the state of the whole run, in the terms of docs/status.md."""
        verdict = self.verdict()
        if verdict:
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
            round=_round(self.nodes),
            world_size=_world_size(self.nodes) or self.record.world_size,
            started=seconds(self.record.started),
            ended=seconds(self.ended_ns),
            verdict=self.verdict(),
            notices=tuple(self.notices()),
            job=self.job,
        )

    def details(self) -> HostDetails:
        """Return the status of the run's hosts, and its failures."""
        verdict = self.verdict()
        return HostDetails(
            failures=(*recovered(self.nodes, self.earlier), *(verdict.failures if verdict else ())),
            last_output=seconds(self.last_output_ns),
            hosts=self.hosts(),
            spares=tuple(map(_host_status, self.spares)),
        )

    def hosts(self) -> tuple[HostStatus, ...]:
        """Return the status of each host that takes part in the last attempt."""
        ends = {end.host: end for end in reversed(self.kept.hosts if self.kept else ())}  # a host's first one counts
        found = [*map(_host_status, self.nodes), *map(self._absent_status, self._absent())]
        return tuple(replace(host, end=ends.get(host.name)) for host in found)

    def _absent(self) -> list[str]:
        """Return the hosts of the plan that did not answer, or were not asked."""
        answered = {node.host for node in self.nodes}
        return [name for name in self.record.hosts if name not in answered]

    def _absent_status(self, name: str) -> HostStatus:
        """Describe a host that did not answer by what the others last heard from it."""
        for node in self.nodes:
            heard = node.peers.nodes.get(name) if node.peers else None
            if heard and heard.attempt == self.attempt:
                last = LastHeard(node.host, heard.state, heard.age)
                return HostStatus(name=name, state=UNREACHABLE, heard=last)
        return HostStatus(name=name, state=UNREACHABLE)


def run_views(
    reports: Iterable[NodeReport | JobReport],
    unreachable: Sequence[str] = (),
    kept: Mapping[str, tuple[RunRecord, VerdictRecord]] | None = None,
    begun: Iterable[RunRecord] = (),
) -> list[RunView]:
    """Build a view of every run, oldest first, from what hosts and the workload manager report.

    ``unreachable``: hosts of the inventory that did not answer. ``kept``: the project's saved records and verdicts, by
    run id. ``begun``: its records of started runs; if none of a run's hosts answers, its end is unknown.
    """
    by_run: dict[str, list[NodeReport | JobReport]] = {}
    for report in reports:
        by_run.setdefault(report.run, []).append(report)
    own = kept or {}
    found = [_view(run, mine, unreachable, own[run][1] if run in own else None) for run, mine in by_run.items()]
    for run, (record, copy) in own.items():
        hosts = tuple(name for name in record.hosts if name in unreachable)
        if run not in by_run and hosts:
            found.append(RunView(run=run, nodes=(), silent=hosts, copies=(copy,), about=record))
    untold = [one for one in begun if one.run not in {*by_run, *own} and set(one.hosts) <= set(unreachable)]
    found += [RunView(run=one.run, nodes=(), silent=one.hosts, about=one) for one in untold]
    return sorted(found, key=lambda view: view.record.started or _NEVER)


def _view(run: str, reports: Reports, unreachable: Sequence[str], shown: VerdictRecord | None) -> RunView:
    """Build the view of one run from its nodes, its job's state, and the project's copy of the verdict."""
    jobs = [one for one in reports if isinstance(one, JobReport)]
    mine = [one for one in reports if isinstance(one, NodeReport)]
    job = jobs[-1].job if jobs else None
    verdicts = [*(node.verdict for node in mine), *(one.verdict for one in jobs), shown]
    copies = tuple(copy for copy in verdicts if copy)
    if not mine:
        return RunView(run=run, nodes=(), copies=copies, about=jobs[-1].record, job=job)
    mine.sort(key=lambda node: (node.attempt, node.node_rank))
    taking = [node for node in mine if not node.standby] or mine
    last = taking[-1].attempt
    latest = [node for node in taking if node.attempt == last]
    taking_part = {node.host for node in latest}
    return RunView(
        run=run,
        nodes=tuple(latest),
        silent=tuple(name for name in latest[0].record.hosts if name in unreachable),
        earlier=tuple(taking[: -len(latest)]),
        spares=tuple(node for node in mine if node.standby and node.host not in taking_part),
        copies=copies,
        job=job,
        shown=shown,
    )


def _host_status(node: NodeReport) -> HostStatus:
    starts = of_kind(node.events, WORKER_STARTED)
    last = max((event.start for event in starts), default=0)
    return HostStatus(
        name=node.host,
        state=node.state,
        ranks=tuple(sorted(event.rank for event in starts if event.start == last)),
        pids=node.pids,
        gpus=tuple(node.record.gpus.get(node.host, ())),
        last_output=seconds(_last_output(node)),
    )


def _last_output(node: NodeReport) -> int | None:
    return None if node.last_output is None else node.last_output - node.clock_offset_ns


def _round(nodes: Sequence[NodeReport]) -> int:
    """Return the latest round's number: torchrun's own, or without it the most starts that any host has counted."""
    events = [event for node in nodes for event in of_kind(node.events, WORKER_STARTED)]
    numbers = [event.round for event in events if event.round is not None]
    return max(numbers or [event.start for event in events], default=0)


def _world_size(nodes: Sequence[NodeReport]) -> int | None:
    """Return the newest round's world size, which may differ from the first; None if its workers are not reported."""
    events = [event for node in nodes for event in of_kind(node.events, WORKER_STARTED)]
    newest = max(events, key=lambda event: (event.round or 0, event.start), default=None)
    return newest.world_size if newest else None
