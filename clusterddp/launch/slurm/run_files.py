"""Finds the files of runs under Slurm for ``pull``: on the login host if nodes share its folders, else on each node."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.checks.catalog.slurm import is_unavailable
from clusterddp.errors import HelperError, RunError, UsageError
from clusterddp.hosts.fanout import each
from clusterddp.inventory import HostEntry
from clusterddp.inventory.patterns import select
from clusterddp.launch.slurm.client.answers import QueuedJob
from clusterddp.launch.slurm.client.held_nodes import NodeJob, held_nodes, job_minutes
from clusterddp.launch.slurm.client.login_host import LoginHost, login_entry
from clusterddp.launch.slurm.client.survey import survey
from clusterddp.launch.slurm.job_nodes import JobNodes
from clusterddp.launch.slurm.submission import nodes_share_folders, settings_of
from clusterddp.sync.transfer.collect import Origin
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from clusterddp.errors import ClusterddpError
    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.launch.launcher import FileQuery
    from clusterddp.runs.run_on_hosts import Site
    from clusterddp.runs.view.run_view import RunView

JOB_MINUTES = 60  # time limit of a job that holds a node, or less if the partition allows less
JOB_NAME = "clusterddp-pull"
# The job ends when no helper has run on its node for a quarter of an hour: then nobody is left to cancel it.
HOLD_SCRIPT = """\
n=0
while [ $n -lt 90 ]; do
    sleep 10
    n=$((n+1))
    steps=$(squeue --steps --noheader --format=%i --jobs "$SLURM_JOB_ID") || continue
    ! echo "$steps" | grep -q '[.][0-9]' || n=0
done"""
_JOB_OPTIONS = ("partition", "account", "qos")


@contextlib.contextmanager
def origins(site: Site, query: FileQuery) -> Iterator[tuple[list[Origin], list[ClusterddpError]]]:
    """Yield where the files are, readable while the block runs, and the errors of nodes that cannot be reached."""
    if query.view is None and (query.pattern or not nodes_share_folders(site.inventory)):
        query = replace(query, view=query.last_run())  # its nodes are asked
    login = LoginHost(site.connections.open(login_entry(site.inventory)))
    workdirs = query.workdirs
    default = login.host.entry.workdir or site.project.workdir

    def origin(host: Host, workdir: str) -> Origin:
        return Origin(host=host, workdir=workdir, path=query.path or "", run=query.run.run if query.run else "")

    if nodes_share_folders(site.inventory):
        if query.view:
            _selected_nodes(site, query, [*workdirs], {})
        yield [origin(login.host, next(iter(workdirs.values()), default))], []
        return
    job = _job_of(login, query.view)
    last = list(query.view.record.hosts) if query.view else []
    names = _selected_nodes(site, query, last or list(job.nodes if job else ()), workdirs)
    earlier = [name for name in workdirs if name not in last]
    if earlier and query.pattern is None:
        site.notify(f"{folded_names(earlier)} had an earlier attempt: --host brings what is there")
    with _open_nodes(site, login, job, names) as outcomes:
        found = [origin(outcome.value, workdirs.get(outcome.name, default)) for outcome in outcomes if outcome.value]
        yield found, [outcome.error for outcome in outcomes if outcome.error]


def _selected_nodes(site: Site, query: FileQuery, names: Sequence[str], earlier: Iterable[str]) -> list[str]:
    """Return the selected nodes: those of the last attempt (``names``), unless a pattern selects ``earlier`` ones."""
    all_names = list(dict.fromkeys([*names, *earlier]))
    if not all_names:
        what = f"of run {query.view.run}" if query.view else "of any run"
        raise RunError(f"nobody knows the nodes {what} any more", remedy="look for its files there by `srun`")
    if query.pattern is not None:
        matching = select(query.pattern, all_names, site.inventory.groups).hosts
        names = [name for name in all_names if name in matching]
    if query.names is not None:
        names = [name for name in names if name in query.names]
    if not names:
        raise UsageError(f"--host {query.pattern}: none of {folded_names(all_names)}")
    return list(names)


def _job_of(login: LoginHost, view: RunView | None) -> QueuedJob | None:
    """Return the job of a run if Slurm still knows it."""
    entry = login.run(view.run) if view else None
    return login.jobs([entry.job]).get(entry.job) if entry and entry.job else None


@contextlib.contextmanager
def _open_nodes(
    site: Site, login: LoginHost, job: QueuedJob | None, names: Sequence[str]
) -> Iterator[list[Outcome[Host]]]:
    """Yield a helper on each node, in the run's job or a short one, or the error why there is none."""
    live = job.nodes if job and job.state == "RUNNING" else ()
    jobs = {name: NodeJob(job=job.job if job else "") for name in names if name in live}
    absent = [name for name in names if name not in live]
    options = settings_of(site.inventory).slurm
    job_options = {name: str(options[name]) for name in _JOB_OPTIONS if name in options}
    arguments: list[str] = []
    if absent:
        site.notify(f"no job of the run holds {folded_names(absent)}: a short one on each node brings its files")
        report = survey(login, job_options)
        states = {node.get("NodeName", ""): node.get("State", "") for node in report.nodes}
        unavailable = {name: states[name] for name in absent if is_unavailable(states.get(name, ""))}
        jobs |= {name: NodeJob(refused=(f"Slurm says that it is {state}", "")) for name, state in unavailable.items()}
        absent = [name for name in absent if name not in unavailable]
        arguments = [f"--{name}={value}" for name, value in job_options.items()]
        arguments += ["--nodes=1", "--ntasks=1", "--no-requeue", f"--time={job_minutes(report, JOB_MINUTES)}"]
    submitted = [[f"--nodelist={name}", *arguments] for name in absent]
    held = held_nodes(
        login, submitted, site.connections, site.progress, name=JOB_NAME, script=HOLD_SCRIPT, timeout=math.inf
    )
    with held as given:
        jobs |= dict(zip(absent, given, strict=True))

        def reach(entry: HostEntry) -> Host:
            node_job = jobs[entry.name]
            if not node_job.job:
                raise HelperError(entry.name, node_job.refused[0], remedy=node_job.refused[1])
            running_job = QueuedJob(job=node_job.job, state="RUNNING", nodes=(entry.name,))
            return JobNodes(site, login, running_job).open(entry.name)

        yield each([HostEntry(name=name, address=name) for name in names], reach)
