"""Checks that the login host and Slurm's nodes see each other's files: the launcher needs both directions.

Nodes may see what the login host writes but keep what they write to themselves (a home that is an overlay of an image).
Each side leaves a marker and looks for the other's.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.errors import HostError, PlanError
from clusterddp.launch.options import RunOptions
from clusterddp.launch.slurm.client.answers import QueuedJob
from clusterddp.launch.slurm.client.batch_script import OWNED
from clusterddp.launch.slurm.client.held_nodes import held_nodes
from clusterddp.launch.slurm.job_nodes import JobNodes
from clusterddp.launch.slurm.submission import settings_of, slurm_request
from clusterddp.probe.dial_hosts import shared_folders

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.launch.slurm.client.batch_script import JobRequest
    from clusterddp.launch.slurm.client.login_host import LoginHost
    from clusterddp.runs.run_on_hosts import RunOnHosts, Site

REMEDY = "set clusterddp_slurm_shared: false, or clusterddp_state to a folder that nodes and login host share"
ONE_WAY = "the login host's files are seen there, and what is written there is not seen on the login host"
OTHER_WAY = "what is written there is seen on the login host, and the login host's files are not seen there"
NEITHER = "it is not the login host's"
JOB, SCRIPT = "clusterddp-up", "sleep 60"
PATIENCE = 10.0  # seconds for the short job of `up` to begin


def unshared(login: Host, nodes: Sequence[Host], folders: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """What is wrong with a run's folders (paths by the name of their purpose), by node and path."""
    nodes = [node for node in nodes if node.name != login.name]  # a login host may be a node too
    outcomes = shared_folders([login, *nodes], {host.name: folders for host in (login, *nodes)})
    markers = {outcome.name: outcome.value for outcome in outcomes if outcome.value is not None}
    here = markers.get(login.name, {})
    found: dict[str, dict[str, str]] = {}
    for node in nodes:
        there = markers.get(node.name, {})
        for name in [one for one in folders if one in here and one in there]:  # both could leave their marker
            reads, returns = login.name in there[name], node.name in here[name]
            if not (reads and returns):
                problem = ONE_WAY if reads else OTHER_WAY if returns else NEITHER
                found.setdefault(node.name, {})[folders[name]] = problem
    return found


def unshared_by_run(cluster: Site, login: LoginHost, run: RunOnHosts) -> str:
    """Return why the login host cannot see what a running job writes; empty if it can, or if that is not known yet."""
    one = next((one for one in login.runs(run.id) if one.run == run.id), None)
    if one is None or one.unshared or not one.job or (one.starts and not one.inside):
        return ""
    job = login.jobs([one.job]).get(one.job)
    if job is None or job.state != "RUNNING" or not job.nodes:
        return ""
    try:
        node = JobNodes(cluster, login, job).first()
        found = unshared(login.host, [node], {"run": f"{login.state}/slurm/{run.id}"})
    except HostError:  # its node does not answer, or not yet
        return ""
    return "".join(f"{name}: {path}: {problem}" for name, wrong in found.items() for path, problem in wrong.items())


def refuse_unshared(site: Site, login: LoginHost) -> None:
    """For `up`: check the state folder on a node of a short job, unless the inventory says whether it is shared.

    If the queue is long, only a notice is given. Raises ``PlanError``, which says what to set, if it is not shared,
    ``UsageError`` if Slurm refuses such a job.
    """
    if "shared" in settings_of(site.inventory).slurm:
        return
    request = slurm_request(site.inventory, RunOptions(script=JOB, nnodes=(1, 1)))
    options = {**request.options, "time": "1"}
    options_of_job = job_words(
        replace(request, nodes=(1, 1), nodelist=request.nodelist.partition(",")[0], options=options)
    )
    connections, progress = site.connections, site.progress
    how = {"name": JOB, "script": SCRIPT, "patience": PATIENCE}
    with held_nodes(login, [options_of_job], connections, progress, **how) as (node_held,):  # type: ignore[arg-type]
        if not node_held.job:
            why = re.sub("; .*", "", node_held.refused[0])
            site.notify(f"not known whether Slurm's nodes and {login.host.name} share {login.state}: {why}")
            return
        node = JobNodes(site, login, QueuedJob(job=node_held.job, state="RUNNING", nodes=node_held.nodes)).first()
        found = unshared(login.host, [node], {"state": login.state})
    for name, wrong in found.items():
        for path, problem in wrong.items():
            raise PlanError(f"{name}: {path}: {problem}", remedy=REMEDY)


def job_words(request: JobRequest) -> list[str]:
    """The options of sbatch for a job that only holds nodes."""
    least, most = request.nodes
    words = [f"--{name}={value}" if value else f"--{name}" for name, value in request.options.items()]
    words += [f"--nodelist={request.nodelist}"] if request.nodelist else []
    words += [line for line in request.lines if line.partition("=")[0].removeprefix("--") not in OWNED]
    return [*words, f"--nodes={least}-{most}", "--ntasks-per-node=1"]
