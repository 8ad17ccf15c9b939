"""The request and the answer of ``usage``: what a host's GPUs, cores, memory, disks and networks do now.

Counters grow from the host's boot; two answers give rates. ``time_ns`` is a clock of the host that nobody sets.
"""

from typing import NamedTuple, Optional, Tuple

from ..schema.fields import Fields
from ..schema.record import field, many, record
from .gpu_records import Xid


@record
class UsageRequest(NamedTuple):
    """``usage``; reading the kernel log takes longest, so its Xids are asked for more rarely."""

    xids: bool = field(Fields.flag)


@record
class GpuProcess(NamedTuple):
    """A process that holds memory of a GPU; ``run`` is empty if it is none of ours, or another user's."""

    pid: int = field(Fields.number)
    user: str = field(Fields.text, default="")  # empty: it is not visible here
    command: str = field(Fields.text, default="")
    memory_mib: Optional[int] = field(Fields.maybe_number, default=None)
    run: str = field(Fields.text, default="")


@record
class GpuUsage(NamedTuple):
    """One GPU; None for what the driver does not report."""

    number: int = field(Fields.number)  # nvidia-smi's
    uuid: str = field(Fields.text)
    name: str = field(Fields.text)
    bus: str = field(Fields.text)
    busy_percent: Optional[int] = field(Fields.maybe_number, default=None)
    used_mib: Optional[int] = field(Fields.maybe_number, default=None)
    memory_mib: Optional[int] = field(Fields.maybe_number, default=None)
    watts: Optional[int] = field(Fields.maybe_number, default=None)
    celsius: Optional[int] = field(Fields.maybe_number, default=None)
    processes: Tuple[GpuProcess, ...] = field(many(GpuProcess), default=())


@record
class NicCounters(NamedTuple):
    """The bytes that one network interface or InfiniBand port has received and sent."""

    name: str = field(Fields.text)
    received: int = field(Fields.number)
    sent: int = field(Fields.number)


@record
class HostUsage(NamedTuple):
    """The answer."""

    time_ns: int = field(Fields.number)
    cores: int = field(Fields.number)  # that a job here may use, hardware threads counted
    cpu_busy: int = field(Fields.number)  # clock ticks of all cores
    cpu_total: int = field(Fields.number)
    # of the last 10 s, the share in which a process waited for a core; None: this kernel does not tell
    cpu_pressure: Optional[float] = field(Fields.maybe_real, default=None)
    memory: Optional[int] = field(Fields.maybe_number, default=None)  # bytes
    memory_free: Optional[int] = field(Fields.maybe_number, default=None)
    disk_read: int = field(Fields.number, default=0)  # bytes of all disks
    disk_written: int = field(Fields.number, default=0)
    disk: Optional[int] = field(Fields.maybe_number, default=None)  # bytes of the file system with the state folder
    disk_free: Optional[int] = field(Fields.maybe_number, default=None)
    nics: Tuple[NicCounters, ...] = field(many(NicCounters), default=())
    gpus: Tuple[GpuUsage, ...] = field(many(GpuUsage), default=())
    gpu_error: Optional[str] = field(Fields.maybe_text, default=None)  # why its GPUs are not known
    xids: Tuple[Xid, ...] = field(many(Xid), default=())
    xids_error: Optional[str] = field(Fields.maybe_text, default=None)
