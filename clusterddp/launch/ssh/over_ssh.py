"""Execute a launch plan over the connections: start every node's supervisor, or none.

All supervisors start at once and bind their ports. When the last is ready, each receives all ports, and only then the
agents start. If one fails, those that have started are stopped again.
"""

from __future__ import annotations

import contextlib
import json
import secrets as random
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterddp.errors import ClusterddpError, HelperError, UsageError
from clusterddp.hosts.ask import ask, reading_answer
from clusterddp.hosts.fanout import Outcome, each, values
from clusterddp.hosts.file_limit import make_room
from clusterddp.launch.launcher import LentHosts
from clusterddp.launch.run_secrets import secret_values
from clusterddp.remote.shared.run.run_state import RunState
from clusterddp.remote.shared.run.spool_records import Ready
from clusterddp.remote.shared.run.stop_records import CLEANUP_REASON, PROOF_TIMEOUT, StopAnswer, StopRequest
from clusterddp.remote.shared.schema.record import read_record, to_fields, to_plain
from clusterddp.remote.shared.supervisor.start_records import (
    START_TIMEOUT,
    CommitRequest,
    CommittedNode,
    StartedNode,
    StartRequest,
    WebhookOrder,
)
from clusterddp.runs import local_cache, proof
from clusterddp.runs.node_answers import query_nodes
from clusterddp.runs.proof import Proof
from clusterddp.runs.run import Run, interrupt_reason
from clusterddp.runs.run_on_hosts import ALL, Wanted
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.inventory import HostEntry
    from clusterddp.launch.launcher import FileQuery, HostQuery
    from clusterddp.launch.make_plan import LaunchPlan
    from clusterddp.launch.options import RunOptions
    from clusterddp.remote.shared.run.plan import NodePlan
    from clusterddp.remote.shared.verdict.node_report import NodeReport
    from clusterddp.runs.run_on_hosts import R, Site, Webhook
    from clusterddp.runs.view.run_view import Reports
    from clusterddp.sync.transfer.collect import Origin

NAME = "ssh"
_MAX_REASON = 300  # characters shown of the reason for a plain start
_NOT_THERE = "not in the inventory (-i FILE chooses one that has it)"


class Ssh:
    """The launcher over SSH, or on this machine without it: each host is asked through its own helper."""

    name = NAME
    clean_operation = "clean"

    def render(self, site: Site, options: RunOptions) -> str:
        """Return the commands that would start the run, one block a host."""
        plan, _ = _plan(site, options, dry=True)
        return plan.render()

    def submit(self, site: Site, options: RunOptions) -> Run:
        """Prepare the hosts and start the run on them."""
        plan, hosts = _plan(site, options, dry=False)
        secrets = secret_values(plan.all_secrets)
        used = {*(host.name for host in hosts), *plan.record.replaced}
        unused = [entry.name for entry in site.inventory.nodes if entry.name not in used]
        settings = plan.shared.settings
        unused = unused[: settings.max_nodes - len(plan.nodes)] if settings.elastic else []
        plan = plan.with_record(left_out=tuple(unused), launcher=NAME)
        site.progress("starting")
        run = Run(site, plan.run, plan.attempt, {host.name: "" for host in hosts}, plan.record)
        site.launched = run
        launched = launch(hosts, plan, secrets, site.webhook)
        local_cache.record_start(site.project, plan.record, site.notify)
        for notice in launched.notices:
            site.notify(notice)
        spools = {node.host: launched.spools[node.host] for node in plan.nodes}
        return replace(run, spools=spools, notified=launched.tell)

    def ready(self, site: Site) -> str:  # noqa: ARG002
        """Return an empty text: without a manager there is nothing to check."""
        return ""

    def hosts_with_files(self, site: Site) -> Sequence[HostEntry]:
        """Return the inventory's nodes and spares that use this launcher."""
        inventory = site.inventory
        return [entry for entry in (*inventory.nodes, *inventory.spares) if entry.launcher == NAME]

    def describe(
        self, site: Site, run: str, entries: Sequence[HostEntry], wanted: Wanted = ALL, patience: float | None = None
    ) -> list[Outcome[Reports]]:
        """Ask each host for the nodes of a run, or of all runs, that it keeps."""
        own_entries = [entry for entry in entries if entry.launcher == NAME]
        make_room(own_entries)

        def ask(entry: HostEntry) -> list[NodeReport]:
            return query_nodes(site.host(entry.name), run, site.notify, wanted)

        return each(own_entries, ask) if patience is None else site.connections.inquiry.each(own_entries, ask, patience)

    @contextlib.contextmanager
    def files(self, site: Site, query: FileQuery) -> Iterator[tuple[list[Origin], list[ClusterddpError]]]:
        """Yield the hosts that keep the files, and the errors of hosts that do not answer."""
        from clusterddp.launch.ssh.origins import origins  # noqa: PLC0415 - only for `pull`

        yield origins(site, query)

    @contextlib.contextmanager
    def borrow_hosts(self, site: Site, query: HostQuery) -> Iterator[LentHosts]:
        """Yield every host of the inventory; nothing has to be borrowed."""
        option = "--nnodes" if query.nnodes else "--partition" if query.partition else ""
        if option:
            raise UsageError(f"{option}: without Slurm every host of the inventory is looked at", remedy="leave it out")
        yield LentHosts(site=site)

    def begun(self, cluster: Site, run: R, progress: Callable[[str], None]) -> R:  # noqa: ARG002
        """Return the run at once: it has begun when ``submit`` returns."""
        return run

    def cancel(self, cluster: Site, run: str, hosts: Sequence[str], *, grace: float, reason: str) -> list[Proof]:
        """Stop the run on these hosts; return what each host found of the run's processes afterwards, or its error."""

        def stop(entry: HostEntry) -> Proof:
            request = StopRequest(run=run, hosts=(entry.name,), grace=grace, reason=reason)
            answer = ask(cluster.host(entry.name), "stop", request, StopAnswer, timeout=grace + PROOF_TIMEOUT)
            return proof.of_answer(entry.name, answer)

        known = {entry.name: entry for entry in cluster.inventory.hosts}
        outcomes = each([known[name] for name in hosts if name in known], stop)
        missing = [name for name in hosts if name not in known]
        proofs = [outcome.value or Proof(host=outcome.name, error=str(outcome.error)) for outcome in outcomes]
        return proofs + [Proof(host=name, error=f"{name}: {_NOT_THERE}") for name in missing]

    def reader(self, cluster: Site, run: str, host: str) -> Host:  # noqa: ARG002
        """Return the connection through which the host's output is read: its own."""
        return cluster.host(host)

    def host(self, cluster: Site, run: str, host: str) -> Host:  # noqa: ARG002
        """Return the connection to the host."""
        return cluster.host(host)


