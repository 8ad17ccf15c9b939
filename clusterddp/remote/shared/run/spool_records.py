"""The small records of a node's spool, as both sides read them: how it ended, orders, what it knows.

A field with a default may be missing.
"""

from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from ..schema.fields import Fields
from ..schema.record import Readers, read_record, record, records

ENDINGS = ("succeeded", "failed", "stopped", "lost")


class LeftProcess(NamedTuple):
    """A process that outlived its node."""

    pid: int
    ticks: int = 0  # since boot, of its start
    command: str = ""
    state: str = ""  # the kernel's letter
    user: str = ""  # whose rights it has, if they are another user's
    more: Mapping[str, Any] = {}


class ExitRecord(NamedTuple):
    """How a node's part in an attempt ended (``exit.json``)."""

    state: str  # one of ENDINGS
    exit_code: int  # this node's view; the verdict over all nodes is the operator's
    reason: str
    ended: int = 0  # ns, by the host's clock
    agent_exit: Optional[int] = None  # torchrun's exit code; None: it did not run
    survivors: Tuple[LeftProcess, ...] = ()
    killed: int = 0  # processes that needed SIGKILL
    unseen: Tuple[int, ...] = ()  # children that /proc did not show
    ours: bool = False  # a stop that nobody ordered
    by_stop: bool = False  # written by `stop`, for no supervisor did
    pending: bool = False  # another attempt may follow
    final: Optional[str] = None  # why none follows, or which one
    more: Mapping[str, Any] = {}


class StopOrder(NamedTuple):
    """The order that the run is to end (``stop.json``)."""

    reason: str
    grace: float  # seconds between SIGTERM and SIGKILL
    more: Mapping[str, Any] = {}


class Ready(NamedTuple):
    """What is known once every node is ready (``committed``)."""

    store: int = 0  # the rendezvous store's port
    peers: Tuple[Tuple[str, int], ...] = ()  # address and port of run control, by place
    tell: bool = False  # the hosts tell the URL of ``run --notify``
    more: Mapping[str, Any] = {}


class PeerStatus(NamedTuple):
    """A node as another one heard of it last."""

    state: str
    attempt: int
    age: float  # seconds
    more: Mapping[str, Any] = {}


class PeersRecord(NamedTuple):
    """What a node knows of the others (``peers.json``)."""

    nodes: Mapping[str, PeerStatus]  # by host
    missing: Tuple[str, ...] = ()  # hosts out of reach
    gone: Tuple[str, ...] = ()  # hosts that take no part in the attempt any more: lost, or failed
    lead: Optional[str] = None  # the host that leads; None: no majority is within reach
    addresses: Tuple[Tuple[str, int], ...] = ()  # as in ``Ready.peers``
    time: int = 0  # ns
    more: Mapping[str, Any] = {}


def _addresses(fields: Fields, name: str) -> Tuple[Tuple[str, int], ...]:
    """The reader of a list of [address, port]."""
    return fields.items(name, _address)


def _address(fields: Fields) -> Tuple[str, int]:
    pair = fields.array("item")
    if len(pair) != 2:
        raise fields.wrong("item", pair, "an address and a port")
    inner = Fields({"address": pair[0], "port": pair[1]}, fields.place + "item.")
    return inner.text("address"), inner.number("port", 65535)


def _by_host(fields: Fields, name: str) -> Dict[str, PeerStatus]:
    return fields.mapping(name, record(PeerStatus, _PEER_STATUS))


_LEFT: Readers = {
    "pid": Fields.number,
    "ticks": Fields.number,
    "command": Fields.text,
    "state": Fields.text,
    "user": Fields.text,
}
EXIT_RECORD: Readers = {
    "state": lambda fields, name: fields.check(name, ENDINGS.__contains__, "one of " + ", ".join(ENDINGS)),
    "exit_code": Fields.number,
    "reason": Fields.text,
    "ended": Fields.integer,
    "agent_exit": Fields.maybe_number,
    "survivors": records(LeftProcess, _LEFT),
    "killed": Fields.number,
    "unseen": Fields.numbers,
    "ours": Fields.flag,
    "by_stop": Fields.flag,
    "pending": Fields.flag,
    "final": Fields.maybe_text,
}
_STOP_ORDER: Readers = {"reason": Fields.text, "grace": Fields.real}
_READY: Readers = {"store": Fields.number, "peers": _addresses, "tell": Fields.flag}
_PEER_STATUS: Readers = {"state": Fields.text, "attempt": Fields.number, "age": Fields.real}
PEERS: Readers = {
    "nodes": _by_host,
    "missing": Fields.texts,
    "gone": Fields.texts,
    "lead": Fields.maybe_text,
    "addresses": _addresses,
    "time": Fields.integer,
}


def read_exit(data: Any) -> ExitRecord:
    """An exit record from its JSON object; raises DamagedError."""
    return read_record(ExitRecord, EXIT_RECORD, data, "exit")


def read_stop_order(data: Any) -> StopOrder:
    """An order to stop from its JSON object; raises DamagedError."""
    return read_record(StopOrder, _STOP_ORDER, data, "stop")


def read_ready(data: Any) -> Ready:
    """What is known when all are ready, from its JSON object; raises DamagedError."""
    return read_record(Ready, _READY, data, "committed")


def read_peers(data: Any) -> PeersRecord:
    """What a node knows of the others, from its JSON object; raises DamagedError."""
    return read_record(PeersRecord, PEERS, data, "peers")
