"""The whole of `doctor`: asks the hosts, rehearses and measures if checks need that, and runs the checks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clusterddp.checks import engine
from clusterddp.checks.evidence import Evidence, HostEvidence
from clusterddp.checks.model import Diagnosis
from clusterddp.checks.needs import PAIRS, REHEARSAL, RUNS, SHARED, WORKERS
from clusterddp.doctor import bench_pairs, rehearsal
from clusterddp.errors import ClusterddpError
from clusterddp.hosts.fanout import HostGroup
from clusterddp.launch import answering
from clusterddp.launch.prepare import use_environments
from clusterddp.probe.gather import collect_or_break, gather_evidence, with_runs
from clusterddp.project.crash import write_crash
from clusterddp.remote.shared.text.counted import counted
from clusterddp.runs import cleanup
from clusterddp.runs.run_on_hosts import BRIEF

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from clusterddp.checks.model import Check, Need
    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.inventory import HostEntry
    from clusterddp.runs.run_on_hosts import Site


# Not judged under a workload manager: the nodes of a job share state and workdir on a network file system, and logind,
# which ends what a login has left, does not know a job's steps.
_NOT_MANAGED = frozenset({"local-state", "lingering"})


def _select(launcher: str, only: Iterable[str], skip: Iterable[str], *, bench: bool, managed: bool) -> list[Check]:
    """The selected checks of hosts; under a manager only those that its nodes need to pass."""
    selected = engine.select(only, skip, bench=bench, launchers=[launcher])
    chosen = [check for check in selected if not engine.judges_manager(check)]
    if not managed:
        return chosen
    return [check for check in chosen if SHARED not in check.needs and check.name not in _NOT_MANAGED]


def _unasked(entry: HostEntry, outcome: Outcome[Host]) -> HostEvidence:
    """What is known of a host from its connection alone."""
    return HostEvidence(entry=entry, error=outcome.error, noise=outcome.value.noise if outcome.value else "")


def _bug_reporter(cluster: Site) -> Callable[[Exception, str], None]:
    def report_bug(error: Exception, during: str) -> None:
        """Record a bug in one part of clusterddp and notify the user; the rest goes on without that part."""
        path = write_crash(error, during=during, project=cluster.project)
        where = f"; please report it with {path}" if path else f": {error!r}"
        cluster.notify(f"internal error in {during}{where}")

    return report_bug


def _judge(evidence: Evidence, checks: Sequence[Check], report_bug: Callable[[Exception, str], None]) -> Diagnosis:
    """The results of the checks; what a check raises is reported."""
    results = tuple(engine.judge(evidence, checks))
    for result in results:
        if result.bug:
            report_bug(result.bug, f"the check {result.name}")
    return Diagnosis(evidence=evidence, results=results)


def diagnose(
    cluster: Site,
    launcher: str,
    manager: Evidence | None,
    only: Iterable[str],
    skip: Iterable[str],
    *,
    bench: bool,
    share_gpus: bool,
    all_pairs: bool,
) -> Diagnosis:
    """Judge a cluster's hosts, which ``launcher`` lends; see ``Cluster.doctor``."""
    only = set(engine.canonical_names(only))
    chosen = _select(launcher, only, skip, bench=bench, managed=manager is not None)
    needs = {need for check in chosen for need in check.needs}
    entries = answering.run_hosts(cluster.inventory)
    outcomes = cluster.connect(entries)
    hosts = [outcome.value for outcome in outcomes if outcome.value]
    try:
        use_environments(hosts, cluster)
    except ClusterddpError as error:  # a lock file that cannot be resolved
        cluster.notify(str(error))

    report_bug = _bug_reporter(cluster)
    # A user who selects `torch` wants it imported now; with all checks the rehearsal's workers import it.
    fresh = any(check.name == "torch" and only & {check.name, check.category} for check in chosen)
    workdir = cluster.project.workdir if cluster.project.known_id else ""
    asked: dict[str, Any] = {"workdir": workdir, "fresh": fresh, "all_pairs": all_pairs, "report_bug": report_bug}
    evidence = gather_evidence(list(map(_unasked, entries, outcomes)), hosts, needs, **asked)

    def run_step(step: Callable[[Evidence], Evidence], *step_needs: Need[Any]) -> Evidence:
        """The evidence after a step; unchanged if the step met a bug, which marks its needs as broken."""
        broken = set(evidence.broken)
        result = collect_or_break(step_needs, lambda: step(evidence), evidence, broken, report_bug)
        return replace(result, broken=tuple(sorted(broken)))

    def add_runs(collected: Evidence) -> Evidence:
        """Ask the hosts for their runs and for processes left over from runs; add both."""
        reached = [outcome.value.entry for outcome in outcomes if outcome.value]
        left = cleanup.orphans(HostGroup(reached, lambda entry: cluster.host(entry.name)))
        return with_runs(collected, cluster.describe("", reached, BRIEF), left)

    def add_rehearsal(collected: Evidence) -> Evidence:
        """Run a short all-reduce on the hosts that passed the earlier checks; add what came of it."""
        parts = rehearsal.parts(collected, outcomes, chosen)
        cluster.progress(f"rehearsing on {counted(len(parts), 'host')}")
        return replace(collected, rehearsal=rehearsal.rehearse(cluster, parts) if parts else None)

    def add_bench(collected: Evidence) -> Evidence:
        """Measure the bandwidth between pairs of hosts, as ``--bench`` asks for; add it."""
        return replace(collected, bench=bench_pairs.measure(cluster, outcomes, collected, chosen, cluster.progress))

    evidence = run_step(add_runs, RUNS) if RUNS in needs else evidence
    evidence = replace(evidence, share_gpus=share_gpus, manager=manager.manager if manager else None)
    evidence = run_step(add_rehearsal, REHEARSAL) if REHEARSAL in needs else evidence
    evidence = run_step(add_bench, PAIRS, WORKERS) if bench else evidence
    return _judge(evidence, chosen, report_bug)
