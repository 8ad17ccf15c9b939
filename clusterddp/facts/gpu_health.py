"""The state of a host's NVIDIA GPUs, checked field by field when read from its answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterddp.facts.read_facts import facts_of, read_as

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """One GPU as ``nvidia-smi -q`` describes it; None or False for what the driver does not report."""

    index: int
    uuid: str
    bus: str = ""
    mig: bool = False
    instances: int = 0  # MIG instances
    uncorrectable: int | None = None  # memory errors since the driver was loaded
    repair_pending: bool = False  # a reset will repair its memory
    repair_failed: bool = False
    recovery: str | None = None  # the recovery action that the driver demands
    slowdowns: tuple[str, ...] = ()
    celsius: int | None = None
    power_watts: int | None = None  # the power limit in force
    default_watts: int | None = None
    width: int | None = None  # PCIe lanes
    most_width: int | None = None
    fabric_state: str | None = None
    fabric_status: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Xid:
    """The driver's messages with one Xid number about one GPU, in the kernel log since boot."""

    xid: int
    bus: str
    count: int
    seconds_ago: int  # of the latest one
    text: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuStart:
    """How torch started one of its GPUs; ``arches`` are the architectures that torch was built for."""

    index: int
    error: str | None = None
    capability: tuple[int, int] | None = None
    arches: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuCopies:
    """The outcome of copies between GPUs of one host that reach each other's memory directly."""

    error: str | None = None
    hangs: tuple[int, int] | None = None
    wrong: tuple[tuple[int, int], ...] = ()
    tried: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """How torch started and tried its GPUs; ``peers`` is None if fewer than two start. An ``error`` voids the rest."""

    error: str | None = None
    starts: tuple[GpuStart, ...] = ()
    peers: GpuCopies | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuHealth:
    """The state of a host's NVIDIA GPUs; with a ``reason`` (why it was not asked) no other field is valid."""

    reason: str = ""
    cards: tuple[Card, ...] = ()
    error: str | None = None  # why nvidia-smi reported nothing
    links: Mapping[str, tuple[int, int]] = field(
        default_factory=dict
    )  # by UUID: the number of NVLinks that are up, and of all
    links_error: str | None = None
    xids: tuple[Xid, ...] = ()
    xids_error: str | None = None
    switches: int = 0  # NVSwitches on the PCI bus
    fabric_manager: str | None = None  # the unit's state according to systemd
    peer_memory: bool = False
    open_driver: bool = False
    mellanox: tuple[str, ...] = ()  # InfiniBand adapters that could reach a GPU's memory
    iommu: str | None = None
    trial: Trial | None = None  # None: the GPUs were not tried

    @classmethod
    def from_json(cls, host: str, data: Any) -> GpuHealth:
        """Read the result of a host's ``gpu_health`` operation; ``HelperError`` if it is damaged."""
        return read_as(cls, facts_of(host, data), reason="")
