"""The headers of frames of a transfer in which hosts pass chunks on to each other (remote/transfer/host_to_host.py).

The operator numbers units of the transfer: ranges in the list of all its chunks, which every host has from the
manifest. A frame carries one order or one report; a unit's bytes follow its ``UnitHead`` in frames without either.
"""

from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..schema.fields import Fields
from ..schema.record import bulk, field, maybe, nested, read_record, record, to_fields


def _port(fields: Fields, name: str) -> int:
    return fields.number(name, 65535)


@record
class Identity(NamedTuple):
    """One host's certificate and key for the others, and the authority's certificate to check theirs, as PEM."""

    certificate: str = field(Fields.text)
    key: str = field(Fields.text)
    authority: str = field(Fields.text)


@record
class JoinOrder(NamedTuple):
    """The order to exchange chunks with other hosts; answered by ``JoinReply``."""

    name: str = field(Fields.text)  # the host's in this transfer, as in its certificate
    identity: Identity = field(nested(Identity))
    address: str = field(Fields.text)  # to listen on
    ports: Tuple[int, ...] = field(Fields.numbers)  # first and last of those to listen on; none: it only fetches
    rate: Optional[float] = field(Fields.maybe_real, default=None)  # bytes a second of all uploads; None: no limit


@record
class FetchOrder(NamedTuple):
    """The order to fetch a unit from another host."""

    unit: int = field(Fields.number)
    ranges: Sequence[Any] = bulk(Fields.long_list)  # of its chunks: ``[first, after the last]`` each
    name: str = field(Fields.text)  # the other host's in this transfer
    address: str = field(Fields.text)
    port: int = field(_port)


@record
class UnitHead(NamedTuple):
    """What comes before a unit, which is a bundle."""

    unit: int = field(Fields.number)
    bytes: int = field(Fields.number)  # of the bundle


@record
class TransferOrder(NamedTuple):
    """What the operator orders in a frame's header; a frame of a unit's bytes has none of these."""

    join: Optional[JoinOrder] = field(maybe(nested(JoinOrder)), default=None)
    get: Optional[FetchOrder] = field(maybe(nested(FetchOrder)), default=None)
    head: Optional[UnitHead] = field(maybe(nested(UnitHead)), default=None)


@record
class HostReady(NamedTuple):
    """A host is ready for chunks, and may be for other hosts."""

    where: Mapping[str, Any] = field(Fields.raw)  # its addresses, as among its facts
    live: bool = field(Fields.flag)  # a run is live there


@record
class UnitFailed(NamedTuple):
    """A host could not fetch a unit from another."""

    unit: int = field(Fields.number)
    source: str = field(Fields.text)  # the other host's name in this transfer
    why: str = field(Fields.text)
    reached: bool = field(Fields.flag)  # the other host could be reached


@record
class JoinReply(NamedTuple):
    """The answer to a ``JoinOrder``."""

    port: Optional[int] = field(maybe(_port))  # where it listens; None: it only fetches
    why: str = field(Fields.text)  # why it does neither; empty: it takes part


@record
class TransferReport(NamedTuple):
    """What a host reports in a frame's header: one of these."""

    here: Optional[HostReady] = field(maybe(nested(HostReady)), default=None)
    have: Optional[int] = field(Fields.maybe_number, default=None)  # this unit is written
    failed: Optional[UnitFailed] = field(maybe(nested(UnitFailed)), default=None)
    port: Optional[JoinReply] = field(maybe(nested(JoinReply)), default=None)


def read_order(header: Any) -> TransferOrder:
    """Read the operator's frame; raises DamagedError."""
    return read_record(TransferOrder, header, "order")


def read_report(header: Any) -> TransferReport:
    """Read a host's frame; raises DamagedError."""
    return read_record(TransferReport, header, "report")


def header_of(one: Any) -> Dict[str, Any]:
    """Return an order or report as a frame's header, without what is not given."""
    return {name: value for name, value in to_fields(one).items() if value is not None}
