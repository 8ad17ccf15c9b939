"""A node's plan: all that one host is told to do in one attempt of a run, as both sides read and write it.

What makes the plan of a host that joins (``joined_plan``) and of the next attempt (``next_plan``) from another plan
stands here too. Pure. Fields have the names they have in ``plan.json``; those with a default came later than
the first version, so spools of every version can be read.
"""

from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..schema.fields import DamagedError, Fields
from ..schema.record import Reader, Readers, maybe, read_record, record, records
from .node_env import STATIC, Node, Policy, node_environment, yielding
from .run_record import READER as RUN_RECORD
from .run_record import RunRecord

BACKEND = "clusterddp"  # the name behind --rdzv-backend
OLDEST_TORCH = (2, 6)  # the first that looks for such entry points
PORT_TO_COME = "{port}"  # in a plan's --rdzv-endpoint, until the port of the store is known
AGENT_LOG = "agent.out"  # the agent's own output, in the spool's logs
FORMAT = 1  # of the spool; newer code reads all older ones


class Peer(NamedTuple):
    """What the other nodes of a run know of one."""

    host: str
    address: str
    nproc: int
    more: Mapping[str, Any] = {}

    @classmethod
    def of(cls, node: Node) -> "Peer":
        """A node as the others know it."""
        return cls(host=node.host, address=node.address, nproc=node.nproc)


class StorePlan(NamedTuple):
    """The rendezvous store, in the plan of the node that has it."""

    address: str
    more: Mapping[str, Any] = {}


class NodePlan(NamedTuple):
    """One node's part in one attempt. Its ``place`` is its number for the whole run, its ``node_rank`` may change."""

    run: str
    attempt: int
    node: str  # <node_rank>-<host>: the spool's folder
    node_rank: int
    nnodes: int
    host: str
    argv: Tuple[str, ...]  # torchrun's, without the interpreter; the same on every host
    python: str
    setup: Tuple[str, ...]
    env: Mapping[str, str]
    workdir: str
    cwd: str
    run_dir: str
    nproc: int
    world_size: int
    store: Optional[StorePlan]
    secrets: Tuple[str, ...]  # names
    clock_offset_ns: int
    clock_error_ns: int
    time_limit: Optional[float]
    record: RunRecord
    place: int = 0
    places: Tuple[int, ...] = (0,)  # that take part, in the order of their ranks
    peers: Tuple[Peer, ...] = ()  # of the whole run, by place; spares and hosts that joined behind
    standby: bool = False  # a spare
    joined: bool = False  # after the start
    elastic: bool = False
    min_nodes: int = 1
    max_nodes: int = 1
    program: str = ""  # one of remote/builtin in place of a script
    rdzv_backend: str = "c10d"
    policy: Policy = Policy(run="", env={})
    yielding: Tuple[str, ...] = ()  # variables of ``env`` that a value of the host wins over
    store_place: int = 0
    ports: Tuple[int, int] = (0, 0)  # first and last that may be bound
    log_limit: Optional[int] = None  # bytes
    relaunch: int = 0  # attempts that may follow the first
    lease: Optional[float] = None  # seconds without an operator after which the run ends; None: it outlives him
    worker_argv: Tuple[str, ...] = ()  # a worker's, without the interpreter, where workers are forked; else empty
    warm: float = 0.0  # seconds that a warm server stays for the next run
    bound: Tuple[int, int] = (0, 0)  # ports of the store and of run control, by the host
    carry: Tuple[str, ...] = ()  # paths below the workdir that a node which is new to an attempt gets from the others
    preload: Tuple[str, ...] = ()  # packages that the fork server and the warm server import besides torch
    manager: str = ""  # a workload manager that may end the node's processes, all at once, by SIGTERM
    format: int = FORMAT
    more: Mapping[str, Any] = {}  # fields of a newer version


def _environment(fields: Fields, name: str) -> Dict[str, str]:
    return fields.mapping(name, Fields.text)


_POLICY: Readers = {
    "run": Fields.text,
    "env": _environment,
    "debug_comm": Fields.flag,
    "elastic": Fields.flag,
    "tight": Fields.flag,
    "grace": Fields.real,
}
_PEER: Readers = {"host": Fields.filename, "address": Fields.text, "nproc": Fields.number}
_PLAN: Readers = {
    "run": Fields.filename,
    "attempt": Fields.number,
    "node": Fields.filename,
    "node_rank": Fields.number,
    "nnodes": Fields.number,
    "host": Fields.filename,
    "argv": Fields.texts,
    "python": Fields.text,
    "setup": Fields.texts,
    "env": _environment,
    "workdir": Fields.text,
    "cwd": Fields.text,
    "run_dir": Fields.text,
    "nproc": Fields.number,
    "world_size": Fields.number,
    "store": maybe(record(StorePlan, {"address": Fields.text})),
    "secrets": Fields.texts,
    "clock_offset_ns": Fields.integer,
    "clock_error_ns": Fields.number,
    "time_limit": Fields.maybe_real,
    "record": RUN_RECORD,
    "place": Fields.number,
    "places": Fields.numbers,
    "peers": records(Peer, _PEER),
    "standby": Fields.flag,
    "joined": Fields.flag,
    "elastic": Fields.flag,
    "min_nodes": Fields.number,
    "max_nodes": Fields.number,
    "program": Fields.text,
    "rdzv_backend": Fields.text,
    "policy": record(Policy, _POLICY),
    "yielding": Fields.texts,
    "store_place": Fields.number,
    "ports": Fields.pair,
    "log_limit": Fields.maybe_number,
    "relaunch": Fields.number,
    "lease": Fields.maybe_real,
    "worker_argv": Fields.texts,
    "warm": Fields.real,
    "bound": Fields.pair,
    "carry": Fields.texts,
    "preload": Fields.texts,
    "manager": Fields.text,
    "format": Fields.number,
}


