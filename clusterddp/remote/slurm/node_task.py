"""A node's task in a job's step: starts the same supervisor as a start over SSH, and stays until it has ended.

The nodes meet in the run's folder (slurm/shared_exchange.py): each publishes its facts, all make the same plans from
them, each starts its supervisor and publishes its ports, and when all have, the agents start. The task is the subreaper
of its node's processes, so that Slurm finds all of them below it.

It exits with 0 when its supervisor has recorded how its part ended, whatever that was: with another code srun would end
the other nodes (--kill-on-bad-exit) before they have recorded theirs.
"""

import os
import secrets as random
import signal
import sys
import time
from typing import Any, Callable, List, NamedTuple, Optional, Sequence

from ..shared.processes.exit_codes import EXIT_NOT_THE_SCRIPT
from ..shared.run.node_env import Node
from ..shared.run.plan import NodePlan
from ..shared.run.spool_records import Ready
from ..shared.run.stop_records import CLEANUP_REASON
from ..shared.run.unplaced_plan import choose_backend, placed_plan
from ..shared.schema.fields import Fields
from ..shared.schema.record import field, record
from ..shared.slurm.job_record import PROJECT_CODE, SentCode, SlurmJob, job_number, start_name
from ..shared.slurm.nodelist import expand_nodelist
from ..shared.supervisor.start_records import StartOrder
from ..shared.verdict.failures import ended_by_manager
from ..spool.layout import Spool, all_spools
from ..supervisor.signal_operation import signal_workers
from ..supervisor.start import commit_node, start_node
from ..system import prctl
from ..system.bootstrap import Refused
from .code_delivery import install_code
from .job_folder import JobFolder
from .node_facts import NodeFacts, choose_addresses, node_facts
from .shared_exchange import NodeFailure, SharedExchange

SUPERVISOR_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)  # a task itself ignores them
ARRIVAL_TIMEOUT = 120.0  # seconds for the attached client to send what is missing, where no folder is shared
CHECK_INTERVAL = 0.2  # seconds between checks whether all have ended
VISIBLE_TIMEOUT = 5.0  # seconds until a folder that another node has made must be visible here
NOTICE_CHECK_INTERVAL = 2.0  # seconds between checks for a notice, in the folder that all nodes share
SAVE_TIMEOUT = (
    60.0  # seconds from a notice to the end of an attempt that another follows; Slurm's own end comes 60 s later
)
CLOCK_ERROR_NS = 10_000_000  # by which clocks of a cluster's nodes may differ; an assumption, not measured


@record
class NodePorts(NamedTuple):
    """The ports that a node has bound, published to the other nodes; 0 for none."""

    store: int = field(Fields.number)
    control: int = field(Fields.number)


