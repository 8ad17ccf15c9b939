"""Query the nodes of a running job that share no folder with the login host, through steps of the job.

What they know is copied to the login host at the end (``collect``); from then on the login host reports it, as it does
where a folder is shared.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.errors import ClusterddpError, HelperError, HostError
from clusterddp.hosts.ask import ask_list, reading_answer
from clusterddp.hosts.fanout import each
from clusterddp.inventory import HostEntry
from clusterddp.launch.slurm.client.login_host import login_entry, step_command
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.slurm.job_record import SubmittedRun
from clusterddp.remote.shared.slurm.login_records import (
    ArrivedRequest,
    CollectedRequest,
    OrderedStop,
    RunsRequest,
    SecretsRequest,
)
from clusterddp.runs.node_answers import query_nodes
from clusterddp.runs.run_on_hosts import Wanted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterddp.hosts.client import Host
    from clusterddp.launch.slurm.client.answers import QueuedJob
    from clusterddp.launch.slurm.client.login_host import LoginHost
    from clusterddp.remote.shared.verdict.node_report import NodeReport
    from clusterddp.runs.run_on_hosts import RunOnHosts, Site

_log = logging.getLogger("clusterddp")
RETRY_INTERVAL = 15.0  # seconds after which a node that did not answer is asked again


class JobNodes:
    """The nodes of one job, connected to through the login host."""

    def __init__(self, cluster: Site, login: LoginHost, job: QueuedJob) -> None:
        self._cluster, self._login, self._job = cluster, login, job

    @property
    def job(self) -> str:
        """Slurm's number of the job."""
        return self._job.job

    def open(self, node: str) -> Host:
        """Return a helper on a node, run in a step of the job; raises HostError."""
        failed = self._login.host.memory.setdefault(("silent", self._job.job), {})
        if time.monotonic() < failed.get(node, 0.0):
            raise HelperError(node, "it did not answer a moment ago")
        base = login_entry(self._cluster.inventory)
        entry = HostEntry(name=node, address=node, state=self._login.state, ansible_python=base.ansible_python)
        connections = self._cluster.connections
        try:
            number = self._login.number_for_steps(self._job.job)
            host = connections.open(entry, connections.opened_by(base, step_command(number, node)), way=number)
        except ClusterddpError:
            failed[node] = time.monotonic() + RETRY_INTERVAL
            raise
        if host.hello.state != entry.state:  # another user may write it, until the job's script has made it private
            host.close()
            failed[node] = time.monotonic() + RETRY_INTERVAL
            raise HelperError(node, f"{entry.state} is not a folder of this user alone")
        return host

    def has(self, node: str) -> bool:
        """Whether the node belongs to the job."""
        return node in self._job.nodes

    def first(self) -> Host:
        """Return the node that runs the job's script."""
        return self.open(self._job.nodes[0])

    def reports(self, submitted: SubmittedRun, wanted: Wanted) -> tuple[SubmittedRun, list[NodeReport]]:
        """Return the run as its nodes report it now; for nodes that do not answer, the login host's report stands."""
        unfiltered = Wanted(project=wanted.project, brief=wanted.brief)
        entries = [replace(_BLANK_ENTRY, name=name) for name in self._job.nodes]
        outcomes = each(entries, lambda entry: self._node_reports(entry.name, submitted.run, unfiltered))
        nodes = [node for outcome in outcomes for node in outcome.value or () if node.run == submitted.run]
        outcome = next(iter(each(entries[:1], lambda _: self._script_report(submitted.run))), None)
        if outcome is None or outcome.value is None:
            return submitted, nodes
        script = outcome.value
        end = max((end for end in (submitted.end, script.end) if end), key=lambda end: end.attempt, default=None)
        return submitted._replace(
            starts=max(submitted.starts, script.starts),
            attempt=max(submitted.attempt, script.attempt),
            end=end,
            secrets=script.secrets,
            awaits_collection=script.awaits_collection,
            awaiting=script.awaiting,
        ), nodes

    def _node_reports(self, name: str, run: str, asked: Wanted) -> list[NodeReport]:
        return query_nodes(self.open(name), run, self._cluster.notify, asked)

    def _script_report(self, run: str) -> SubmittedRun:
        """Return what the job's script has recorded on its node; raises HelperError if it has recorded nothing yet."""
        host = self.first()
        recorded = ask_list(host, "slurm_runs", RunsRequest(run=run), SubmittedRun)
        with reading_answer(host.name):
            return recorded[0]

    def order_stop(self, run: str, reason: str, grace: float) -> bool:
        """Order the run to end; return whether the node of its script received the order."""
        try:
            self.first().call("slurm_stop", to_fields(OrderedStop(run=run, reason=reason, grace=grace)))
        except ClusterddpError:
            return False
        return True

    def give_secrets(self, run: str, secrets: Mapping[str, str]) -> None:
        """Bring the run's secrets to its script's node, which passes them on; raises HostError."""
        self.first().call("slurm_secrets", to_fields(SecretsRequest(run=run, secrets=dict(secrets))))

    def send_code(self, run: str, start: str) -> None:
        """Have the login host send the run's code to all nodes, which wait for it when the job starts."""
        try:
            self._login.broadcast(run, self._job.job, start)
            self.first().call("slurm_arrived", to_fields(ArrivedRequest(run=run, start=start)))
        except HostError as error:  # asked again until the nodes wait no longer
            notified = self._login.host.memory.setdefault(("not sent", run), set())
            if str(error) not in notified:
                notified.add(str(error))
                self._cluster.notify(f"run {run}: its code cannot be sent to its nodes: {error}")

    def collect(self, run: str) -> None:
        """Copy what the nodes have of a run's end to the login host, and let the job end."""
        try:
            number = self._login.number_for_steps(self._job.job)
            for name, why in self._login.collect(run, number, self._job.nodes).items():
                self._cluster.notify(f"{name}: its lines of run {run} stay there: {why}")
            self.first().call("slurm_collected", to_fields(CollectedRequest(run=run)))
        except HostError as error:  # another follower may have collected, and the job has ended
            _log.debug("run %s: %s", run, error)


def bring_secrets(cluster: Site, login: LoginHost, run: RunOnHosts) -> bool:
    """Send a run's secrets to nodes that share no folder; return False if it must be tried again."""
    nodes = nodes_of_run(cluster, login, run.id)
    if nodes is None:
        return False
    try:
        nodes.give_secrets(run.id, run.secrets)
    except HostError:  # the script has only begun
        return False
    return True


_BLANK_ENTRY = HostEntry(name="", address="")


def nodes_of_run(cluster: Site, login: LoginHost, run: str) -> JobNodes | None:
    """Return the nodes of a run's job if they share no folder with the login host and can be asked; else None."""
    entry = login.run(run)
    if entry is None or entry.job is None or not entry.unshared:
        return None
    return running_nodes(cluster, login, entry, login.jobs([entry.job]).get(entry.job))


def running_nodes(cluster: Site, login: LoginHost, submitted: SubmittedRun, job: QueuedJob | None) -> JobNodes | None:
    """Return the nodes of a running job that share no folder; else None."""
    unshared = submitted.unshared and job is not None and job.state == "RUNNING" and job.nodes
    return JobNodes(cluster, login, job) if unshared and job else None
