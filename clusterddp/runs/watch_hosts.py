"""Look at what a run's hosts and ranks do, again and again, for `top`: nothing is asked between the looks.

Hosts are asked for their usage at each look, ranks for their pace more rarely: that stops a worker's Python code for up
to 0.1 s and may leave the worker a little larger.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from clusterddp.errors import ClusterddpError
from clusterddp.hosts.ask import ask, clock_offset
from clusterddp.hosts.fanout import each
from clusterddp.remote.shared.collectives import lateness
from clusterddp.remote.shared.collectives.lateness import Clock, GroupTimes
from clusterddp.remote.shared.collectives.pace_records import NodePace, PaceRequest
from clusterddp.remote.shared.probes.usage_records import HostUsage, UsageRequest
from clusterddp.runs.ask_workers import each_spool
from clusterddp.runs.top_looks import HostLook, RankLook, TopLook

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.remote.shared.collectives.lateness import LateRanks
    from clusterddp.remote.shared.collectives.pace_records import WorkerPace
    from clusterddp.remote.shared.probes.gpu_records import Xid
    from clusterddp.runs.run_on_hosts import RunOnHosts, Site
    from clusterddp.runs.view.run_view import RunView

HOSTS_INTERVAL = 5.0  # seconds between two looks at hosts
RATE_PAUSE = 1.0  # seconds between the first two, which give the first rates
RANKS_INTERVAL = 10.0  # seconds between two looks at ranks
LONG, RANKS_INTERVAL_LATER = 300.0, 60.0  # after so many seconds of looking they are that much rarer
XIDS_INTERVAL = 60.0  # seconds between two looks into kernel logs
TIMEOUT = 20.0  # seconds for a host's answer
MAX_CALLS = 600_000  # calls of all ranks that are remembered of a group, and
MIN_OPERATIONS, MAX_OPERATIONS = 128, 2048  # of how many operations
MAX_WORLD = 1 << 17  # ranks
BUSY = 20.0  # percent of the time in which processes wait for cores, from which on ranks are late in turn by that


class _HostAnswer(NamedTuple):
    """What one host answered: its usage, and if ranks were asked their pace and its clock."""

    usage: HostUsage
    is_local: bool  # its processes share the cores of this machine
    pace: NodePace | None = None
    clock: tuple[int, int] = (0, 0)  # its offset from ours and the possible error, ns
    error: str = ""  # why there is no pace


class _ClockSeen(NamedTuple):
    """A host's clock when it was compared with ours."""

    offset: int  # ns
    error: int
    at: float  # by this machine's monotonic clock

    def error_at(self, now: float) -> int:
        """Return the possible error of the offset at a later time."""
        return self.error + int((now - self.at) * lateness.CLOCK_DRIFT * 1e9)


