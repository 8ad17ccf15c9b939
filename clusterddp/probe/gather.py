"""Collects the evidence that the doctor's checks judge, also for known messages in a log."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from clusterddp.checks.evidence import Answer, Evidence, HostEvidence, NetworkEvidence, RunEvidence
from clusterddp.checks.model import QueryContext, internal_error
from clusterddp.checks.needs import DIALLED, NETWORK, RUNS, SHARED
from clusterddp.errors import ClusterddpError, HelperError, PlanError
from clusterddp.facts.dial_schedule import ALL_PAIRS_HOSTS, connected, dial_schedule, some_others
from clusterddp.facts.dials import mark_lost, matrix
from clusterddp.facts.network import best_candidate, candidates, loopback
from clusterddp.facts.unanswered import explain_unanswered
from clusterddp.hosts.fanout import each
from clusterddp.probe.dial_hosts import facts_of_host, find_shared_folders, try_connections
from clusterddp.remote.shared.workdir.workdir_names import WORKDIRS
from clusterddp.runs.view.run_view import Reports, run_views

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from clusterddp.checks.model import Need
    from clusterddp.facts.host import Facts
    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.runs.cleanup import Orphans
    from clusterddp.runs.view.run_view import RunView

    ReportBug = Callable[[Exception, str], object]

T = TypeVar("T")
_log = logging.getLogger("clusterddp")


def gather_evidence(
    connected: Sequence[HostEvidence],  # the hosts that were to be connected, without answers yet
    hosts: Sequence[Host],  # those of them that are
    needs: Collection[Need[Any]],  # what the checks need
    *,
    workdir: str,  # the folder of the project's code, unless the inventory says another; empty if it was never synced
    fresh: bool,  # ask torch anew instead of using hosts' caches
    all_pairs: bool = False,  # try connections between all pairs of many hosts too
    # called with a bug met while an answer is read or hosts work together, and what was being done; the hosts are
    # unknown in that respect then
    report_bug: ReportBug,
) -> Evidence:
    """Ask the connected hosts for what the checks need; the caller adds runs, rehearsal and benchmark."""
    look = _guarded(lambda host: facts_of_host(host, fresh=fresh, packages=True), "facts", report_bug)
    outcome_of = {outcome.name: outcome for outcome in each(hosts, look)} if needs else {}
    facts = {name: outcome.value for name, outcome in outcome_of.items() if outcome.value}
    broken: set[str] = set()
    pool = ThreadPoolExecutor(len(needs) + 1)
    try:
        asking = {
            need.name: pool.submit(ask_hosts, need, hosts, facts, needs=needs, workdir=workdir, report_bug=report_bug)
            for need in needs
            if need.operation
        }
        if SHARED in needs:
            asking[SHARED.name] = pool.submit(
                collect_or_break, (SHARED,), lambda: _find_shared_folders(hosts), [], broken, report_bug
            )
        dialling = None
        if {NETWORK, DIALLED} & set(needs):
            with_facts = [host for host in hosts if host.name in facts]
            survey = partial(survey_network, with_facts, facts, all_pairs=all_pairs)
            dialling = pool.submit(collect_or_break, (NETWORK,), survey, None, broken, report_bug)
        answers: dict[str, dict[str, Answer]] = {host.name: {} for host in connected}
        for name, pending in asking.items():
            for outcome in pending.result():
                answers[outcome.name][name] = Answer(value=outcome.value, error=outcome.reason)
        dials = dialling.result() if dialling else None
    finally:  # after Ctrl-C do not wait for hosts that may never answer
        pool.shutdown(wait=False, cancel_futures=True)
    seen = [
        replace(
            host,
            facts=facts.get(host.name),
            facts_error=outcome_of[host.name].reason if host.name in outcome_of else "",
            answers=answers[host.name],
        )
        for host in connected
    ]
    return Evidence(hosts=tuple(seen), network=dials, broken=tuple(sorted(broken)))


def collect_or_break(
    needs: Sequence[Need[Any]], work: Callable[[], T], without: T, broken: set[str], report_bug: ReportBug
) -> T:
    """Collect something from several hosts together; after a bug, return ``without``; the needs are ``broken``."""
    try:
        return work()
    except ClusterddpError:
        raise
    except Exception as error:  # noqa: BLE001 - a bug of one part, whatever it is
        names = [need.name for need in needs]
        report_bug(error, f"what hosts tell of {' and '.join(names)}")
        broken.update(names)
        return without


def ask_hosts(
    need: Need[T],
    hosts: Sequence[Host],
    facts: Mapping[str, Facts],
    *,
    needs: Collection[Need[Any]] = (),
    workdir: str = "",
    report_bug: ReportBug | None = None,
) -> list[Outcome[T]]:
    """Ask each host the question of a need; hosts without facts only if the question does not depend on them.

    ``facts`` are those of the hosts that reported them; ``needs`` are all that are collected now; ``workdir`` and
    ``report_bug`` are as for ``gather_evidence``, but without ``report_bug`` a bug is raised.
    """

    def ask(host: Host) -> T:
        context = QueryContext(
            entry=host.entry,
            own_facts=facts.get(host.name),
            facts=facts,
            needs=frozenset(ask.name for ask in needs),
            workdir=host.entry.workdir or WORKDIRS,
            code=workdir and (host.entry.workdir or workdir),
        )
        known = need.known(context)
        return known or need.read(host.name, host.call(need.operation, need.arguments(context), timeout=need.timeout))

    work = _guarded(ask, need.name, report_bug) if report_bug else ask
    return each([host for host in hosts if need.without_facts or host.name in facts], work)


def _guarded(work: Callable[[Host], T], subject: str, report_bug: ReportBug) -> Callable[[Host], T]:
    """Wrap work on one host so that a bug becomes that host's error; ``report_bug`` gets only the first."""
    first = threading.Lock()

    def guarded(host: Host) -> T:
        try:
            return work(host)
        except ClusterddpError:
            raise
        except Exception as error:
            if first.acquire(blocking=False):
                report_bug(error, f"what hosts tell of {subject}")
            raise HelperError(host.name, internal_error(subject)) from error

    return guarded


