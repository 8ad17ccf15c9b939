"""Collects the evidence that the doctor's checks judge, also for known messages in a log."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from clusterddp.checks.evidence import Answer, Evidence, NetworkSeen, RunSeen, Seen
from clusterddp.checks.model import Asked, internal_error
from clusterddp.checks.needs import DIALLED, NETWORK, RUNS, SHARED
from clusterddp.errors import ClusterddpError, HelperError, PlanError
from clusterddp.facts.dials import mark_lost, matrix
from clusterddp.facts.network import best_candidate, candidates, loopback
from clusterddp.hosts.fanout import each
from clusterddp.probe.dial_hosts import facts_of_host, shared_folders, try_all
from clusterddp.remote.shared.workdir.workdir_names import WORKDIRS
from clusterddp.runs.run_view import Reports, run_views

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from clusterddp.checks.model import Need
    from clusterddp.facts.host import Facts
    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.inventory import HostEntry
    from clusterddp.runs.cleanup import Orphans
    from clusterddp.runs.run_view import RunView

    Crashed = Callable[[Exception, str], object]

T = TypeVar("T")
_log = logging.getLogger("clusterddp")


def gather_evidence(
    entries: Sequence[HostEntry],  # the hosts that were to be connected
    outcomes: Sequence[Outcome[Host]],  # their connections, in the same order
    needs: Collection[Need[Any]],  # what the checks need
    *,
    workdir: str,  # the folder of the project's code, unless the inventory says another; empty if it was never synced
    fresh: bool,  # ask torch anew instead of using hosts' caches
    # called with a bug met while an answer is read or hosts work together, and what was being done; the hosts are
    # unknown in that respect then
    crashed: Crashed,
) -> Evidence:
    """Ask the connected hosts for what the checks need; the caller adds runs, rehearsal and benchmark."""
    hosts = [outcome.value for outcome in outcomes if outcome.value]
    look = _spared(lambda host: facts_of_host(host, fresh=fresh, packages=True), "facts", crashed)
    outcome_of = {one.name: one for one in each(hosts, look)} if needs else {}
    facts = {name: one.value for name, one in outcome_of.items() if one.value}
    broken: set[str] = set()
    pool = ThreadPoolExecutor(len(needs) + 1)
    try:
        asking = {
            need.name: pool.submit(ask_hosts, need, hosts, facts, needs=needs, workdir=workdir, crashed=crashed)
            for need in needs
            if need.operation
        }
        if SHARED in needs:
            asking[SHARED.name] = pool.submit(spared, (SHARED,), lambda: _shared(hosts), [], broken, crashed)
        dialling = None
        if {NETWORK, DIALLED} & set(needs):
            known = [host for host in hosts if host.name in facts]
            dialling = pool.submit(spared, (NETWORK,), lambda: survey_network(known, facts), None, broken, crashed)
        answers: dict[str, dict[str, Answer]] = {entry.name: {} for entry in entries}
        for name, asked in asking.items():
            for outcome in asked.result():
                answers[outcome.name][name] = Answer(value=outcome.value, error=outcome.reason)
        dials = dialling.result() if dialling else None
    finally:  # after Ctrl-C do not wait for hosts that may never answer
        pool.shutdown(wait=False, cancel_futures=True)
    seen = [
        Seen(
            entry=entry,
            error=outcome.error,
            noise=outcome.value.noise if outcome.value else "",
            facts=facts.get(entry.name),
            facts_error=outcome_of[entry.name].reason if entry.name in outcome_of else "",
            answers=answers[entry.name],
        )
        for entry, outcome in zip(entries, outcomes, strict=True)
    ]
    return Evidence(hosts=tuple(seen), network=dials, broken=tuple(sorted(broken)))


def spared(needs: Sequence[Need[Any]], work: Callable[[], T], without: T, broken: set[str], crashed: Crashed) -> T:
    """Collect something from several hosts together; after a bug, return ``without``; the needs are ``broken``."""
    try:
        return work()
    except ClusterddpError:
        raise
    except Exception as error:  # noqa: BLE001 - a bug of one part, whatever it is
        names = [need.name for need in needs]
        crashed(error, f"what hosts tell of {' and '.join(names)}")
        broken.update(names)
        return without


def ask_hosts(
    need: Need[T],
    hosts: Sequence[Host],
    facts: Mapping[str, Facts],
    *,
    needs: Collection[Need[Any]] = (),
    workdir: str = "",
    crashed: Crashed | None = None,
) -> list[Outcome[T]]:
    """Ask each host the question of a need; hosts without facts only if the question does not depend on them.

    ``facts`` are those of the hosts that reported them; ``needs`` are all that are collected now; ``workdir`` and
    ``crashed`` are as for ``gather_evidence``, but without ``crashed`` a bug is raised.
    """

    def one(host: Host) -> T:
        asked = Asked(
            entry=host.entry,
            own=facts.get(host.name),
            facts=facts,
            needs=frozenset(one.name for one in needs),
            workdir=host.entry.workdir or WORKDIRS,
            code=workdir and (host.entry.workdir or workdir),
        )
        known = need.known(asked)
        return known or need.read(host.name, host.call(need.operation, need.arguments(asked), timeout=need.timeout))

    work = _spared(one, need.name, crashed) if crashed else one
    return each([host for host in hosts if need.without_facts or host.name in facts], work)


def _spared(work: Callable[[Host], T], subject: str, crashed: Crashed) -> Callable[[Host], T]:
    """Wrap work on one host so that a bug becomes that host's error; ``crashed`` gets only the first."""
    first = threading.Lock()

    def one(host: Host) -> T:
        try:
            return work(host)
        except ClusterddpError:
            raise
        except Exception as error:
            if first.acquire(blocking=False):
                crashed(error, f"what hosts tell of {subject}")
            raise HelperError(host.name, internal_error(subject)) from error

    return one


