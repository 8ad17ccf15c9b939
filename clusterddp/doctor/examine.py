"""`doctor`: judge the hosts that a launcher lends and, if a workload manager chooses them, what the manager reports."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.checks import engine
from clusterddp.checks.evidence import Evidence
from clusterddp.checks.model import Diagnosis
from clusterddp.doctor.diagnose import diagnose
from clusterddp.launch import launcher as launchers
from clusterddp.launch.launcher import HostQuery

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.runs.run_on_hosts import Site


def examine(
    site: Site,
    *,
    launcher: str | None = None,
    nnodes: int | None = None,
    partition: str | None = None,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    bench: bool = False,
    share_gpus: bool = False,
    all_pairs: bool = False,
) -> Diagnosis:
    """Judge the hosts of runs; see ``Cluster.doctor``. ``launcher`` None leaves the choice to the inventory."""
    lender = launchers.launcher(launcher) if launcher else launchers.of_hosts(site.inventory)
    chosen = engine.select(only, skip, bench=bench, launchers=[lender.name])
    of_hosts = any(check.needs and not engine.judges_manager(check) for check in chosen)
    with lender.borrow_hosts(site, HostQuery(nnodes=nnodes, partition=partition, wanted=of_hosts)) as lent:
        more = {"bench": bench, "share_gpus": share_gpus, "all_pairs": all_pairs}
        hosts = diagnose(lent.site, lender.name, lent.manager, only, skip, **more) if lent.site else None
    if lent.manager is None:
        return hosts or Diagnosis(evidence=Evidence(hosts=()), results=())
    results = tuple(engine.judge(lent.manager, [check for check in chosen if engine.judges_manager(check)]))
    if hosts is None:
        return Diagnosis(evidence=lent.manager, results=results)
    return replace(hosts, results=(*results, *hosts.results))
