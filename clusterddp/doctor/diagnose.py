"""The whole of `doctor`: asks the hosts, rehearses and measures if checks need that, and runs the checks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clusterddp.checks import engine
from clusterddp.checks.model import Diagnosis
from clusterddp.checks.needs import PAIRS, REHEARSAL, RUNS, SHARED, WORKERS
from clusterddp.doctor import bench_pairs, rehearsal
from clusterddp.environments import install
from clusterddp.errors import ClusterddpError
from clusterddp.launch import answering
from clusterddp.probe.gather import gather_evidence, spared, with_runs
from clusterddp.project.crash import write_crash
from clusterddp.remote.shared.text.counted import counted
from clusterddp.runs import cleanup
from clusterddp.runs.node_answers import BRIEF

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from clusterddp.checks.evidence import Evidence
    from clusterddp.checks.model import Check, Need
    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.runs.run_on_hosts import Site


def _with_environments(cluster: Site, outcomes: list[Outcome[Host]]) -> list[Outcome[Host]]:
    """Use the interpreters of the hosts' environments; if a lock file cannot be resolved, notify and go on."""
    try:
        install.adopt([outcome.value for outcome in outcomes if outcome.value], cluster.project, cluster.progress)
    except ClusterddpError as error:
        cluster.notify(str(error))
    return outcomes


def _chosen(launcher: str, only: Iterable[str], skip: Iterable[str], *, bench: bool, managed: bool) -> list[Check]:
    """The selected checks of hosts; under a manager not those of folders, which the hosts of a job share anyway."""
    chosen = engine.select(only, skip, bench=bench, launchers=[launcher])
    return [check for check in chosen if not (engine.asks_manager(check) or (managed and SHARED in check.needs))]


def _telling_crashes(cluster: Site) -> Callable[[Exception, str], None]:
    def crashed(error: Exception, during: str) -> None:
        """Record a bug in one part of clusterddp and notify the user; the rest goes on without that part."""
        path = write_crash(error, during=during, project=cluster.project)
        where = f"; please report it with {path}" if path else f": {error!r}"
        cluster.notify(f"internal error in {during}{where}")

    return crashed


def diagnose(
    cluster: Site,
    launcher: str,
    manager: Evidence | None,
    only: Iterable[str],
    skip: Iterable[str],
    *,
    bench: bool,
    share_gpus: bool,
) -> Diagnosis:
    """Judge a cluster's hosts, which ``launcher`` lends; see ``Cluster.doctor``."""
    only = set(engine.named(only))
    chosen = _chosen(launcher, only, skip, bench=bench, managed=manager is not None)
    needs = {need for check in chosen for need in check.needs}
    answering.nodes(cluster.inventory)
    entries = cluster.inventory.nodes + cluster.inventory.spares
    outcomes = _with_environments(cluster, cluster.connect(entries))

    crashed = _telling_crashes(cluster)
    # A user who selects `torch` wants it imported now; with all checks the rehearsal's workers import it.
    fresh = any(check.name == "torch" and only & {check.name, check.category} for check in chosen)
    workdir = cluster.project.workdir if cluster.project.known_id else ""
    evidence = gather_evidence(entries, outcomes, needs, workdir=workdir, fresh=fresh, crashed=crashed)

    def spare(step: Callable[[Evidence], Evidence], *wanted: Need[Any]) -> Evidence:
        """The evidence after a step; unchanged if the step met a bug, which marks its needs as broken."""
        broken = set(evidence.broken)
        return replace(spared(wanted, lambda: step(evidence), evidence, broken, crashed), broken=tuple(sorted(broken)))

    def runs(known: Evidence) -> Evidence:
        reached = [outcome.value.entry for outcome in outcomes if outcome.value]
        left = cleanup.orphans(reached, lambda entry: cluster.host(entry.name))
        return with_runs(known, cluster.describe("", reached, BRIEF), left)

    def rehearsed(known: Evidence) -> Evidence:
        parts = rehearsal.parts(known, outcomes, chosen)
        cluster.progress(f"rehearsing on {counted(len(parts), 'host')}")
        return replace(known, rehearsal=rehearsal.rehearse(cluster, parts) if parts else None)

    def measured(known: Evidence) -> Evidence:
        return replace(known, bench=bench_pairs.measure(cluster, outcomes, known, chosen, cluster.progress))

    evidence = spare(runs, RUNS) if RUNS in needs else evidence
    evidence = replace(evidence, share_gpus=share_gpus, manager=manager.manager if manager else None)
    evidence = spare(rehearsed, REHEARSAL) if REHEARSAL in needs else evidence
    evidence = spare(measured, PAIRS, WORKERS) if bench else evidence
    return Diagnosis(evidence=evidence, results=tuple(engine.judge(evidence, chosen, crashed)))
