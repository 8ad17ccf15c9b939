"""A node's plan: all that one host is told to do in one attempt of a run, as both sides read and write it. Pure.

Fields have the names they have in ``plan.json``; those with a default may be missing there.
"""

from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..schema.fields import DamagedError, Fields
from ..schema.record import by_key, field, many, maybe, nested, read_record, record
from .host_settings import HostSettings
from .node_env import STATIC, Node, node_environment, yielding_variables
from .run_record import RunRecord
from .run_settings import RunSettings

BACKEND = "clusterddp"  # the name behind --rdzv-backend
OLDEST_TORCH = (2, 6)  # the first that looks for such entry points
PORT_PLACEHOLDER = "{port}"  # in a plan's --rdzv-endpoint, until the port of the store is known
PLAN, PEERS, SUPERVISOR, SECRETS = "plan.json", "peers.json", "supervisor.json", "secrets.json"  # in a spool
PARTICIPANTS = "CLUSTERDDP_PARTICIPANTS"  # in the agent's environment: the descriptor of its supervisor's socket
FORK_SOCKET = "fork.sock"  # the fork server's, in the spool
AGENT_LOG = "agent.out"  # the agent's own output, in the spool's logs
FORMAT = 1  # of the spool; newer code reads all older ones


def worker_key(start: int, local_rank: int) -> str:
    """``<start>.<local_rank>``, which names a worker's files in its node's spool."""
    return "%d.%d" % (start, local_rank)


@record
class Peer(NamedTuple):
    """What the other nodes of a run know of one."""

    host: str = field(Fields.filename)
    address: str = field(Fields.text)
    nproc: int = field(Fields.number)
    more: Mapping[str, Any] = {}

    @classmethod
    def of(cls, node: Node) -> "Peer":
        """A node as the others know it."""
        return cls(host=node.host, address=node.address, nproc=node.nproc)


@record
class StorePlan(NamedTuple):
    """The rendezvous store, in the plan of the node that has it."""

    address: str = field(Fields.text)
    more: Mapping[str, Any] = {}


@record
class NodePlan(NamedTuple):
    """One node's part in one attempt. ``member``: its index for the whole run; its ``node_rank`` may change."""

    run: str = field(Fields.filename)
    attempt: int = field(Fields.number)
    node: str = field(Fields.filename)  # <node_rank>-<host>: the spool's folder
    node_rank: int = field(Fields.number)
    nnodes: int = field(Fields.number)
    host: str = field(Fields.filename)
    argv: Tuple[str, ...] = field(Fields.texts)  # torchrun's, without the interpreter; the same on every host
    python: str = field(Fields.text)
    env: Mapping[str, str] = field(by_key(Fields.text))
    workdir: str = field(Fields.text)
    cwd: str = field(Fields.text)
    run_dir: str = field(Fields.text)
    nproc: int = field(Fields.number)
    world_size: int = field(Fields.number)
    store: Optional[StorePlan] = field(maybe(nested(StorePlan)))
    secrets: Tuple[str, ...] = field(Fields.texts)  # names
    clock_offset_ns: int = field(Fields.integer)
    clock_error_ns: int = field(Fields.number)
    record: RunRecord = field(nested(RunRecord))
    member: int = field(Fields.number, default=0)
    members: Tuple[int, ...] = field(Fields.numbers, default=(0,))  # that take part, in the order of their ranks
    # of the whole run, by member index; spares and hosts that joined behind
    peers: Tuple[Peer, ...] = field(many(Peer), default=())
    standby: bool = field(Fields.flag, default=False)  # a spare
    joined: bool = field(Fields.flag, default=False)  # after the start
    settings: RunSettings = field(nested(RunSettings), default=RunSettings())
    # variables of ``env`` for which a value in the host's environment or setup lines wins
    yielding: Tuple[str, ...] = field(Fields.texts, default=())
    store_member: int = field(Fields.number, default=0)
    host_settings: HostSettings = field(nested(HostSettings), default=HostSettings())
    # a worker's, without the interpreter, where workers are forked; else empty
    worker_argv: Tuple[str, ...] = field(Fields.texts, default=())
    bound: Tuple[int, int] = field(Fields.pair, default=(0, 0))  # ports of the store and of run control, by the host
    # a workload manager that may end the node's processes, all at once, by SIGTERM
    manager: str = field(Fields.text, default="")
    format: int = field(Fields.number, default=FORMAT)
    more: Mapping[str, Any] = {}  # fields of a newer version


