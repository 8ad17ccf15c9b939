"""The small records in a node's spool, read by both sides: its exit, stop orders, the state of its peers."""

from typing import Any, Mapping, NamedTuple, Optional, Tuple

from ..schema.fields import Fields
from ..schema.record import by_key, field, many, nested, one_of, read_record, record
from .run_state import ENDED_STATES


def _addresses(fields: Fields, name: str) -> Tuple[Tuple[str, int], ...]:
    """Read a list of [address, port] pairs."""
    return fields.items(name, _address)


def _address(fields: Fields) -> Tuple[str, int]:
    pair = fields.array("item")
    if len(pair) != 2:
        raise fields.wrong("item", pair, "an address and a port")
    inner = Fields({"address": pair[0], "port": pair[1]}, fields.prefix + "item.")
    return inner.text("address"), inner.number("port", 65535)


@record
class SupervisorRecord(NamedTuple):
    """The process that is a node's supervisor (``supervisor.json``)."""

    pid: int = field(Fields.number)
    start_ticks: Optional[int] = field(Fields.maybe_number)  # since boot; None if /proc does not tell
    boot: str = field(Fields.text)  # the identity of the boot
    # when the host booted, by its clock when the supervisor started (ns); None: not known
    boot_time: Optional[int] = field(Fields.maybe_integer, default=None)


@record
class LeftProcess(NamedTuple):
    """A process that outlived its node."""

    pid: int = field(Fields.number)
    ticks: int = field(Fields.number, default=0)  # since boot, of its start
    command: str = field(Fields.text, default="")
    state: str = field(Fields.text, default="")  # the kernel's letter
    user: str = field(Fields.text, default="")  # the user it runs as, if another one
    more: Mapping[str, Any] = {}

    @property
    def identity(self) -> Tuple[int, int]:
        """Pid and start time, which identify it even when the pid is reused."""
        return self.pid, self.ticks


@record
class ExitRecord(NamedTuple):
    """How a node's part in an attempt ended (``exit.json``)."""

    state: str = field(one_of(*ENDED_STATES))
    exit_code: int = field(Fields.number)  # of this node alone; the verdict covers all nodes
    reason: str = field(Fields.text)
    ended: int = field(Fields.integer, default=0)  # ns, by the host's clock
    clock_step: int = field(Fields.integer, default=0)  # ns by which that was set since the supervisor started
    agent_exit: Optional[int] = field(Fields.maybe_number, default=None)  # torchrun's exit code; None: it did not run
    survivors: Tuple[LeftProcess, ...] = field(many(LeftProcess), default=())
    killed: int = field(Fields.number, default=0)  # processes that needed SIGKILL
    unseen: Tuple[int, ...] = field(Fields.numbers, default=())  # children that /proc did not show
    ours: bool = field(Fields.flag, default=False)  # a stop that nobody ordered
    by_stop: bool = field(Fields.flag, default=False)  # written by `stop`, because no supervisor had done so
    pending: bool = field(Fields.flag, default=False)  # another attempt may follow
    final: Optional[str] = field(Fields.maybe_text, default=None)  # why none follows, or which one
    more: Mapping[str, Any] = {}

    @property
    def ended_unstepped(self) -> int:
        """When it ended (ns), by the host's clock as it went when its offset was measured."""
        return self.ended - self.clock_step


@record
class StopOrder(NamedTuple):
    """An order to stop the run (``stop.json``)."""

    reason: str = field(Fields.text)
    grace: float = field(Fields.real)  # seconds between SIGTERM and SIGKILL
    more: Mapping[str, Any] = {}


@record
class Ready(NamedTuple):
    """The data that is known once every node is ready (``committed``)."""

    store: int = field(Fields.number, default=0)  # the rendezvous store's port
    peers: Tuple[Tuple[str, int], ...] = field(
        _addresses, default=()
    )  # address and port of run control, by member index
    tell: bool = field(Fields.flag, default=False)  # the hosts send the notices to the URL of ``run --notify``
    more: Mapping[str, Any] = {}


@record
class PeerStatus(NamedTuple):
    """A node's state as another node last heard it."""

    state: str = field(Fields.text)
    attempt: int = field(Fields.number)
    age: float = field(Fields.real)  # seconds
    more: Mapping[str, Any] = {}


@record
class PeersRecord(NamedTuple):
    """What a node knows about the others (``peers.json``)."""

    nodes: Mapping[str, PeerStatus] = field(by_key(nested(PeerStatus)))  # by host
    missing: Tuple[str, ...] = field(Fields.texts, default=())  # hosts out of reach
    # hosts that take no part in the attempt any more: lost, or failed
    excluded: Tuple[str, ...] = field(Fields.texts, default=())
    # the host that leads; None: no majority is within reach
    leader: Optional[str] = field(Fields.maybe_text, default=None)
    addresses: Tuple[Tuple[str, int], ...] = field(_addresses, default=())  # as in ``Ready.peers``
    time: int = field(Fields.integer, default=0)  # ns
    more: Mapping[str, Any] = {}


def read_exit(data: Any) -> ExitRecord:
    """Read an exit record from its JSON object; raises DamagedError."""
    return read_record(ExitRecord, data, "exit")


def read_stop_order(data: Any) -> StopOrder:
    """Read an order to stop from its JSON object; raises DamagedError."""
    return read_record(StopOrder, data, "stop")


def read_ready(data: Any) -> Ready:
    """Read the data of ``committed`` from its JSON object; raises DamagedError."""
    return read_record(Ready, data, "committed")


def read_peers(data: Any) -> PeersRecord:
    """Read ``peers.json`` from its JSON object; raises DamagedError."""
    return read_record(PeersRecord, data, "peers")