LAUNCHER = Ssh()


def _plan(site: Site, options: RunOptions, *, dry: bool) -> tuple[LaunchPlan, list[Host]]:
    """Refuse an array; return the run's plan and its hosts, ordered by member index. ``dry``: sync nothing."""
    from clusterddp.launch.plan_run import plan_run  # noqa: PLC0415 - other commands start nothing

    if options.array:
        raise UsageError("--array: only Slurm has arrays of runs", remedy="leave it out, or give --launcher slurm")
    return plan_run(site, options, dry=dry)


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """The result of a start on all hosts."""

    spools: Mapping[str, str]  # each host's spool by host name
    tell: bool = False  # whether the hosts notify the webhook about the run
    notices: tuple[str, ...] = ()  # messages about that and about the starts, a line each


def launch(
    hosts: Sequence[Host], plan: LaunchPlan, secrets: Mapping[str, str], webhook: Webhook | None = None
) -> Launched:
    """Start the plan's nodes on ``hosts``, one for each member.

    ``hosts``: the open hosts, in the order of the plan's members. ``secrets``: values by name; they travel as data and
    lie in one file on each host. ``webhook``: what the hosts are to tell of the run, if they can. Raises HostError if a
    host could not start; nothing is left running on those that answer.
    """
    key = random.token_hex(32)  # the key of run control; it is sent inside SSH only
    common = plan.common
    nodes = {host.name: plan.node_plan(position, common) for position, host in enumerate(hosts)}
    shared = SharedPlan.of(common)
    try:
        started = values(each(hosts, lambda host: start_node(host, nodes[host.name], secrets, key, webhook, shared)))
        answers = dict(zip(nodes, started, strict=True))
        spools = {name: answer.spool for name, answer in answers.items()}
        pairs = zip(plan.all_nodes, answers.values(), strict=True)
        peers = tuple((node.address, answer.control) for node, answer in pairs)
        unreachable = {name: answer.unreachable for name, answer in answers.items() if answer.unreachable}
        tell = webhook is not None and hosts[0].name not in unreachable  # the first host leads the run first
        stopped = _commit(hosts, spools, Ready(store=answers[hosts[0].name].store, peers=peers, tell=tell))
        if stopped:  # on a host at least: the run has ended before it began, and its verdict says so
            _stop_started(hosts, plan.run, stopped)
    except BaseException as error:  # Ctrl-C too
        _stop_started(
            hosts, plan.run, interrupt_reason(error) if isinstance(error, KeyboardInterrupt) else CLEANUP_REASON
        )
        raise
    plain_starts = {name: answer.not_warm for name, answer in answers.items() if answer.not_warm}
    notices = (*_webhook_notices(unreachable, tell=tell), *_plain_start_notices(plain_starts))
    return Launched(spools=spools, tell=tell, notices=notices)


