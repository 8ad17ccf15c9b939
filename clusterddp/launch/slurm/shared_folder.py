"""Checks that the login host and Slurm's nodes see each other's files: the launcher needs both directions.

Nodes may see what the login host writes but keep what they write to themselves (a home that is an overlay of an image).
Each side leaves a marker and looks for the other's.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.errors import HostError, PlanError
from clusterddp.launch.options import RunOptions
from clusterddp.launch.slurm.client.answers import QueuedJob
from clusterddp.launch.slurm.client.held_nodes import held_nodes
from clusterddp.launch.slurm.job_nodes import JobNodes
from clusterddp.launch.slurm.submission import settings_of, slurm_request
from clusterddp.probe.dial_hosts import find_shared_folders

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.launch.slurm.client.batch_script import JobRequest
    from clusterddp.launch.slurm.client.login_host import LoginHost
    from clusterddp.runs.run_on_hosts import RunOnHosts, Site

REMEDY = "set clusterddp_slurm_shared: false, or clusterddp_state to a folder that nodes and login host share"
NODE_UNSEEN = "the login host's files are seen there, and what is written there is not seen on the login host"
LOGIN_UNSEEN = "what is written there is seen on the login host, and the login host's files are not seen there"
NOT_SHARED = "it is not the login host's"
JOB_NAME, SCRIPT = "clusterddp-up", "sleep 60"
START_TIMEOUT = 10.0  # seconds; for the job of `up`


def unshared(login: Host, nodes: Sequence[Host], folders: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return which folders are not shared, and how: node → path → problem; ``folders``: purpose → path."""
    nodes = [node for node in nodes if node.name != login.name]  # a login host may be a node too
    outcomes = find_shared_folders([login, *nodes], {host.name: folders for host in (login, *nodes)})
    markers = {outcome.name: outcome.value for outcome in outcomes if outcome.value is not None}
    login_markers = markers.get(login.name, {})
    problems: dict[str, dict[str, str]] = {}
    for node in nodes:
        node_markers = markers.get(node.name, {})
        for purpose in [one for one in folders if one in login_markers and one in node_markers]:
            node_sees_login, login_sees_node = login.name in node_markers[purpose], node.name in login_markers[purpose]
            if not (node_sees_login and login_sees_node):
                problem = NODE_UNSEEN if node_sees_login else LOGIN_UNSEEN if login_sees_node else NOT_SHARED
                problems.setdefault(node.name, {})[folders[purpose]] = problem
    return problems


def unshared_by_run(cluster: Site, login: LoginHost, run: RunOnHosts) -> str:
    """Return why the login host cannot see what a running job writes; empty if it can, or if that is not known yet."""
    entry = login.run(run.id)
    if entry is None or entry.unshared or not entry.job or (entry.starts and not entry.inside):
        return ""
    job = login.jobs([entry.job]).get(entry.job)
    if job is None or job.state != "RUNNING" or not job.nodes:
        return ""
    try:
        node = JobNodes(cluster, login, job).first()
        problems = unshared(login.host, [node], {"run": f"{login.state}/slurm/{run.id}"})
    except HostError:  # its node does not answer, or not yet
        return ""
    return "".join(f"{name}: {path}: {problem}" for name, wrong in problems.items() for path, problem in wrong.items())


def refuse_unshared(site: Site, login: LoginHost) -> None:
    """For `up`: check the state folder on a node of a short job, unless the inventory says whether it is shared.

    If the queue is long, only a notice is given. Raises ``PlanError``, which says what to set, if it is not shared,
    ``UsageError`` if Slurm refuses such a job.
    """
    if "shared" in settings_of(site.inventory).slurm:
        return
    request = slurm_request(site.inventory, RunOptions(script=JOB_NAME, nnodes=(1, 1)))
    options = {**request.options, "time": "1"}
    options_of_job = holding_job_options(
        replace(request, nodes=(1, 1), nodelist=request.nodelist.partition(",")[0], options=options)
    )
    connections, progress = site.connections, site.progress
    how = {"name": JOB_NAME, "script": SCRIPT, "timeout": START_TIMEOUT}
    with held_nodes(login, [options_of_job], connections, progress, **how) as (node_held,):  # type: ignore[arg-type]
        if not node_held.job:
            why = re.sub("; .*", "", node_held.refused[0])
            site.notify(f"not known whether Slurm's nodes and {login.host.name} share {login.state}: {why}")
            return
        node = JobNodes(site, login, QueuedJob(job=node_held.job, state="RUNNING", nodes=node_held.nodes)).first()
        problems = unshared(login.host, [node], {"state": login.state})
    for name, wrong in problems.items():
        for path, problem in wrong.items():
            raise PlanError(f"{name}: {path}: {problem}", remedy=REMEDY)


def holding_job_options(request: JobRequest) -> list[str]:
    """Return the options of sbatch for a job that only holds nodes."""
    least, most = request.nodes
    words = [f"--{name}={value}" if value else f"--{name}" for name, value in request.options.items()]
    words += [f"--nodelist={request.nodelist}"] if request.nodelist else []
    words += [word for line in request.lines for word in shlex.split(line)]  # as sbatch reads lines of a script
    return [*words, f"--nodes={least}-{most}", "--ntasks-per-node=1"]