def _shared(hosts: Sequence[Host]) -> list[Outcome[dict[str, tuple[str, ...]]]]:
    """Find which of a run's folders hosts have in common."""
    folders = {
        host.name: {"state": host.hello.state, "workdir": host.entry.workdir or WORKDIRS, "home": "~"} for host in hosts
    }
    return shared_folders(hosts, folders)


def survey_network(
    hosts: Sequence[Host], facts: Mapping[str, Facts], *, growing: bool = False, measured: bool = True
) -> NetworkSeen:
    """Try connections between all pairs on every candidate network, and report on the best one.

    The doctor and every run choose their network by this. ``growing``: more hosts may join; ``measured``: losses and
    round trips too, which takes longer.
    """
    nodes = [(host.entry, facts[host.name]) for host in hosts]
    local = loopback(nodes, growing=growing)
    if local is not None or not nodes:
        return NetworkSeen(label="loopback", where=local or {})
    try:
        chosen = candidates(nodes)
    except PlanError as error:
        return NetworkSeen(error=error.message, remedy=error.remedy)
    echoes = max(3, min(20, 120 // len(hosts))) if measured else 0  # many between few hosts
    dialled, deaf = try_all(hosts, chosen, echoes=echoes) if len(hosts) > 1 else ([], [])
    dialled = mark_lost(dialled)
    failures = [failure for one in dialled if (failure := one.failure)]
    best, broken = best_candidate(chosen, failures)
    others = ", ".join(f"{one.label} ({one.speed} Mbit/s)" for one in chosen if one is not best) or "none"
    _log.debug(
        "network %s (%d Mbit/s), the fastest with the fewest failed dials: %d of %d; besides it: %s",
        *(best.label, best.speed, len(broken), len(dialled), others),
    )
    return NetworkSeen(
        label=best.label,
        where=best.where,
        failures=tuple(broken),
        pairs=matrix(best.where, dialled),
        unreached={(one.source, one.address): one.meaning for one in failures if one not in broken},
        deaf={outcome.name: outcome.reason for outcome in deaf},
    )


def with_runs(
    evidence: Evidence, reported: Iterable[Outcome[Reports]], left: Iterable[Outcome[list[Orphans]]]
) -> Evidence:
    """Add the hosts' runs and leftover processes to the evidence; a host that did not report them is unknown there."""
    reported, left = list(reported), list(left)
    both: list[Outcome[Any]] = [*reported, *left]
    errors = {outcome.name: outcome.reason for outcome in both if outcome.error}
    known = run_views([node for outcome in reported for node in outcome.value or ()])
    runs = runs_seen(known, [one for outcome in left for one in outcome.value or ()])
    hosts = tuple(
        replace(seen, answers={**seen.answers, RUNS.name: Answer(error=errors.get(seen.name, ""))})
        for seen in evidence.hosts
    )
    return replace(evidence, hosts=hosts, runs=runs)


def runs_seen(views: Iterable[RunView], orphans: Iterable[Orphans]) -> tuple[RunSeen, ...]:
    """The live runs, and those that left processes."""
    live = [
        RunSeen(
            run=view.run,
            name=view.name,
            operator=view.record.operator or "",
            hosts=tuple(node.host for node in view.nodes),
        )
        for view in views
        if view.live
    ]
    left: dict[str, dict[str, tuple[int, ...]]] = {}
    for one in orphans:
        left.setdefault(one.run, {})[one.host] = tuple(pid for pid, _ in one.processes)
    return (*live, *(RunSeen(run=run, hosts=tuple(by_host), left=by_host) for run, by_host in left.items()))