def read_plan(data: Any) -> NodePlan:
    """A plan from its JSON object; ``to_fields`` is the inverse. Raises DamagedError if a field is missing or wrong."""
    plan = read_record(NodePlan, data, "plan")
    named = [
        ("member", plan.member),
        ("store_member", plan.store_member),
        *(("members", member) for member in plan.members),
    ]
    for name, member in named if plan.peers else ():  # the first version knew none
        if member >= len(plan.peers):
            raise DamagedError("plan.%s is %d; the run has %d nodes" % (name, member, len(plan.peers)))
    return plan


def spool_environment(spool: str, plan: NodePlan) -> Dict[str, str]:
    """The agent's variables that belong to one attempt: paths in its spool, and for STATIC the node's rank."""
    values = {"PET_LOG_DIR": spool + "/torch", "PYTHON_EXEC": spool + "/worker"}
    if plan.settings.rdzv_backend == STATIC:
        values["PET_NODE_RANK"] = str(plan.node_rank)
    return values


def with_members(plan: NodePlan, members: Sequence[int]) -> NodePlan:
    """Return the plan with these members; its record lists their hosts, and hosts of former members as lost."""
    hosts = tuple(plan.peers[member].host for member in members)
    before = {*plan.record.lost, *plan.record.hosts}
    lost = tuple(sorted(before - set(hosts)))  # something of the run may be left there
    return plan._replace(members=tuple(members), record=plan.record._replace(hosts=hosts, lost=lost))


def with_peer(plan: NodePlan, peer: Peer, *, takes_part: bool = True) -> NodePlan:
    """The plan once another host has joined the run: it has the next member index, and takes part or is a spare."""
    member, plan = len(plan.peers), plan._replace(peers=(*plan.peers, peer))
    if takes_part:
        return with_members(plan, (*plan.members, member))
    return plan._replace(record=plan.record._replace(spares=(*plan.record.spares, peer.host)))


def plan_for_node(plan: NodePlan, node: Node, member: int) -> NodePlan:
    """Fill in what concerns one node alone, at its member index; the number of nodes stays as it is."""
    return plan._replace(
        node="%d-%s" % (member, node.host),
        node_rank=member,
        member=member,
        host=node.host,
        python=node.python,
        env=node_environment(plan.run, plan.settings, node),
        yielding=yielding_variables(plan.settings, node),
        host_settings=node.settings,
        worker_argv=plan.worker_argv if node.settings.fork_server else (),
        workdir=node.workdir,
        cwd=node.cwd,
        run_dir=node.run_dir,
        nproc=node.nproc,
        clock_offset_ns=node.clock_offset_ns,
        clock_error_ns=node.clock_error_ns,
    )


def joined_plan(plan: NodePlan, node: Node) -> NodePlan:
    """The plan of a host that joins a run, with the next member index, from the plan of any other node."""
    joined = with_peer(plan, Peer.of(node))
    workdirs = dict(plan.record.workdirs, **{node.host: node.workdir})
    return plan_for_node(joined, node, len(plan.peers))._replace(
        joined=True, standby=False, store=None, record=joined.record._replace(workdirs=workdirs)
    )


def next_plan(plan: NodePlan, attempt: int, members: Sequence[int], store: int) -> NodePlan:
    """A node's plan of the next attempt, from its last one.

    ``members`` are the member indices that take part, ``store`` is the one whose node has the rendezvous store.
    """
    members = list(members)
    if plan.settings.rdzv_backend == STATIC and store in members:  # rank 0's agent has the store
        members = [store, *(member for member in members if member != store)]
    rank = members.index(plan.member)
    peers = [plan.peers[member] for member in members]
    world = sum(peer.nproc for peer in peers)
    address = plan.peers[store].address
    endpoint = "%s:%s" % ("[%s]" % address if ":" in address else address, PORT_PLACEHOLDER)
    argv = list(plan.argv)
    for option, value in (("--rdzv-id", "%s.%d" % (plan.run, attempt)), ("--rdzv-endpoint", endpoint)):
        if option in argv:
            argv[argv.index(option) + 1] = value
    plan = with_members(plan, members)
    return plan._replace(
        attempt=attempt,
        node_rank=rank,
        node="%d-%s" % (rank, plan.host),
        nnodes=len(members),
        world_size=world,
        standby=False,
        argv=tuple(argv),
        store=StorePlan(address) if store == plan.member else None,
        store_member=store,
        record=plan.record._replace(world_size=world, nnodes=len(members)),
    )
