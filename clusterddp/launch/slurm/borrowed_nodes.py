"""What Slurm lends to `doctor`: its own report, and the nodes of a short job as hosts.

The job only holds the nodes; each node is reached by one more step of it, and the job is cancelled in the end. If
nobody is left to do that, its time limit ends it.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from clusterddp.checks.evidence import Evidence, HostEvidence
from clusterddp.errors import UsageError
from clusterddp.hosts.fanout import Outcome, each
from clusterddp.inventory.launchers import DEFAULT_LAUNCHER
from clusterddp.launch.launcher import LentHosts, of_record
from clusterddp.launch.options import RunOptions
from clusterddp.launch.slurm.client.held_nodes import held_nodes, job_minutes
from clusterddp.launch.slurm.client.login_host import LoginHost, login_entry, step_command
from clusterddp.launch.slurm.client.survey import survey
from clusterddp.launch.slurm.shared_folder import holding_job_options, unshared
from clusterddp.launch.slurm.submission import nodes_share_folders, settings_of, slurm_request
from clusterddp.remote.shared.workdir.workdir_names import WORKDIRS
from clusterddp.runs.node_answers import query_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from clusterddp.checks.evidence import SlurmEvidence
    from clusterddp.hosts.client import Host
    from clusterddp.hosts.connections import Connections
    from clusterddp.inventory import HostEntry, Inventory
    from clusterddp.launch.launcher import HostQuery, Launcher
    from clusterddp.launch.slurm.client.batch_script import JobRequest
    from clusterddp.project.project import Project
    from clusterddp.remote.shared.run.run_record import RunRecord
    from clusterddp.runs.run_on_hosts import RunOnHosts, Site, Wanted, Webhook
    from clusterddp.runs.view.run_view import Reports

JOB_MINUTES = 15  # minutes of the job, or fewer if the partition allows fewer; a benchmark is done by then
START_TIMEOUT = 120.0  # seconds
JOB_NAME = "clusterddp-doctor"


class BorrowedNodes:
    """The nodes of a Slurm job as hosts, reached through the login host: the part of a Cluster that the doctor uses."""

    def __init__(self, cluster: Site, login: HostEntry, job: str, entries: tuple[HostEntry, ...]) -> None:
        self.inventory = replace(cluster.inventory, hosts=entries)
        self.project: Project = cluster.project
        self.notify: Callable[[str], None] = cluster.notify
        self.progress: Callable[[str], None] = cluster.progress
        self.connections: Connections = cluster.connections
        self.webhook: Webhook | None = None
        self.launched: RunOnHosts | None = None
        self.detached = False
        self._login, self._job = login, job

    def connect(self, entries: Iterable[HostEntry] | None = None) -> list[Outcome[Host]]:
        """Open the nodes."""
        return each(list(self.inventory.nodes if entries is None else entries), lambda entry: self.host(entry.name))

    def host(self, name: str) -> Host:
        """Return the open connection to the node of that name."""
        entry = next(node for node in self.inventory.nodes if node.name == name)
        return self.connections.open(entry, self.connections.opened_by(self._login, step_command(self._job, name)))

    def launcher_of(self, record: RunRecord) -> Launcher:
        """Return the launcher of the doctor's own small jobs there."""
        return of_record(record)

    def describe(
        self,
        run: str,
        entries: Iterable[HostEntry],
        wanted: Wanted,
        patience: float | None = None,  # noqa: ARG002 - steps of a job take seconds to begin
    ) -> list[Outcome[Reports]]:
        """Return each node's report on one run, or on all."""
        return each(list(entries), lambda entry: query_nodes(self.host(entry.name), run, self.notify, wanted))


@contextlib.contextmanager
def borrow_nodes(site: Site, query: HostQuery) -> Iterator[LentHosts]:
    """Ask Slurm for its report; yield it and, if hosts are needed and Slurm answers, the nodes of a short job."""
    request = _request_nodes(site.inventory, query)
    entry = login_entry(site.inventory)
    login_outcome = each([entry], site.connections.open)[0]
    if login_outcome.value is None:
        raise login_outcome.error or UsageError("no login host")
    login = LoginHost(login_outcome.value)
    job_options = {name: request.options.get(name, "") for name in ("partition", "account", "qos", "gpus-per-node")}
    site.progress("asking Slurm")
    survey_result = survey(login, {**job_options, "nodes": str(request.nodes[0])})
    if survey_result.error or not query.wanted:
        yield LentHosts(site=None, manager=_slurm_evidence(entry, survey_result))
        return
    request = replace(request, options={**request.options, "time": str(job_minutes(survey_result, JOB_MINUTES))})
    hold = partial(held_nodes, name=JOB_NAME, script=f"sleep {JOB_MINUTES * 60}", timeout=START_TIMEOUT)
    with hold(login, [holding_job_options(request)], site.connections, site.progress) as (lease,):
        nodes = _borrowed(site, entry, login, lease.job, lease.nodes) if lease.job else None
        survey_result = replace(survey_result, refused=None if lease.job else lease.refused)
        if nodes and nodes_share_folders(site.inventory):
            survey_result = replace(survey_result, unshared=_unshared_folders(login, nodes))
        yield LentHosts(site=nodes, manager=_slurm_evidence(entry, survey_result))


def _slurm_evidence(login: HostEntry, seen: SlurmEvidence) -> Evidence:
    return Evidence(hosts=(HostEvidence(entry=login),), manager=seen)


def _request_nodes(inventory: Inventory, query: HostQuery) -> JobRequest:
    """Return the request for as many nodes as are to be examined."""
    size = query.nnodes or max(1, sum(1 for node in inventory.nodes if inventory.path and node.connection != "local"))
    request = slurm_request(inventory, RunOptions(script=JOB_NAME, nnodes=(size, size)))
    return replace(request, options={**request.options, "partition": query.partition}) if query.partition else request


def _borrowed(cluster: Site, entry: HostEntry, login: LoginHost, job: str, names: Sequence[str]) -> BorrowedNodes:
    """Return the job's nodes as hosts, with the inventory's variables for nodes."""
    settings = settings_of(cluster.inventory)
    shared = replace(settings, state=login.state, role="node", launcher=DEFAULT_LAUNCHER, connection="ssh", gpus=None)
    hosts = tuple(replace(shared, name=name, address=name) for name in names)
    return BorrowedNodes(cluster, entry, job, hosts)


def _unshared_folders(login: LoginHost, site: BorrowedNodes) -> dict[str, dict[str, str]]:
    """For each node that answers, the folders of a run that it does not share with the login host, and how."""
    nodes = [outcome.value for outcome in site.connect() if outcome.value]
    usual = site.project.workdir if site.project.known_id else WORKDIRS
    folders = {"state": login.state, "workdir": login.host.entry.workdir or usual}
    return unshared(login.host, nodes, folders)