def _find_shared_folders(hosts: Sequence[Host]) -> list[Outcome[dict[str, tuple[str, ...]]]]:
    """Find which of a run's folders hosts have in common; of many hosts, by chains of hosts that see each other's."""
    folders = {
        host.name: {"state": host.hello.state, "workdir": host.entry.workdir or WORKDIRS, "home": "~"} for host in hosts
    }
    outcomes = find_shared_folders(hosts, folders, some_others(tuple(folders)))
    if len(hosts) <= ALL_PAIRS_HOSTS:
        return outcomes
    values = {outcome.name: outcome.value for outcome in outcomes if outcome.value is not None}
    for purpose in {purpose for value in values.values() for purpose in value}:
        seen = {name: value[purpose] for name, value in values.items() if purpose in value}
        for name, others in connected(seen).items():
            values[name][purpose] = others
    return outcomes


def survey_network(
    hosts: Sequence[Host],
    facts: Mapping[str, Facts],
    *,
    growing: bool = False,
    measured: bool = True,
    all_pairs: bool = False,
) -> NetworkEvidence:
    """Try connections between the hosts on every candidate network, and report on the best one.

    The doctor and every run choose their network by this. ``growing``: more hosts may join; ``measured``: losses and
    round trips too, which takes longer; ``all_pairs``: of many hosts too.
    """
    nodes = [(host.entry, facts[host.name]) for host in hosts]
    local = loopback(nodes, growing=growing)
    if local is not None or not nodes:
        return NetworkEvidence(label="loopback", where=local or {})
    try:
        networks = candidates(nodes)
    except PlanError as error:
        return NetworkEvidence(error=error.message, remedy=error.remedy)
    tried = [(one, dial_schedule(one.where, all_pairs=all_pairs)) for one in networks]
    # many messages where a host has few others to dial
    echoes = max(3, min(20, 120 // max(1, len(tried[0][1][hosts[-1].name])))) if measured else 0
    trial = try_connections(hosts if len(hosts) > 1 else [], tried, echoes=echoes)
    addresses = {entry.name: [one.address for one in own.addresses] for entry, own in nodes}
    dialled = explain_unanswered(mark_lost(trial.attempts), trial.heard, addresses)
    failures = [failure for item in dialled if (failure := item.failure)]
    best, broken = best_candidate(networks, failures)
    others = ", ".join(f"{item.label} ({item.speed} Mbit/s)" for item in networks if item is not best) or "none"
    _log.debug(
        "network %s (%d Mbit/s), the fastest with the fewest failed dials: %d of %d; besides it: %s",
        *(best.label, best.speed, len(broken), len(dialled), others),
    )
    return NetworkEvidence(
        label=best.label,
        where=best.where,
        failures=tuple(broken),
        pairs=matrix(best.where, dialled, next(schedule for one, schedule in tried if one is best)),
        unreached={(item.source, item.address): item.meaning for item in failures if item not in broken},
        deaf={outcome.name: outcome.reason for outcome in trial.deaf},
        heard=trial.heard,
    )


def with_runs(
    evidence: Evidence, reported: Iterable[Outcome[Reports]], left: Iterable[Outcome[list[Orphans]]]
) -> Evidence:
    """Add the hosts' runs and leftover processes to the evidence; a host that did not report them is unknown there."""
    reported, left = list(reported), list(left)
    both: list[Outcome[Any]] = [*reported, *left]
    errors = {outcome.name: outcome.reason for outcome in both if outcome.error}
    known = run_views([node for outcome in reported for node in outcome.value or ()])
    runs = run_evidence(known, [one for outcome in left for one in outcome.value or ()])
    hosts = tuple(
        replace(seen, answers={**seen.answers, RUNS.name: Answer(error=errors.get(seen.name, ""))})
        for seen in evidence.hosts
    )
    return replace(evidence, hosts=hosts, runs=runs)


def run_evidence(views: Iterable[RunView], orphans: Iterable[Orphans]) -> tuple[RunEvidence, ...]:
    """The live runs, and those that left processes."""
    live = [
        RunEvidence(
            run=view.run,
            name=view.name,
            operator=view.record.operator or "",
            hosts=tuple(node.host for node in view.nodes),
        )
        for view in views
        if view.live
    ]
    left: dict[str, dict[str, tuple[int, ...]]] = {}
    for orphaned in orphans:
        left.setdefault(orphaned.run, {})[orphaned.host] = tuple(pid for pid, _ in orphaned.processes)
    return (*live, *(RunEvidence(run=run, hosts=tuple(by_host), left=by_host) for run, by_host in left.items()))
