"""The records of the operation ``gpu_health``: what the doctor asks of a host's NVIDIA GPUs, and the host's answer."""

from typing import Mapping, NamedTuple, Optional, Tuple

from ..schema.fields import Fields
from ..schema.record import by_key, field, many, maybe, nested, record
from .facts_records import PythonQuery


@record
class GpuHealthRequest(NamedTuple):
    """What is asked of a host's GPUs: with which Python, and how many of them torch is to try (0: none)."""

    job: PythonQuery = field(nested(PythonQuery))
    devices: int = field(Fields.number)


@record
class Card(NamedTuple):
    """One GPU as ``nvidia-smi -q`` describes it; None or False for what the driver does not report."""

    number: int = field(Fields.number)  # nvidia-smi's
    uuid: str = field(Fields.text)
    bus: str = field(Fields.text, default="")
    mig: bool = field(Fields.flag, default=False)
    instances: int = field(Fields.number, default=0)  # MIG instances
    uncorrectable: Optional[int] = field(Fields.maybe_number, default=None)  # memory errors since the driver was loaded
    repair_pending: bool = field(Fields.flag, default=False)  # a reset will repair its memory
    repair_failed: bool = field(Fields.flag, default=False)
    recovery: Optional[str] = field(Fields.maybe_text, default=None)  # the recovery action that the driver demands
    slowdowns: Tuple[str, ...] = field(Fields.texts, default=())
    celsius: Optional[int] = field(Fields.maybe_number, default=None)
    power_watts: Optional[int] = field(Fields.maybe_number, default=None)  # the power limit in force
    default_watts: Optional[int] = field(Fields.maybe_number, default=None)
    width: Optional[int] = field(Fields.maybe_number, default=None)  # PCIe lanes
    most_width: Optional[int] = field(Fields.maybe_number, default=None)
    fabric_state: Optional[str] = field(Fields.maybe_text, default=None)
    fabric_status: Optional[str] = field(Fields.maybe_text, default=None)


@record
class Xid(NamedTuple):
    """The driver's messages with one Xid number about one GPU, in the kernel log since boot."""

    xid: int = field(Fields.number)
    bus: str = field(Fields.text)
    times: int = field(Fields.number)
    seconds_ago: int = field(Fields.number)  # of the latest one
    text: str = field(Fields.text, default="")


@record
class GpuStart(NamedTuple):
    """How torch started one of its GPUs; ``arches`` are the architectures that torch was built for."""

    number: int = field(Fields.number)  # torch's
    error: Optional[str] = field(Fields.maybe_text, default=None)
    capability: Optional[Tuple[int, int]] = field(maybe(Fields.pair), default=None)
    arches: Tuple[str, ...] = field(Fields.texts, default=())


@record
class GpuCopies(NamedTuple):
    """The outcome of copies between GPUs of one host, pairs of torch's numbers, that reach each other's memory."""

    error: Optional[str] = field(Fields.maybe_text, default=None)
    hangs: Optional[Tuple[int, int]] = field(maybe(Fields.pair), default=None)
    wrong: Tuple[Tuple[int, int], ...] = field(Fields.pairs, default=())
    tried: int = field(Fields.number, default=0)


@record
class GpuSmokeTest(NamedTuple):
    """How torch started and tried its GPUs; ``peers`` is None if fewer than two start. An ``error`` voids the rest."""

    error: Optional[str] = field(Fields.maybe_text, default=None)
    starts: Tuple[GpuStart, ...] = field(many(GpuStart), default=())
    peers: Optional[GpuCopies] = field(maybe(nested(GpuCopies)), default=None)


@record
class GpuHealth(NamedTuple):
    """The state of a host's NVIDIA GPUs; with a ``reason`` (why it was not asked) no other field is valid."""

    reason: str = field(Fields.text, default="")
    cards: Tuple[Card, ...] = field(many(Card), default=())
    error: Optional[str] = field(Fields.maybe_text, default=None)  # why nvidia-smi reported nothing
    links: Mapping[str, Tuple[int, int]] = field(by_key(Fields.pair), default={})  # by UUID: NVLinks up, and all
    links_error: Optional[str] = field(Fields.maybe_text, default=None)
    xids: Tuple[Xid, ...] = field(many(Xid), default=())
    xids_error: Optional[str] = field(Fields.maybe_text, default=None)
    switches: int = field(Fields.number, default=0)  # NVSwitches on the PCI bus
    fabric_manager: Optional[str] = field(Fields.maybe_text, default=None)  # the unit's state according to systemd
    peer_memory: bool = field(Fields.flag, default=False)
    open_driver: bool = field(Fields.flag, default=False)
    mellanox: Tuple[str, ...] = field(Fields.texts, default=())  # InfiniBand adapters that could reach a GPU's memory
    iommu: Optional[str] = field(Fields.maybe_text, default=None)
    smoke_test: Optional[GpuSmokeTest] = field(
        maybe(nested(GpuSmokeTest)), default=None
    )  # None: the GPUs were not tried
