"""The launcher over Slurm: a run is a job, submitted on the login host or here; its nodes are Slurm's to choose.

What is known of a run comes from its spool, in a folder that the login host and all nodes share; Slurm is asked where
that says nothing: why a job waits, how one ended whose nodes told nobody.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.errors import ClusterddpError, HelperError, HostError, PlanError, RunError, UnreachableError
from clusterddp.hosts.fanout import Outcome, each
from clusterddp.launch.run_secrets import secret_values
from clusterddp.launch.slurm.allocation import current_allocation
from clusterddp.launch.slurm.client.answers import QueuedJob, last_error, read_partitions
from clusterddp.launch.slurm.client.batch_script import without_defaults
from clusterddp.launch.slurm.client.login_host import LoginHost, login_entry
from clusterddp.launch.slurm.client.never_starts import why_never
from clusterddp.launch.slurm.client.states import NAME, NO_ANSWER, QUERY_INTERVAL, meaning
from clusterddp.launch.slurm.job_nodes import JobNodes, bring_secrets, nodes_of_run, running_nodes
from clusterddp.launch.slurm.job_report import ended_by_script, job_report, known_jobs
from clusterddp.remote.shared.run.event_schema import WORKER_STARTED, of_kind
from clusterddp.remote.shared.run.run_state import ENDED_STATES, RunState
from clusterddp.remote.shared.run.stop_records import PROOF_TIMEOUT
from clusterddp.remote.shared.slurm.job_record import in_array
from clusterddp.runs import local_cache
from clusterddp.runs.choose import array_names
from clusterddp.runs.node_answers import query_nodes
from clusterddp.runs.proof import Proof, Survivor
from clusterddp.runs.run import Run
from clusterddp.runs.run_on_hosts import ALL, Wanted, gather
from clusterddp.runs.view.run_view import Reports, RunView, run_views
from clusterddp.runs.wait import nobody_answers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from clusterddp.hosts.client import Host
    from clusterddp.inventory import HostEntry
    from clusterddp.launch.launcher import FileQuery, HostQuery, LentHosts
    from clusterddp.launch.options import RunOptions
    from clusterddp.launch.slurm.submission import Submission
    from clusterddp.remote.shared.run.run_record import RunRecord
    from clusterddp.remote.shared.slurm.job_record import SubmittedRun
    from clusterddp.remote.shared.verdict.node_report import NodeReport
    from clusterddp.runs.run_on_hosts import R, RunOnHosts, Site
    from clusterddp.runs.view.managed_job import JobReport, JobStatus
    from clusterddp.sync.transfer.collect import Origin

REASON_TIMEOUT = 6.0  # seconds in which Slurm is asked why a new job waits
SILENCE_TIMEOUT = 3.0  # seconds without a report of a running job's nodes, after which shared folders are checked
CHECK_INTERVAL = 15.0  # seconds between two such checks
STATES_WITH_EXIT_CODE = ("FAILED", "COMPLETED")  # states in which a job's exit code is its script's


class Slurm:
    """The launcher over Slurm; it has no state."""

    name = NAME
    clean_operation = "slurm_clean"

    def render(self, site: Site, options: RunOptions) -> str:
        """Return the script of the job that would be submitted."""
        return _prepare(site, options, dry=True)[0].script

    def submit(self, site: Site, options: RunOptions) -> Run:
        """Submit the run as a job, which may still wait in the queue when this returns."""
        from clusterddp.launch.slurm.embedded_code import refuse_detached  # noqa: PLC0415 - other commands submit nothing

        submission, inside = _prepare(site, options, dry=False)
        secrets, login = secret_values(set(submission.job.plan.secrets) - submission.hidden.keys()), _login(site)
        values = {**secrets, **submission.hidden}
        values_for_nodes = values if submission.job.sent_code else {}
        if site.detached:
            refuse_detached(submission.job, values_for_nodes)
        site.progress("submitting")
        record = submission.job.plan.record
        records = [_record_in_array(record, index, run) for index, run in submission.runs.items()] or [record]
        run = Run(site, records[0].run, 1, {}, records[0], submitted=tuple(entry.run for entry in records))
        run.secrets = values_for_nodes
        job = without_defaults(submission.job)
        arguments = (record.run, submission.script, job, {} if values_for_nodes else values)
        site.launched = run
        number = login.submit(*arguments, inside=inside or None, runs=submission.runs, code=submission.code)
        for entry in records:
            local_cache.record_start(site.project, entry, site.notify)
        self._refuse_never_starting(login, submission, number)
        return run

    def _refuse_never_starting(self, login: LoginHost, submission: Submission, number: str) -> None:
        """Cancel a job that Slurm accepted but would never start; raises PlanError."""
        deadline = time.monotonic() + REASON_TIMEOUT
        while time.monotonic() < deadline:
            first = next(iter(submission.runs), None)
            job_id = number if first is None else f"{number}_{first}"
            try:
                job = login.jobs([job_id]).get(job_id)
                if job is None or meaning(job.state).state != RunState.QUEUED:
                    return
                why = why_never(login, job)
            except UnreachableError:  # Slurm has the job all the same, and who follows it asks again
                return
            if why:
                for run in submission.runs.values() or [submission.job.plan.run]:
                    login.order_stop(run, why, 0.0)
                login.command("scancel", number)
                raise PlanError(
                    f"Slurm would never start job {number}: {why}",
                    remedy="ask for what the partition, your account and a dependency allow "
                    "(`sinfo`, `sacctmgr show associations`)",
                )
            if job.reason:
                return
            time.sleep(QUERY_INTERVAL / 2)

    def ready(self, site: Site) -> str:
        """Check that Slurm answers and folders are shared; return its partitions."""
        login = _login(site)
        status, out, err = login.command("sinfo", "--noheader", "--format=%P|%a|%D|%t")
        if status:
            raise HelperError(login.host.name, f"Slurm does not answer: {last_error(err)}")
        from clusterddp.launch.slurm.shared_folder import refuse_unshared  # noqa: PLC0415 - only for `up`

        refuse_unshared(site, login)
        partitions = ", ".join(dict.fromkeys(part.name for part in read_partitions(out) if part.up))
        return f"Slurm on {login.host.name}: partitions {partitions or 'none that are up'}"

    def hosts_with_files(self, site: Site) -> Sequence[HostEntry]:
        """Return the login host, which keeps the files of all runs."""
        return [login_entry(site.inventory)]

    def describe(
        self,
        site: Site,
        run: str,
        entries: Sequence[HostEntry],  # noqa: ARG002
        wanted: Wanted = ALL,
        patience: float | None = None,  # noqa: ARG002 - squeue may take its time
    ) -> list[Outcome[Reports]]:
        """Ask the login host, which reports all nodes."""
        return each([login_entry(site.inventory)], lambda _: self._reports(_login(site), site, run, wanted))

    def files(self, site: Site, query: FileQuery) -> AbstractContextManager[tuple[list[Origin], list[ClusterddpError]]]:
        """Yield the files' hosts: the login host or, if it shares no folder with the nodes, each node."""
        from clusterddp.launch.slurm import run_files  # noqa: PLC0415 - only for `pull`

        return run_files.origins(site, query)

    def borrow_hosts(self, site: Site, query: HostQuery) -> AbstractContextManager[LentHosts]:
        """Yield the nodes of a short job."""
        from clusterddp.launch.slurm.borrowed_nodes import borrow_nodes  # noqa: PLC0415 - only for `doctor`

        return borrow_nodes(site, query)

    def _reports(self, login: LoginHost, site: Site, run: str, wanted: Wanted) -> list[NodeReport | JobReport]:
        """Return a report on each run's job and nodes; ``run`` is a prefix of the runs' ids.

        Where Slurm alone tells how a run ended, that is recorded on the login host.
        """
        submitted = [sub for sub in login.runs(run) if _matches(sub, wanted)]
        if not submitted:
            return []
        # The nodes are asked without ``reference``: a job's number is known to the login host alone.
        unfiltered = Wanted(project=wanted.project, brief=wanted.brief)
        ids = {sub.run for sub in submitted}
        answers = query_nodes(login.host, run, site.notify, unfiltered, shared=True)
        nodes = [node._replace(rebooted=False) for node in answers if node.run in ids]  # the login host cannot tell
        parts = {sub.run: [node for node in nodes if node.run == sub.run] for sub in submitted}
        jobs = known_jobs(login, submitted, parts)
        submitted = [self._from_nodes(login, site, sub, jobs.get(sub.job or ""), parts, wanted) for sub in submitted]
        if any(sub.end is None and sub.job in jobs and meaning(jobs[sub.job].state).over for sub in submitted):
            submitted = [sub for sub in login.runs(run) if sub.run in ids]  # its script may have reported meanwhile
        reports: list[NodeReport | JobReport] = []
        for sub in submitted:
            own_nodes, job = parts[sub.run], jobs.get(sub.job or "")
            silent = job is not None and job.state in STATES_WITH_EXIT_CODE and not own_nodes and not sub.end
            code = login.exit_status(job.job) if silent and job else ""
            report, verdicts_count = job_report(sub, own_nodes, job, login.host.name, code)
            reports += [node if verdicts_count else node._replace(verdict=None) for node in own_nodes]
            reports.append(report)
            verdict = report.verdict if job else None
            if (verdict and verdict is not sub.end) or (report.job.ended and sub.secrets):
                # Slurm forgets its jobs, and may have killed the script before it recorded this.
                login.record_end(sub.run, verdict)
        return reports

    def _from_nodes(
        self,
        login: LoginHost,
        site: Site,
        submitted: SubmittedRun,
        job: QueuedJob | None,
        parts: dict[str, list[NodeReport]],
        wanted: Wanted,
    ) -> SubmittedRun:
        """Return the run as a running job's nodes report it if they share no folder; ``parts`` get their reports."""
        job_nodes = running_nodes(site, login, submitted, job)
        if job_nodes is None:
            return submitted
        updated, nodes = job_nodes.reports(submitted, wanted)
        answered = {(node.attempt, node.host) for node in nodes}
        parts[submitted.run] = [
            node for node in parts[submitted.run] if (node.attempt, node.host) not in answered
        ] + nodes
        if updated is not submitted and updated.awaiting:
            job_nodes.send_code(submitted.run, updated.awaiting)
        if updated.awaits_collection:
            job_nodes.collect(submitted.run)
        return updated

    def begun(self, cluster: Site, run: R, progress: Callable[[str], None]) -> R:
        """Wait until the job has started on all its nodes; meanwhile show why it waits."""
        shown, secrets_brought = set[tuple[str, bool]](), False
        next_check = time.monotonic() + SILENCE_TIMEOUT
        while True:
            try:
                view = run.view(brief=True)
                complete = (
                    view.nodes and view.state() != RunState.QUEUED and len(view.current) >= len(view.record.hosts)
                )
                if (complete and view.attempt >= run.attempt) or not view.live:
                    return run.at(view)
                if run.secrets and not secrets_brought and view.job and view.job.state == RunState.RUNNING:
                    secrets_brought = bring_secrets(cluster, _login(cluster), run)
                if not (view.job and view.job.state == RunState.RUNNING):  # a job that is requeued has lost its secrets
                    next_check, secrets_brought = time.monotonic() + SILENCE_TIMEOUT, False
                elif time.monotonic() > next_check:
                    next_check = time.monotonic() + CHECK_INTERVAL
                    self._refuse_unshared(cluster, run)
                reason = view.job.waiting_for if view.job else ""
                # Once each: with several partitions the reason changes every second, and so may the expected start.
                noted = (view.job.reason, bool(view.job.start)) if view.job else ("", False)
                if reason and noted not in shown:
                    shown.add(noted)
                    cluster.notify(f"run {run.id}: {reason}")
                progress(reason or "the job's nodes are starting")
            except ClusterddpError as error:
                if not nobody_answers(error):
                    raise
                progress(error.message)
            time.sleep(QUERY_INTERVAL)

    def _refuse_unshared(self, cluster: Site, run: RunOnHosts) -> None:
        """Raise RunError if the login host cannot see what the job's nodes write: their reports would never arrive.

        A run that was just submitted is taken out of the queue.
        """
        from clusterddp.launch.slurm.shared_folder import REMEDY, unshared_by_run  # noqa: PLC0415 - hardly ever

        login = _login(cluster)
        why = unshared_by_run(cluster, login, run)
        if not why:
            return
        for entry in run.submitted:
            login.order_stop(entry, why, 0.0)
        known = login.run(run.id)
        if run.submitted and known and known.job and not known.inside:
            login.command("scancel", known.job.partition("_")[0])
        raise RunError(f"run {run.id}: {why}", remedy=REMEDY)

    def cancel(self, cluster: Site, run: str, hosts: Sequence[str], *, grace: float, reason: str) -> list[Proof]:
        """Order the supervisors to end their nodes, wait for their reports, then cancel the job; return the proofs."""
        login = _login(cluster)
        login.order_stop(run, reason, grace)
        nodes = nodes_of_run(cluster, login, run)
        if nodes and not nodes.order_stop(run, reason, grace):
            login.command("scancel", nodes.job)  # its script does not answer yet
        view = _wait_for_end(cluster, run, time.monotonic() + grace + PROOF_TIMEOUT, collected=nodes is not None)
        job = view.job
        state = job.manager_state if job else "nothing of it"
        if job and not job.ended and job.ends_with_run:
            state = _scancel(cluster, login, job)
        proofs = _proofs(view, state)
        if not proofs and job:
            why = () if _never_began(login, run, job.number) else (f"no node has reported; Slurm says {state}",)
            return [Proof(host=f"job {job.number}", unknown=why)]
        return [proofs.get(name) or Proof(host=name, unknown=(f"Slurm says {state}",)) for name in hosts or proofs]

    def reader(self, cluster: Site, run: str, host: str) -> Host:
        """Return the host to read a node's output from: the node while it runs and shares no folder, else the login."""
        login = _login(cluster)
        try:
            nodes = nodes_of_run(cluster, login, run)
            return nodes.open(host) if nodes and nodes.has(host) else login.host
        except HelperError as error:  # the job has just ended, or Slurm does not answer: followers ask again
            raise UnreachableError(host, error.message) from error

    def host(self, cluster: Site, run: str, host: str) -> Host:
        """Return a connection to a node, through a step of the job."""
        login = _login(cluster)
        _, number = login.job_of(run)
        return JobNodes(cluster, login, QueuedJob(job=number, state="RUNNING", nodes=(host,))).open(host)


