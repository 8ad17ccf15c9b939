"""The records of the operations that try the network between hosts: ``listen``, ``dial``, ``drain`` and ``pour``."""

from typing import Mapping, NamedTuple, Optional, Tuple

from ..schema.fields import Fields
from ..schema.record import by_key, field, many, maybe, nested, record

DIALS_AT_ONCE = 256  # dials of a host under way, of three connections each; many systems allow a process 1024 files
# A dial's timeout is extended by the time for which the dialling process does not get to run, so many times at most.
DIAL_EXTENSIONS = 5


@record
class ListenRequest(NamedTuple):
    """What a listener is told."""

    ports: Tuple[int, int] = field(Fields.pair)  # the first and last of clusterddp_ports
    nonce: str = field(Fields.text)  # its proof that it is the host that was asked
    seconds: float = field(Fields.real, default=60.0)  # after which it ends by itself


@record
class Listening(NamedTuple):
    """The header of a listener's first frame: the ports on which it listens."""

    ports: Tuple[int, ...] = field(Fields.numbers)


@record
class DialTarget(NamedTuple):
    """An address to dial and the nonce expected there, how many small messages to send, and the size of a large one."""

    address: str = field(Fields.text)
    port: int = field(Fields.integer)
    nonce: str = field(Fields.text)
    echoes: int = field(Fields.number, default=0)
    bulk: int = field(Fields.number, default=0)  # bytes


@record
class DialRequest(NamedTuple):
    """What is to be dialled, all at once."""

    targets: Tuple[DialTarget, ...] = field(many(DialTarget))
    timeout: float = field(Fields.real, default=3.0)  # seconds to connect, and again for the measurement


OK, REFUSED, TIMEOUT, NO_ROUTE = "ok", "refused", "timeout", "no route"
WRONG_NONCE = "wrong nonce"  # another machine answered
NO_DATA = "no data"  # it connects, and nothing comes after
BLACK_HOLE = "black hole"  # it connects, and large packets are lost


@record
class DialResult(NamedTuple):
    """How one dial ended; ``word`` is one of those above, or the system's name for a rarer failure."""

    word: str = field(Fields.text)
    rtt_us: Optional[int] = field(Fields.maybe_number, default=None)  # the shortest round trip, by the kernel
    bulk: Optional[bool] = field(maybe(Fields.flag), default=None)  # None: no large message was sent, or it is unknown
    sent: int = field(Fields.number, default=0)  # TCP segments
    resent: int = field(Fields.number, default=0)


@record
class KernelTable(NamedTuple):
    """A table of the kernel that can be full; None for what it does not show."""

    used: Optional[int] = field(Fields.maybe_number, default=None)
    limit: Optional[int] = field(Fields.maybe_number, default=None)
    refused: Optional[int] = field(Fields.maybe_number, default=None)  # how often there was no room, since the boot


@record
class KernelCounters(NamedTuple):
    """What a kernel says of packets that it dropped itself."""

    listen_overflows: Optional[int] = field(Fields.maybe_number, default=None)  # connections no listener had room for
    # ``arp`` and ``ndisc``: the neighbours by IPv4 and IPv6; ``conntrack``: the connections that a firewall keeps
    tables: Mapping[str, KernelTable] = field(by_key(nested(KernelTable)), default={})


@record
class Heard(NamedTuple):
    """What a listener says at its end: who connected, and what its kernel dropped in the meantime."""

    callers: Mapping[str, Tuple[str, ...]] = field(by_key(Fields.texts), default={})  # port → the callers' addresses
    late_ms: int = field(Fields.number, default=0)  # the longest time for which it did not get to run
    before: KernelCounters = field(nested(KernelCounters), default=KernelCounters())
    after: KernelCounters = field(nested(KernelCounters), default=KernelCounters())


@record
class PourRequest(NamedTuple):
    """The listener to which data is sent."""

    address: str = field(Fields.text)
    port: int = field(Fields.number)
    nonce: str = field(Fields.text)


@record
class ByteCount(NamedTuple):
    """How many bytes a listener has received, and in which time."""

    bytes: int = field(Fields.number)
    ns: int = field(Fields.number)


@record
class Throughput(NamedTuple):
    """What the listener has counted of the data sent to it; None with an error, which may be a word of ``dial``."""

    counted: Optional[ByteCount] = field(maybe(nested(ByteCount)))
    error: Optional[str] = field(Fields.maybe_text, default=None)