def operations_of(ranks: int) -> int:
    """Return how many operations of each rank are asked for, and remembered: of many ranks fewer."""
    return min(MAX_OPERATIONS, max(MIN_OPERATIONS, MAX_CALLS // max(1, ranks)))


class CallHistory:
    """When ranks called their operations, by this machine's clock, from several looks."""

    def __init__(self) -> None:
        self.clocks: dict[int, Clock] = {}
        self.silent: list[int] = []
        self._workers: dict[int, tuple[int, int]] = {}  # rank → its start and pid
        self._idents: dict[str, dict[int, int]] = {}  # a group's name → rank → its ident there
        self._times: dict[str, dict[int, dict[int, int]]] = {}
        self._offsets: dict[str, _ClockSeen] = {}

    def add(self, found: Mapping[str, tuple[Sequence[WorkerPace], tuple[int, int]]]) -> None:
        """Add one look at all hosts: of each its workers, its clock's offset and the possible error."""
        workers = {worker.rank: (worker.start, worker.pid) for pace, _ in found.values() for worker in pace}
        if workers != self._workers:  # they were started again, or some have ended
            self._idents, self._times = {}, {}
        self._workers, self.clocks = workers, {}
        self.silent = sorted({worker.rank for pace, _ in found.values() for worker in pace if worker.why})
        for host, (pace, measured) in found.items():
            seen = self._best_clock(host, _ClockSeen(*measured, time.monotonic()))
            for worker in pace:
                self.clocks[worker.rank] = Clock(host, seen.error_at(time.monotonic()))
                self._add_worker(worker, seen.offset)
        told = {group.name for pace, _ in found.values() for worker in pace for group in worker.groups}
        for name in self._times.keys() - told:  # a group that the script has left
            del self._times[name], self._idents[name]
        for times in self._times.values():
            for sequence in sorted(times)[: -operations_of(len(workers))]:
                del times[sequence]

    def groups(self) -> list[GroupTimes]:
        """Return the calls of each group by the ranks that are in it."""
        return [GroupTimes(name, frozenset(self._idents[name]), self._times[name]) for name in sorted(self._times)]

    def _best_clock(self, host: str, seen: _ClockSeen) -> _ClockSeen:
        earlier = self._offsets.get(host)
        if earlier and earlier.error_at(seen.at) < seen.error and abs(earlier.offset - seen.offset) < 2 * seen.error:
            return earlier
        self._offsets[host] = seen
        return seen

    def _add_worker(self, worker: WorkerPace, offset: int) -> None:
        for group in worker.groups:
            idents = self._idents.setdefault(group.name, {})
            times = self._times.setdefault(group.name, {})
            if idents.setdefault(worker.rank, group.ident) != group.ident:  # made anew: its numbers begin again
                times.clear()
                idents[worker.rank] = group.ident
            for sequence, called in group.calls().items():
                times.setdefault(sequence, {})[worker.rank] = called - offset


class Top:
    """One user's looks: at a live run's hosts and ranks, or without one at all hosts of the inventory."""

    def __init__(self, site: Site, view: RunView | None = None, run: RunOnHosts | None = None) -> None:
        self._site, self._view, self._run = site, view, run if view and view.live else None
        self._began = time.monotonic()
        self._ranks_asked = self._xids_asked = float("-inf")
        self._usage: dict[str, HostUsage] = {}
        self._xids: dict[str, tuple[tuple[Xid, ...], str | None]] = {}
        self._history = CallHistory()
        self._ranks: tuple[RankLook, ...] = ()
        self._late: LateRanks | None = None
        self._time_left: tuple[float, float] | None = None  # seconds, and when they were told

    @property
    def live(self) -> bool:
        """Whether there is a live run."""
        return self._run is not None

    def settled(self) -> TopLook:
        """Look twice, so that there are rates."""
        self.look()
        time.sleep(RATE_PAUSE)
        return self.look()

    def look(self) -> TopLook:
        """Ask the hosts what is due; a host that does not answer is shown with its error."""
        now = time.monotonic()
        rarely = RANKS_INTERVAL_LATER if now - self._began > LONG else RANKS_INTERVAL
        with_ranks, with_xids = now - self._ranks_asked >= rarely, now - self._xids_asked >= XIDS_INTERVAL
        if with_ranks and self._ranks_asked > 0:
            self._refresh()
        outcomes = self._ask_hosts(ranks=with_ranks, xids=with_xids)
        for outcome in outcomes:
            if outcome.value and with_xids:
                self._xids[outcome.name] = outcome.value.usage.xids, outcome.value.usage.xids_error
        hosts = tuple(map(self._host_look, outcomes))
        for outcome in outcomes:
            if outcome.value:
                self._usage[outcome.name] = outcome.value.usage
        if with_xids:
            self._xids_asked = now
        if with_ranks:
            self._ranks_asked = now
            self._note_ranks({outcome.name: outcome.value for outcome in outcomes if outcome.value})
        return self._as_look(hosts)

    def _refresh(self) -> None:
        """Ask again whether the run is live, and on which hosts its workers are."""
        if self._run is None:
            return
        try:
            self._view = self._run.view(brief=True, quiet=True)
        except ClusterddpError:  # the rows of the hosts show their errors
            return
        self._run = self._run.at(self._view) if self._view.live else None

    def _ask_hosts(self, *, ranks: bool, xids: bool) -> list[Outcome[_HostAnswer]]:
        """Ask the hosts of the live run, else, and while it has no workers yet, all of the inventory."""
        if self._run is not None:
            most = operations_of(self._world())
            outcomes = each_spool(
                self._run, lambda host, spool: _ask(host, spool if ranks else "", xids=xids, most=most)
            )
            if outcomes:
                return outcomes
        inventory = self._site.inventory
        return each(inventory.run_hosts, lambda entry: _ask(self._site.host(entry.name), "", xids=xids))

    def _world(self) -> int:
        """Return how many ranks there are, as far as that may be true: a host says so."""
        return min(self._view.summary().world_size or 0, MAX_WORLD) if self._view else 0

    def _host_look(self, outcome: Outcome[_HostAnswer]) -> HostLook:
        answer = outcome.value
        if answer is None:
            return HostLook(name=outcome.name, error=outcome.reason)
        xids, error = self._xids.get(outcome.name, ((), None))
        return HostLook(
            name=outcome.name,
            usage=answer.usage,
            before=self._usage.get(outcome.name),
            xids=xids,
            xids_error=error,
            error=answer.error,
        )

    def _note_ranks(self, answers: Mapping[str, _HostAnswer]) -> None:
        paced = {name: (answer.pace.workers, answer.clock) for name, answer in answers.items() if answer.pace}
        self._history.add(paced)
        behind: dict[int, float] = {}
        for group in sorted(self._history.groups(), key=lambda group: len(group.members)):  # the default group counts
            behind.update(lateness.lateness_ms(group))
        found = [
            RankLook(host=name, pace=worker, late_ms=behind.get(worker.rank))
            for name, (workers, _) in paced.items()
            for worker in workers
        ]
        self._ranks = tuple(sorted(found, key=lambda one: one.pace.rank))
        self._late = self._judge(answers)
        left = [answer.pace.time_left for answer in answers.values() if answer.pace]
        known = [seconds for seconds in left if seconds is not None]
        self._time_left = (min(known), time.monotonic()) if known else None

    def _as_look(self, hosts: tuple[HostLook, ...]) -> TopLook:
        view, now = self._view, time.time()
        if view is None:
            return TopLook(time=now, hosts=hosts)
        summary = view.summary()
        shown = TopLook(
            time=now, hosts=hosts, run=view.run, name=view.record.name, state=summary.state, started=summary.started
        )
        if self._run is None:
            return replace(shown, notices=(f"run {view.run} is not live: {_end_of(view)}",))
        behind = [f"{host}: does not answer" for host in view.silent if host not in {one.name for one in hosts}]
        return replace(
            shown,
            time_left=self._seconds_left(),
            ranks=self._ranks,
            late=self._late,
            notices=tuple(behind),
        )

    def _seconds_left(self) -> float | None:
        if self._time_left is None:
            return None
        seconds, told = self._time_left
        return max(0.0, round(seconds - (time.monotonic() - told), 1))

    def _judge(self, answers: Mapping[str, _HostAnswer]) -> LateRanks:
        history = self._history
        missing = set(range(self._world())).difference(history.clocks)
        pressures = [answer.usage.cpu_pressure for answer in answers.values()]
        return lateness.judge(
            history.groups(),
            history.clocks,
            silent=sorted({*history.silent, *missing}),
            crowded=_crowded_hosts(answers),
            busy=any(pressure is not None and pressure > BUSY for pressure in pressures),
        )


def _ask(host: Host, spool: str, *, xids: bool, most: int = 0) -> _HostAnswer:
    """Ask a host for its usage and, with a ``spool``, for its workers' pace."""
    usage = ask(host, "usage", UsageRequest(xids=xids), HostUsage, timeout=TIMEOUT)
    is_local = host.entry.connection == "local"
    if not spool:
        return _HostAnswer(usage, is_local)
    try:
        pace = ask(host, "pace", PaceRequest(spool=spool, most=most), NodePace, timeout=TIMEOUT)
        return _HostAnswer(usage, is_local, pace, clock_offset(host))
    except ClusterddpError as error:
        return _HostAnswer(usage, is_local, error=str(error).removeprefix(f"{host.name}: "))


def _crowded_hosts(answers: Mapping[str, _HostAnswer]) -> list[str]:
    """Return the hosts with more ranks than cores; all nodes on this machine share its cores."""
    local = {name: len(answer.pace.workers) for name, answer in answers.items() if answer.is_local and answer.pace}
    return [
        name
        for name, answer in answers.items()
        if answer.pace and (sum(local.values()) if name in local else len(answer.pace.workers)) > answer.usage.cores
    ]


def _end_of(view: RunView) -> str:
    verdict = view.verdict()
    return verdict.line if verdict else view.state()
