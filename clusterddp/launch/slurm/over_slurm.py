"""The launcher over Slurm: a run is a job, submitted on the login host or here; its nodes are Slurm's to choose.

What is known of a run comes from its spool, in a folder that the login host and all nodes share; Slurm is asked where
that says nothing: why a job waits, how one ended whose nodes told nobody.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from clusterddp.errors import HelperError, PlanError, RunError, UnreachableError
from clusterddp.hosts.fanout import Outcome, each
from clusterddp.launch.run_secrets import secret_values
from clusterddp.launch.slurm.allocation import allocated
from clusterddp.launch.slurm.client.answers import QueuedJob, last_error, read_partitions
from clusterddp.launch.slurm.client.batch_script import compact
from clusterddp.launch.slurm.client.login_host import LoginHost, login_entry
from clusterddp.launch.slurm.client.never_starts import why_never
from clusterddp.launch.slurm.client.states import NAME, meaning
from clusterddp.launch.slurm.job_nodes import JobNodes, bring_secrets, nodes_of_run, running
from clusterddp.launch.slurm.job_report import is_settled, job_report
from clusterddp.remote.shared.run.event_schema import WORKER_STARTED, of_kind
from clusterddp.remote.shared.run.run_state import ENDED_STATES, RunState
from clusterddp.remote.shared.slurm.job_record import in_array
from clusterddp.runs import local_cache
from clusterddp.runs.choose import array_names
from clusterddp.runs.node_answers import ALL, Wanted, query_nodes
from clusterddp.runs.proof import Proof, Survivor
from clusterddp.runs.run import Run
from clusterddp.runs.run_on_hosts import gather
from clusterddp.runs.run_view import Reports, RunView, run_views

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from clusterddp.errors import ClusterddpError
    from clusterddp.hosts.client import Host
    from clusterddp.inventory import HostEntry
    from clusterddp.launch.launcher import FileQuery, HostQuery, LentHosts
    from clusterddp.launch.options import RunOptions
    from clusterddp.launch.slurm.submission import Submission
    from clusterddp.remote.shared.run.run_record import RunRecord
    from clusterddp.remote.shared.slurm.job_record import SubmittedRun
    from clusterddp.remote.shared.verdict.node_report import NodeReport
    from clusterddp.runs.managed_job import JobReport
    from clusterddp.runs.run_on_hosts import R, RunOnHosts, Site
    from clusterddp.sync.transfer.collect import Origin

LOOK = 0.5  # seconds between looks at the queue
EVALUATED = 6.0  # seconds for Slurm to say why a new job waits; then it may wait for anything
UNHEARD = 3.0  # seconds after which a job that runs, and of whose nodes nothing is seen, is looked at more closely
AGAIN = 15.0  # seconds between two such looks
STOP_SLACK = 60.0  # seconds beyond the grace that the nodes have for their proof
BY_CODE = ("FAILED", "COMPLETED")  # states in which a job's exit code is its script's


class Slurm:
    """The launcher. Stateless."""

    name = NAME
    clean_operation = "slurm_clean"

    def render(self, site: Site, options: RunOptions) -> str:
        """See ``Launcher``: the whole script."""
        return _ready(site, options, dry=True)[0].script

    def submit(self, site: Site, options: RunOptions) -> Run:
        """See ``Launcher``: it is in the queue then."""
        from clusterddp.launch.slurm.embedded_code import refuse_detached  # noqa: PLC0415 - other commands submit nothing

        ready, inside = _ready(site, options, dry=False)
        secrets, login = secret_values(set(ready.job.plan.secrets) - ready.hidden.keys()), _login(site)
        given = {**secrets, **ready.hidden}
        later = given if ready.job.sent_code else {}
        if site.detached:
            refuse_detached(ready.job, later)
        site.progress("submitting")
        record = ready.job.plan.record
        records = [_in_array(record, index, run) for index, run in ready.runs.items()] or [record]
        run = Run(site, records[0].run, 1, {}, records[0], submitted=tuple(one.run for one in records))
        run.secrets = later
        arguments = (record.run, ready.script, compact(ready.job), {} if later else given)
        number = login.submit(*arguments, inside=inside or None, runs=ready.runs, code=ready.code)
        site.launched = run
        for one in records:
            local_cache.record_start(site.project, one, site.notify)
        self._refuse_hopeless(login, ready, number)
        return run

    def _refuse_hopeless(self, login: LoginHost, ready: Submission, number: str) -> None:
        """Refuse what Slurm takes and would never start, and take the job out of the queue."""
        deadline = time.monotonic() + EVALUATED
        while time.monotonic() < deadline:
            first = next(iter(ready.runs), None)
            shown = number if first is None else f"{number}_{first}"
            job = login.jobs([shown]).get(shown)
            if job is None or meaning(job.state).state != RunState.QUEUED:
                return
            if why := why_never(login, job):
                for run in ready.runs.values() or [ready.job.plan.run]:
                    login.order_stop(run, why, 0.0)
                login.command("scancel", number)
                raise PlanError(
                    f"Slurm would never start job {number}: {why}",
                    remedy="ask for what the partition and your account allow (`sinfo`, `sacctmgr show associations`)",
                )
            if job.reason:
                return
            time.sleep(LOOK / 2)

    def ready(self, site: Site) -> str:
        """See ``Launcher``."""
        login = _login(site)
        status, out, err = login.command("sinfo", "--noheader", "--format=%P|%a|%D|%t")
        if status:
            raise HelperError(login.host.name, f"Slurm does not answer: {last_error(err)}")
        from clusterddp.launch.slurm.shared_folder import refuse_unshared  # noqa: PLC0415 - only for `up`

        refuse_unshared(site, login)
        partitions = ", ".join(dict.fromkeys(part.name for part in read_partitions(out) if part.up))
        return f"Slurm on {login.host.name}: partitions {partitions or 'none that are up'}"

    def hosts_with_files(self, site: Site) -> Sequence[HostEntry]:
        """See ``Launcher``."""
        return [login_entry(site.inventory)]

    def describe(
        self,
        site: Site,
        run: str,
        entries: Sequence[HostEntry],  # noqa: ARG002
        wanted: Wanted = ALL,
        patience: float | None = None,  # noqa: ARG002 - squeue may take its time
    ) -> list[Outcome[Reports]]:
        """See ``Launcher``: the login host tells of all."""
        return each([login_entry(site.inventory)], lambda _: self._nodes(_login(site), site, run, wanted))

    def files(self, site: Site, query: FileQuery) -> AbstractContextManager[tuple[list[Origin], list[ClusterddpError]]]:
        """See ``Launcher``: on the login host or, where it shares no folder with the nodes, on each node."""
        from clusterddp.launch.slurm import run_files  # noqa: PLC0415 - only for `pull`

        return run_files.origins(site, query)

    def borrow_hosts(self, site: Site, query: HostQuery) -> AbstractContextManager[LentHosts]:
        """See ``Launcher``: the nodes of a short job."""
        from clusterddp.launch.slurm.borrowed_nodes import borrow_nodes  # noqa: PLC0415 - only for `doctor`

        return borrow_nodes(site, query)

    def _nodes(self, login: LoginHost, site: Site, run: str, wanted: Wanted) -> list[NodeReport | JobReport]:
        submitted = [one for one in login.runs(run) if _is_wanted(one, wanted)]
        if not submitted:
            return []
        asked = Wanted(project=wanted.project, brief=wanted.brief)
        known = {one.run for one in submitted}
        found = query_nodes(login.host, run, site.notify, asked, shared=True)
        nodes = [node._replace(rebooted=False) for node in found if node.run in known]  # the login host cannot tell
        parts = {one.run: [node for node in nodes if node.run == one.run] for one in submitted}
        jobs = login.jobs(one.job for one in submitted if one.job and not is_settled(one))
        submitted = [self._by_its_nodes(login, site, one, jobs.get(one.job or ""), parts, wanted) for one in submitted]
        if any(one.end is None and one.job in jobs and meaning(jobs[one.job].state).over for one in submitted):
            submitted = [one for one in login.runs(run) if one.run in known]  # its script may have spoken meanwhile
        reports: list[NodeReport | JobReport] = []
        for one in submitted:
            mine, job = parts[one.run], jobs.get(one.job or "")
            silent = job is not None and job.state in BY_CODE and not mine and not one.end
            code = login.exit_status(job.job) if silent and job else ""
            report, they_count = job_report(one, mine, job, login.host.name, code)
            reports += [node if they_count else node._replace(verdict=None) for node in mine]
            reports.append(report)
            verdict = report.verdict if job else None
            if (verdict and verdict is not one.end) or (report.job.ended and one.secrets):
                login.keep_end(one.run, verdict)  # Slurm forgets it, and has ended the script before its own last words
        return reports

    def _by_its_nodes(
        self,
        login: LoginHost,
        site: Site,
        one: SubmittedRun,
        job: QueuedJob | None,
        parts: dict[str, list[NodeReport]],
        wanted: Wanted,
    ) -> SubmittedRun:
        """A run as its nodes tell it, where they share no folder and it runs; ``parts`` get what they tell."""
        there = running(site, login, one, job)
        if there is None:
            return one
        seen, nodes = there.reports(one, wanted)
        known = {(node.attempt, node.host) for node in nodes}
        parts[one.run] = [node for node in parts[one.run] if (node.attempt, node.host) not in known] + nodes
        if seen is not one and seen.awaiting:
            there.send_code(one.run, seen.awaiting)
        if seen.awaits_collection:
            there.collect(one.run)
        return seen

    def begun(self, cluster: Site, run: R, progress: Callable[[str], None]) -> R:
        """See ``RunLauncher``: waits in the queue, and tells why."""
        shown, brought = "", False
        look = time.monotonic() + UNHEARD
        while True:
            view = run.view(brief=True)
            there = view.nodes and view.state() != RunState.QUEUED and len(view.current) >= len(view.record.hosts)
            if (there and view.attempt >= run.attempt) or not view.live:
                return run.at(view)
            if run.secrets and not brought and view.job and view.job.state == RunState.RUNNING:
                brought = bring_secrets(cluster, _login(cluster), run)
            if not (view.job and view.job.state == RunState.RUNNING):
                look = time.monotonic() + UNHEARD
            elif time.monotonic() > look:
                look = time.monotonic() + AGAIN
                self._refuse_unshared(cluster, run)
            waits = view.job.waiting_for if view.job else ""
            if waits and waits != shown:
                shown = waits
                cluster.notify(f"run {run.id}: {waits}")
            progress(waits or "the job's nodes are starting")
            time.sleep(LOOK)

    def _refuse_unshared(self, cluster: Site, run: RunOnHosts) -> None:
        """Refuse to wait for what never comes: what the job's nodes write is not seen on the login host.

        A run that was just submitted is taken out of the queue.
        """
        from clusterddp.launch.slurm.shared_folder import REMEDY, unshared_by_run  # noqa: PLC0415 - hardly ever

        login = _login(cluster)
        why = unshared_by_run(cluster, login, run)
        if not why:
            return
        for one in run.submitted:
            login.order_stop(one, why, 0.0)
        jobs = [one.job for one in login.runs(run.id) if one.run == run.id and one.job and not one.inside]
        if run.submitted and jobs:
            login.command("scancel", jobs[0].partition("_")[0])
        raise RunError(f"run {run.id}: {why}", remedy=REMEDY)

    def cancel(self, cluster: Site, run: str, hosts: Sequence[str], *, grace: float, reason: str) -> list[Proof]:
        """See ``RunLauncher``: the supervisors end their nodes and say so, then the job is cancelled."""
        login = _login(cluster)
        login.order_stop(run, reason, grace)
        nodes = nodes_of_run(cluster, login, run)
        if nodes and not nodes.order_stop(run, reason, grace):
            login.command("scancel", nodes.job)  # it has only begun
        view = _settled(cluster, run, time.monotonic() + grace + STOP_SLACK, collected=nodes is not None)
        job = view.job
        state = job.manager_state if job else "nothing of it"
        if job and not job.ended and job.ends_with_run:
            login.command("scancel", job.number)
            state = "CANCELLED"
        proofs = {node.host: _proof(node, state) for node in (*view.nodes, *view.earlier)}
        if not proofs and job:
            return [Proof(host=f"job {job.number}")]
        return [proofs.get(name) or Proof(host=name, unknown=(f"Slurm says {state}",)) for name in hosts or proofs]

    def reader(self, cluster: Site, run: str, host: str) -> Host:
        """See ``RunLauncher``: the login host sees all files; where no folder is shared, once the job is over."""
        login = _login(cluster)
        try:
            nodes = nodes_of_run(cluster, login, run)
            return nodes.open(host) if nodes and nodes.has(host) else login.host
        except HelperError as error:  # the job has just ended, or Slurm does not answer: who follows asks again
            raise UnreachableError(host, error.message) from error

    def host(self, cluster: Site, run: str, host: str) -> Host:
        """See ``RunLauncher``: through a step of the job."""
        login = _login(cluster)
        number = next((one.job for one in login.runs(run) if one.run == run), None)
        if number is None:
            raise RunError(f"run {run} has no job of Slurm's that is known")
        return JobNodes(cluster, login, QueuedJob(job=number, state="RUNNING", nodes=(host,))).open(host)


LAUNCHER = Slurm()


def _login(cluster: Site) -> LoginHost:
    return LoginHost(cluster.connections.open(login_entry(cluster.inventory)))


def _ready(site: Site, options: RunOptions, *, dry: bool) -> tuple[Submission, str]:
    """What is to be submitted, and the id of the job that it is started inside of (empty: a job of its own)."""
    from clusterddp.launch.slurm.submission import submission  # noqa: PLC0415 - other commands submit nothing

    inside, options = allocated(lambda: _login(site), site, options)
    return submission(lambda: _login(site), site, options, dry=dry, inside=inside), inside


def _in_array(record: RunRecord, index: int, run: str) -> RunRecord:
    """The record of one run of an array."""
    name = in_array(record.name or "", record.run, str(index), run)
    return record._replace(run=run, name=name)


def _is_wanted(one: SubmittedRun, wanted: Wanted) -> bool:
    record, reference = one.plan.record, wanted.reference
    names = (record.name, one.job, *array_names(record))
    named = reference is None or one.run.startswith(reference) or reference in names
    return named and (wanted.project is None or record.project == wanted.project)


def _settled(cluster: Site, run: str, deadline: float, *, collected: bool) -> RunView:
    """The run as it is told when its nodes have ended and said so, or nothing more is to be waited for.

    ``collected``: its script too, so that what the nodes know is on the login host.
    """
    while True:
        reports, _ = gather(cluster, run)
        view = next((view for view in run_views(reports) if view.run == run), None)
        if view is None:
            raise RunError(f"run {run} is on no host that answers")
        waiting = any(node.state not in ENDED_STATES for node in view.nodes)
        waiting = waiting or (collected and view.job is not None and not view.job.ended)
        pending = view.job is not None and view.job.state == RunState.QUEUED
        if (not waiting and (view.nodes or pending or not view.live)) or time.monotonic() > deadline:
            return view
        time.sleep(LOOK / 2)


def _proof(node: NodeReport, state: str) -> Proof:
    """A node's own proof: its supervisor's exit record."""
    host, ended = node.host, node.exit
    if not ended:
        return Proof(host=host, unknown=(f"Slurm says {state}",))
    started = len(of_kind(node.events, WORKER_STARTED))
    left = tuple(Survivor(one.pid, one.command, one.state, one.user) for one in ended.survivors)
    unseen = tuple(f"process {pid} is hidden there" for pid in ended.unseen)
    return Proof(host=host, found=started + 1 + len(left), killed=ended.killed, survivors=left, unknown=unseen)