class Task:
    """One node's task, for the run of ``folder``."""

    def __init__(self, folder: JobFolder) -> None:
        self.folder = folder
        environment = os.environ
        try:
            self.names = list(expand_nodelist(environment["SLURM_STEP_NODELIST"]))
            self.member = int(environment["SLURM_NODEID"])
            self.job = job_number(environment)
            self.start = start_name(environment)
        except (KeyError, ValueError) as error:
            raise Refused("this is no task of a step of Slurm's: %s" % error, "start it by srun") from None
        self.host = self.names[self.member]
        self.noticed: Optional[float] = None  # when the notice was seen
        self.ordered = False  # whether this attempt was ordered to end
        self.ending = False  # whether Slurm is ending the step: another node has failed, or the job is cancelled

    def run(self) -> int:
        """Run the task to its end; returns its exit status."""
        prctl.set_subreaper()
        for number in SUPERVISOR_SIGNALS:  # only the supervisor handles them
            signal.signal(number, self._note_signal)
        if not os.path.isdir(self.folder.path):
            raise Refused("%s: no folder %s here" % (self.host, self.folder.path))
        self._await_start_folder()
        shared = SharedExchange(self.folder.file(self.start), self.names, self.member)
        spool = None
        try:
            job = self.folder.job()
            if not self.member:
                self.folder.write_submitted(self.job)  # nobody else has, if it was submitted by hand
            order = self.folder.stop_order() or self.folder.stop_order(self.start)
            if order:
                raise Refused("the run was stopped: %s" % order.reason)
            if not self.member:
                self._refuse_beyond_limit(job)
            plans = self.plans(job, shared)
            plan = plans[self.member]
            if job.sent_code:
                self.await_secrets(plan)
            started = start_node(job.state, StartOrder(plan, self.folder.secrets(plan.secrets), self.key))
            spool = Spool(started.spool)
            ports = shared.exchange("ready", NodePorts(store=started.store, control=started.control))
            peers = tuple((peer.address, one.control) for peer, one in zip(plan.peers, ports))
            commit_node(spool, Ready(store=ports[0].store, peers=peers))
        except (Refused, OSError, KeyError, ValueError) as error:
            self._report_failure(shared, error, spool)
        self.wait(job if spool else None)
        verdict = spool.verdict() if spool else None
        if verdict and job.sent_code:
            self.folder.write_verdict(self.start, self.member, verdict)
        return 0 if spool and spool.exit_record() else EXIT_NOT_THE_SCRIPT

    def _refuse_beyond_limit(self, job: SlurmJob) -> None:
        """Refuse a start beyond the last relaunch: after the loss of a node Slurm starts the job again by itself.

        Not where no folder is shared: preemptions are not told apart there.
        """
        relaunch = job.plan.settings.relaunch
        if not job.inside and not job.sent_code and 0 < relaunch < self.folder.relaunches(self.start):
            raise Refused(
                "Slurm has started the job again, as after a lost node; all %d relaunches are used" % relaunch
            )

    def _note_signal(self, number: int, _frame: Any) -> None:
        """Signal handler: only note that Slurm is ending the step."""
        self.ending = self.ending or number == signal.SIGTERM

    def _await_start_folder(self) -> None:
        """Check that the folder of this start, which the job's script has made on the first node, is visible here too.

        Raises Refused if it is not: the nodes see the login host's files, but not each other's.
        """
        path, deadline = self.folder.file(self.start), time.monotonic() + VISIBLE_TIMEOUT
        while not os.path.isdir(path):
            if time.monotonic() > deadline:
                raise Refused("%s: no folder %s here" % (self.host, path))
            time.sleep(CHECK_INTERVAL)

    def plans(self, job: SlurmJob, shared: SharedExchange) -> List[NodePlan]:
        """Every node's plan, the same on all nodes; raises Refused if a node cannot take part."""
        workdir = self.install_code(job, job.sent_code) if job.sent_code else job.plan.workdir
        facts = node_facts(job, self.host, workdir, os.environ)
        attempts = [spool.attempt for spool in all_spools(job.state, job.plan.run)]
        if job.sent_code:  # other nodes than before have no spools of earlier attempts
            attempts.append(int(os.environ.get("SLURM_RESTART_COUNT") or 0))
        facts = facts._replace(attempts=max(attempts, default=0), key=random.token_hex(32) if not self.member else "")
        all_facts = shared.exchange("facts", facts)
        attempt = max(node_facts.attempts for node_facts in all_facts) + 1
        self.key = all_facts[0].key
        addresses = choose_addresses(all_facts, os.environ.get("SLURM_LAUNCH_NODE_IPADDR", ""))
        if not self.member:
            self.folder.write_attempt(self.start, attempt)
        placed = zip(all_facts, addresses)
        nodes = [_node(job, node_facts, address.address, address.interface) for node_facts, address in placed]
        backend = choose_backend(
            job.plan.settings.rdzv_backend, [node_facts.torch for node_facts in all_facts], [job.state]
        )
        versions_and_gpus = {
            "versions": _versions(job, all_facts),
            "gpus": {node_facts.host: node_facts.gpus for node_facts in all_facts},
        }
        return [
            placed_plan(job.plan, nodes, member, attempt=attempt, backend=backend, record_fields=versions_and_gpus)
            for member in range(len(nodes))
        ]

    def await_secrets(self, plan: NodePlan) -> None:
        """Wait until the values of the run's secrets have arrived; raises Refused if they do not."""
        path = self.folder.secrets_path
        if plan.secrets:
            self._await_arrival(lambda: os.path.exists(path), path, "the values of %s" % ", ".join(plan.secrets))

    def install_code(self, job: SlurmJob, sent: SentCode) -> str:
        """The folder on this node that holds the project's code; if the code is sent, wait until it has arrived."""
        path = self.folder.file(PROJECT_CODE)
        if sent.broadcast:
            if not self.member:
                self.folder.write_awaiting(self.start)
            self._await_arrival(lambda: self.folder.arrived(self.start), path, "the run's code")
        return install_code(job, sent, path)

    def _await_arrival(self, has_arrived: Callable[[], bool], path: str, what: str) -> None:
        """Wait until ``has_arrived()``, at most ARRIVAL_TIMEOUT seconds after the file ``path`` has last grown."""
        size, deadline = 0, time.monotonic() + ARRIVAL_TIMEOUT
        while not has_arrived():
            if self.folder.stop_order() or self.folder.stop_order(self.start):
                raise Refused("the run was stopped")
            new_size = os.path.getsize(path) if os.path.exists(path) else 0
            if new_size != size:
                size, deadline = new_size, time.monotonic() + ARRIVAL_TIMEOUT
            if time.monotonic() > deadline:
                raise Refused(
                    "nobody has brought %s for %d s" % (what, ARRIVAL_TIMEOUT),
                    "stay attached until the run has begun, or let the nodes share clusterddp_state",
                )
            time.sleep(CHECK_INTERVAL)

    def _report_failure(self, shared: SharedExchange, error: Exception, spool: Any) -> None:
        """Report to the other nodes that this one cannot begin, and end what has begun here."""
        message = str(error.args[0] if isinstance(error, Refused) else error)
        remedy = "; " + error.remedy if isinstance(error, Refused) and error.remedy else ""
        line = message + remedy
        named = any(line.startswith(name + ": ") for name in self.names)
        shared.fail(NodeFailure(line if named else "%s: %s" % (self.host, line), self.ending))
        sys.stderr.write("clusterddp: %s: %s\n" % (self.host, line))
        if spool:
            spool.write_stop_order(CLEANUP_REASON, 0.0)

    def wait(self, job: Optional[SlurmJob]) -> None:
        """Wait until no process of the node is left; with a ``job``, pass a notice on to the workers meanwhile."""
        last_check = time.monotonic()
        while True:
            try:
                ended, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not ended:
                time.sleep(CHECK_INTERVAL)
            if job and time.monotonic() - last_check >= NOTICE_CHECK_INTERVAL:
                last_check = time.monotonic()
                self._handle_notice(job)

    def _handle_notice(self, job: SlurmJob) -> None:
        """Pass a notice on to the workers; SAVE_TIMEOUT later end this attempt if another one may follow."""
        spools = [spool for spool in self.folder.spools() if spool.host == self.host]
        if self.noticed is None and self.folder.notice(self.start):
            self.noticed = time.monotonic()
            if any(self._signal_notice(spool) for spool in spools):
                self.folder.write_notice_handled(self.start, self.member)
        is_late = self.noticed is not None and time.monotonic() - self.noticed > SAVE_TIMEOUT
        if is_late and not self.ordered:
            self.ordered = True
            for spool in spools:
                if self.folder.relaunches(self.start, spool.attempt) < job.plan.settings.relaunch:
                    spool.write_stop_order(ended_by_manager(job.plan.manager), job.plan.settings.grace)

    def _signal_notice(self, spool: Spool) -> bool:
        """Send SIGUSR1 to the workers that handle it, as it would end the others; whether any got it."""
        try:
            answers = signal_workers(spool, "SIGUSR1")
        except (Refused, OSError) as error:
            sys.stdout.write("clusterddp: %s: the job's end is near, and nobody told: %s\n" % (self.host, error))
            return False
        received = [answer for answer in answers if not answer.why]
        line = "clusterddp: %s: the job's end is near; %d of %d workers handle SIGUSR1 and have got it\n"
        sys.stdout.write(line % (self.host, len(received), len(answers)))
        sys.stdout.flush()
        return bool(received)


def _node(job: SlurmJob, facts: NodeFacts, address: str, interface: str) -> Node:
    plan = job.plan
    return Node(
        host=facts.host,
        nproc=facts.nproc,
        address=address,
        interface=interface,
        python=facts.python,
        env={},
        secrets=plan.secrets,
        settings=plan.host_settings,
        workdir=facts.workdir,
        cwd=facts.workdir + plan.cwd[len(plan.workdir) :],
        run_dir="%s/rundirs/%s-%s" % (job.state, plan.run, facts.host),
        clock_error_ns=CLOCK_ERROR_NS,
        threads=facts.threads,
    )


def _versions(job: SlurmJob, nodes: Sequence[NodeFacts]) -> Any:
    first = nodes[0]
    return dict(job.plan.record.versions, python=first.python_version, torch=first.torch or None, nccl=first.nccl)