def _plain_start_notices(reasons: Mapping[str, str]) -> Iterator[str]:
    """Report why hosts that have a warm server, or should have one, did not start the run from it."""
    for reason in dict.fromkeys(reasons.values()):
        hosts = [name for name, its in reasons.items() if its == reason]
        yield f"{folded_names(hosts)}: not from the warm server: {reason[:_MAX_REASON]}"


def _webhook_notices(unreachable: Mapping[str, str], *, tell: bool) -> Iterator[str]:
    """Report which hosts cannot reach the webhook."""
    hosts = folded_names(list(unreachable))
    why = ", ".join(sorted(set(unreachable.values())))
    if unreachable and tell:
        yield f"--notify: no way out from {hosts} ({why}): nobody is told while one of them leads the run"
    elif unreachable:
        yield f"--notify: no way out from {hosts} ({why}): told from here, while this follows the run"


def pack(record: NamedTuple) -> bytes:
    """Compress a record's JSON, once for all hosts."""
    return zlib.compress(json.dumps(to_fields(record)).encode())


class SharedPlan(NamedTuple):
    """What the plans of all nodes have in common, packed once for all of them."""

    plan: NodePlan
    packed: bytes

    @classmethod
    def of(cls, plan: NodePlan) -> SharedPlan:
        """Pack a plan without the fields that each node has for itself."""
        return cls(plan, pack(plan))

    def rest_of(self, plan: NodePlan) -> dict[str, Any]:
        """Return the fields in which a node's plan differs."""
        names = [name for name in plan._fields if getattr(plan, name) is not getattr(self.plan, name)]
        return {name: to_plain(getattr(plan, name)) for name in names}


def start_node(
    host: Host,
    plan: NodePlan,
    secrets: Mapping[str, str],
    key: str,
    webhook: Webhook | None = None,
    shared: SharedPlan | None = None,
) -> StartedNode:
    """Start one node's supervisor, which waits for ``commit``; as ``start_node`` of remote/supervisor/start.py.

    It gets the values of the secrets that its plan names. The answer's ``unreachable`` says why the host cannot reach
    ``webhook``; empty if it can. ``shared`` is part of the plan.
    """
    mine = {name: secrets[name] for name in plan.secrets}
    hook = WebhookOrder(url=webhook.url, silence=webhook.silence) if webhook else None
    order = {
        "plan": shared.rest_of(plan) if shared else to_fields(plan),
        "secrets": mine,
        "key": key,
        "webhook": to_fields(hook) if hook else None,
    }
    packed = shared.packed if shared else b""
    request = StartRequest(shared=len(packed))
    data = [packed, json.dumps(order).encode()]
    answer = host.upload("start", to_fields(request), data, timeout=START_TIMEOUT)
    with reading_answer(host.name):
        return read_record(StartedNode, answer, "node")


def _commit(hosts: Sequence[Host], spools: Mapping[str, str], ready: Ready) -> str:
    """Let the agents start; return why another command has stopped the run meanwhile, or an empty text.

    Raises HostError if a host's supervisor has ended otherwise.
    """
    packed = pack(ready)  # it has the addresses of all nodes

    def commit(host: Host) -> CommittedNode:
        request = CommitRequest(spool=spools[host.name])
        answer = host.upload("commit", to_fields(request), [packed], timeout=30)
        with reading_answer(host.name):
            return read_record(CommittedNode, answer, "answer")

    stopped = ""
    for host, node in zip(hosts, values(each(hosts, commit)), strict=True):
        if node.exit and node.exit.state == RunState.STOPPED and not node.exit.ours:
            stopped = node.exit.reason
        elif not node.alive:
            reason = (node.exit and node.exit.reason) or "it left no record"
            raise HelperError(host.name, f"its supervisor ended before the start: {reason}")
    return stopped


def _stop_started(hosts: Sequence[Host], run: str, reason: str) -> None:
    """Stop whatever may have started; on an unreachable host, an uncommitted supervisor ends by itself."""

    def stop(host: Host) -> None:
        with contextlib.suppress(ClusterddpError):  # never started there, or out of reach
            host.call("stop", to_fields(StopRequest(run=run, hosts=(host.name,), grace=0.0, reason=reason)), timeout=60)

    each([host for host in hosts if not host.lost], stop)
