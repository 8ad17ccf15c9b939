"""The health of a host's NVIDIA GPUs as frozen values, checked field by field when read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterddp.facts.read_facts import facts_of, read_as

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """One GPU as ``nvidia-smi -q`` describes it; None or False for what its driver does not report."""

    index: int
    uuid: str
    bus: str = ""
    mig: bool = False
    instances: int = 0  # of MIG
    uncorrectable: int | None = None  # memory errors since the driver was loaded
    repair_pending: bool = False  # its memory is repaired when it is reset
    repair_failed: bool = False
    recovery: str | None = None  # what the driver asks for
    slowdowns: tuple[str, ...] = ()
    celsius: int | None = None
    power_watts: int | None = None  # the limit that is set
    default_watts: int | None = None
    width: int | None = None  # PCIe lanes
    most_width: int | None = None
    fabric_state: str | None = None
    fabric_status: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Xid:
    """One kind of message of the driver in the kernel log of this boot, about one GPU."""

    xid: int
    bus: str
    count: int
    seconds_ago: int  # the latest
    text: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuStart:
    """How one of torch's GPUs started; ``arches`` are those torch is built for."""

    index: int
    error: str | None = None
    capability: tuple[int, int] | None = None
    arches: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuCopies:
    """Copies between pairs of torch's GPUs that reach each other directly."""

    error: str | None = None
    hangs: tuple[int, int] | None = None
    wrong: tuple[tuple[int, int], ...] = ()
    tried: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """Torch's GPUs tried; ``peers`` is None where fewer than two start. With an ``error`` nothing else is valid."""

    error: str | None = None
    starts: tuple[GpuStart, ...] = ()
    peers: GpuCopies | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuHealth:
    """A host's NVIDIA GPUs; ``reason``: why they were not asked about, then no other field is valid."""

    reason: str = ""
    cards: tuple[Card, ...] = ()
    error: str | None = None  # why nvidia-smi told nothing
    links: Mapping[str, tuple[int, int]] = field(
        default_factory=dict
    )  # NVLinks that are up, and that there are, by UUID
    links_error: str | None = None
    xids: tuple[Xid, ...] = ()
    xids_error: str | None = None
    switches: int = 0  # NVSwitches on the PCI bus
    fabric_manager: str | None = None  # systemd's word for it
    peer_memory: bool = False
    open_driver: bool = False
    mellanox: tuple[str, ...] = ()  # InfiniBand adapters that could reach a GPU's memory
    iommu: str | None = None
    trial: Trial | None = None  # None: torch's GPUs were not tried

    @classmethod
    def from_json(cls, host: str, data: Any) -> GpuHealth:
        """Health from the result of a host's ``gpu_health`` operation.

        Raises:
            HelperError: a field is missing or no value of its kind.
        """
        return read_as(cls, facts_of(host, data), reason="")