LAUNCHER = Slurm()


def _login(cluster: Site) -> LoginHost:
    return LoginHost(cluster.connections.open(login_entry(cluster.inventory)))


def _prepare(site: Site, options: RunOptions, *, dry: bool) -> tuple[Submission, str]:
    """Return what to submit, and the number of the existing job to start it in; empty for a new job."""
    from clusterddp.launch.slurm.submission import submission  # noqa: PLC0415 - other commands submit nothing

    inside, options = current_allocation(lambda: _login(site), site, options)
    return submission(lambda: _login(site), site, options, dry=dry, inside=inside), inside


def _record_in_array(record: RunRecord, index: int, run: str) -> RunRecord:
    """Return the record of one run of an array."""
    name = in_array(record.name or "", record.run, str(index), run)
    return record._replace(run=run, name=name)


def _matches(submitted: SubmittedRun, wanted: Wanted) -> bool:
    """Whether a run is the one asked for, by its id, name or job, and of the project asked for."""
    record, reference = submitted.plan.record, wanted.reference
    names = (record.name, submitted.job, *array_names(record))
    named = reference is None or submitted.run.startswith(reference) or reference in names
    return named and (wanted.project is None or record.project == wanted.project)


def _wait_for_end(cluster: Site, run: str, deadline: float, *, collected: bool) -> RunView:
    """Wait until all nodes of a run have reported their end, or the deadline; return the run.

    ``collected``: wait for the job's script too, which copies the nodes' files to the login host.
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
        time.sleep(QUERY_INTERVAL / 2)


def _scancel(cluster: Site, login: LoginHost, job: JobStatus) -> str:
    """Cancel a job whose nodes have reported their end; return its state then."""
    try:
        status, _, err = login.command("scancel", job.number)
    except UnreachableError as error:
        status, err = 1, error.message
    if status and job.manager_state == NO_ANSWER:  # else the job has just ended
        cluster.notify(f"job {job.number} is not cancelled ({last_error(err)}): it ends when its nodes have ended")
        return NO_ANSWER
    return "CANCELLED"


def _never_began(login: LoginHost, run: str, number: str) -> bool:
    """Whether a run's job ended before it started anything on a node, as its script says.

    If the script never ran, Slurm says so: it gave the job no node, or no longer lists it.
    """
    deadline = time.monotonic() + REASON_TIMEOUT
    try:
        while True:
            job, submitted = login.jobs([number]).get(number), login.run(run)
            if job is None or (submitted and ended_by_script(submitted)):
                return True
            if meaning(job.state).over or time.monotonic() > deadline:
                return meaning(job.state).over and not job.nodes
            time.sleep(QUERY_INTERVAL)
    except HostError:  # Slurm does not answer
        return False


def _proofs(view: RunView, state: str) -> dict[str, Proof]:
    """Return each host's proof: that of its last attempt, with what an earlier one has left there."""
    proofs: dict[str, Proof] = {}
    for node in (*view.earlier, *view.nodes):
        proof, earlier = _proof(node, state), proofs.get(node.host)
        left = tuple(f"an earlier attempt left {process} there" for process in earlier.survivors) if earlier else ()
        proofs[node.host] = replace(proof, unknown=(*left, *proof.unknown))
    return proofs


def _proof(node: NodeReport, state: str) -> Proof:
    """Return a node's proof of its end, from its supervisor's exit record; ``state``: Slurm's, if there is none."""
    host, ended = node.host, node.exit
    if not ended:
        return Proof(host=host, unknown=(f"Slurm says {state}",))
    started = len(of_kind(node.events, WORKER_STARTED))
    left = tuple(Survivor(process.pid, process.command, process.state, process.user) for process in ended.survivors)
    unseen = tuple(f"process {pid} is hidden there" for pid in ended.unseen)
    return Proof(host=host, found=started + 1 + len(left), killed=ended.killed, survivors=left, unknown=unseen)