def read_plan(data: Any) -> NodePlan:
    """A plan from its JSON object; ``written`` gives that back.

    Raises:
        DamagedError: a field is missing or wrong.
    """
    plan = read_record(NodePlan, _PLAN, data, "plan")
    named = [("place", plan.place), ("store_place", plan.store_place), *(("places", place) for place in plan.places)]
    for name, place in named if plan.peers else ():  # the first version knew none
        if place >= len(plan.peers):
            raise DamagedError("plan.%s is %d; the run has %d nodes" % (name, place, len(plan.peers)))
    return plan


PLAN_READER: Reader = record(NodePlan, _PLAN)  # of a field that holds one


def read_peer(data: Any) -> Peer:
    """A node as the others know it, from its JSON object.

    Raises:
        DamagedError: a field is missing or wrong.
    """
    return read_record(Peer, _PEER, data, "peer")


def spool_environment(spool: str, plan: NodePlan) -> Dict[str, str]:
    """What each attempt has of its own: where its spool lies on this host, and where agents are told it, the rank."""
    values = {"PET_LOG_DIR": spool + "/torch", "PYTHON_EXEC": spool + "/worker"}
    if plan.rdzv_backend == STATIC:
        values["PET_NODE_RANK"] = str(plan.node_rank)
    return values


def with_peer(plan: NodePlan, peer: Peer) -> NodePlan:
    """The plan once another host has joined the run: it has the next place."""
    return plan._replace(peers=(*plan.peers, peer), places=(*plan.places, len(plan.peers)))


def part_of(plan: NodePlan, node: Node, place: int) -> NodePlan:
    """The plan with what one node at a place has of its own; how many there are is left as it is."""
    return plan._replace(
        node="%d-%s" % (place, node.host),
        node_rank=place,
        place=place,
        host=node.host,
        python=node.python,
        env=node_environment(plan.policy, node),
        yielding=yielding(plan.policy, node),
        workdir=node.workdir,
        carry=node.carry,
        cwd=node.cwd,
        run_dir=node.run_dir,
        nproc=node.nproc,
        clock_offset_ns=node.clock_offset_ns,
        clock_error_ns=node.clock_error_ns,
    )


def joined_plan(plan: NodePlan, node: Node) -> NodePlan:
    """The plan of a host that joins a run.

    Args:
        plan: Another node's, whatever its own part.
        node: The host that joins; it has the next place.
    """
    return part_of(with_peer(plan, Peer.of(node)), node, len(plan.peers))._replace(
        setup=node.setup,
        ports=node.ports,
        joined=True,
        standby=False,
        store=None,
        worker_argv=plan.worker_argv if node.fork_server else (),
        warm=node.warm,
        preload=node.preload,
        record=plan.record._replace(
            hosts=(*plan.record.hosts, node.host),
            workdirs=dict(plan.record.workdirs, **{node.host: node.workdir}),
        ),
    )


def next_plan(plan: NodePlan, attempt: int, places: Sequence[int], store: int) -> NodePlan:
    """A node's plan of the next attempt.

    Args:
        plan: Its last one.
        attempt: The new number.
        places: Which nodes, in order of their ranks.
        store: The place that has the rendezvous store.
    """
    places = list(places)
    if plan.rdzv_backend == STATIC and store in places:  # rank 0's agent has the store
        places = [store, *(place for place in places if place != store)]
    rank = places.index(plan.place)
    peers = [plan.peers[place] for place in places]
    world = sum(peer.nproc for peer in peers)
    address = plan.peers[store].address
    endpoint = "%s:%s" % ("[%s]" % address if ":" in address else address, PORT_TO_COME)
    argv = list(plan.argv)
    for option, value in (("--rdzv-id", "%s.%d" % (plan.run, attempt)), ("--rdzv-endpoint", endpoint)):
        if option in argv:
            argv[argv.index(option) + 1] = value
    hosts = tuple(peer.host for peer in peers)
    before = {*plan.record.lost, *plan.record.hosts}
    lost = tuple(sorted(before - set(hosts)))  # something of the run may be left there
    return plan._replace(
        attempt=attempt,
        places=tuple(places),
        node_rank=rank,
        node="%d-%s" % (rank, plan.host),
        nnodes=len(places),
        world_size=world,
        standby=False,
        argv=tuple(argv),
        store=StorePlan(address) if store == plan.place else None,
        store_place=store,
        record=plan.record._replace(hosts=hosts, lost=lost, world_size=world, nnodes=len(places)),
    )
