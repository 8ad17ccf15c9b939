"""The operation ``usage``: what this host's GPUs, cores, memory, disks and networks do now, for ``top``.

A host without GPUs, or whose driver does not answer, still tells the rest.
"""

import os
import threading
import time
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

from ..helper.request import Request
from ..shared.probes.gpu_records import Xid
from ..shared.probes.usage_records import GpuProcess, GpuUsage, HostUsage, NicCounters, UsageRequest
from ..shared.schema.record import to_fields
from ..system import cgroups, nvidia_smi, procfs
from ..system.bounded_child import Child
from ..system.small_files import sorted_names, text_of
from . import nvidia_smi_xml
from .health import owner
from .host import memory_bytes
from .xids import KernelLog

SMI_TIMEOUT = 8.0  # seconds
DISK_TIMEOUT = 1.0  # seconds: a dead file server never answers
MAX_NICS = 64
MAX_XIDS = 64
MAX_COMMAND = 200  # characters
SECTOR = 512  # bytes, whatever the disk has
_NO_DISKS = ("loop", "ram", "zram", "dm-", "md")  # the last two stand on disks that are counted
_WORD = 4  # bytes in which InfiniBand counts


class _Space(NamedTuple):
    """A file system's bytes: all, and those that are free for a user."""

    all: Optional[int] = None
    free: Optional[int] = None


class _Gpus(NamedTuple):
    """The GPUs of this host, and why they are not known (else None)."""

    gpus: Tuple[GpuUsage, ...] = ()
    error: Optional[str] = None


def usage(request: Request) -> Dict[str, Any]:
    """Operation: takes a ``UsageRequest``, returns a ``HostUsage`` (shared/probes/usage_records.py)."""
    asked = request.read_args(UsageRequest)
    session = dict(os.environ)
    program = nvidia_smi.find_program(session)
    smi = _start(program, session) if program else None
    log = KernelLog(session) if asked.xids and nvidia_smi.pci_gpus()["nvidia"] else None
    busy, total = cpu_ticks()
    read, written = disk_bytes()
    space = disk_space(request.state)
    now = time.monotonic_ns()
    nics = (*nic_bytes(), *infiniband_bytes())[:MAX_NICS]
    found = _gpus(smi)
    kernel = log.xids() if log else None
    return to_fields(
        HostUsage(
            time_ns=now,
            cores=usable_threads(),
            cpu_busy=busy,
            cpu_total=total,
            cpu_pressure=cpu_pressure(),
            memory=memory_bytes(),
            memory_free=_memory_free(),
            disk_read=read,
            disk_written=written,
            disk=space.all,
            disk_free=space.free,
            nics=nics,
            gpus=found.gpus,
            gpu_error=found.error,
            xids=_newest(kernel.xids) if kernel else (),
            xids_error=kernel.error if kernel else None,
        )
    )


def _start(program: str, env: Dict[str, str]) -> Optional[Child]:
    try:
        return Child([program, "-q", "-x"], env=env, timeout=SMI_TIMEOUT)
    except OSError:  # it is no program for this machine
        return None


def _gpus(smi: Optional[Child]) -> _Gpus:
    if smi is None:
        devices = nvidia_smi.pci_gpus()["nvidia"]
        return _Gpus(error="%d NVIDIA devices, but no nvidia-smi" % devices if devices else None)
    answer = smi.answer()
    if answer.status is None:
        return _Gpus(error="nvidia-smi did not answer within %d s" % SMI_TIMEOUT)
    if answer.status:
        return _Gpus(error=nvidia_smi.failure_reason(answer))
    try:
        found = nvidia_smi_xml.parse_usage(answer.text)
    except ValueError as error:
        return _Gpus(error=str(error)[:300])
    return _Gpus(tuple(gpu._replace(processes=tuple(map(_described, gpu.processes))) for gpu in found))


def _described(process: GpuProcess) -> GpuProcess:
    """A process with its user and its run; its name is what the driver says where it is not visible here."""
    found = owner(process.pid)
    stat = procfs.read_process(process.pid) if found else None
    ours = procfs.run_and_host(stat) if stat else None
    command = procfs.command_line(stat) if stat else process.command
    return process._replace(
        user=found.user if found else "", command=command[:MAX_COMMAND], run=ours[0][:MAX_COMMAND] if ours else ""
    )


def _newest(xids: Iterable[Xid]) -> Tuple[Xid, ...]:
    return tuple(sorted(xids, key=lambda xid: xid.seconds_ago)[:MAX_XIDS])


def usable_threads() -> int:
    """How many processes of a job can run at once here, by affinity and by the quota of control groups; at least 1."""
    quota = cgroups.limits().cpu_thousandths
    threads = len(os.sched_getaffinity(0))
    return max(1, threads if quota is None else min(threads, quota // 1000))


def cpu_ticks(path: str = "/proc/stat") -> Tuple[int, int]:
    """Clock ticks in which cores worked, and all ticks, since boot; idle is also who waits for a disk."""
    fields = text_of(path, 4096).partition("\n")[0].split()
    ticks = [int(field) for field in fields[1:9] if field.isdigit()]  # the guests' are in the users' already
    return (sum(ticks) - sum(ticks[3:5]), sum(ticks)) if len(ticks) > 4 else (0, 0)


def cpu_pressure(path: str = "/proc/pressure/cpu") -> Optional[float]:
    """The percentage of the last 10 s in which some process waited for a core; None where it is not counted."""
    for word in text_of(path, 4096).partition("\n")[0].split():
        name, _, value = word.partition("=")
        if name == "avg10" and value.replace(".", "", 1).isdigit():
            return float(value)
    return None


def _memory_free() -> Optional[int]:
    """Bytes of memory that a job here can still get, without the page cache, or less by a control group's limit."""
    known = [one for one in (procfs.available_bytes(), cgroups.limits().memory_left) if one is not None]
    return min(known) if known else None


def disk_bytes(path: str = "/proc/diskstats", root: str = "/sys/block") -> Tuple[int, int]:
    """Bytes read from and written to all disks since boot."""
    read = written = 0
    disks = {name for name in sorted_names(root) if not name.startswith(_NO_DISKS)}
    for line in text_of(path).splitlines():
        fields = line.split()
        if len(fields) > 9 and fields[2] in disks and fields[5].isdigit() and fields[9].isdigit():
            read += int(fields[5]) * SECTOR
            written += int(fields[9]) * SECTOR
    return read, written


def disk_space(folder: str) -> _Space:
    """The file system of a folder; unknown where it does not answer."""
    found: List[_Space] = []

    def look() -> None:
        try:
            stat = os.statvfs(folder)
        except OSError:  # it is not there
            return
        found.append(_Space(stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(DISK_TIMEOUT)
    return found[0] if found else _Space()


def nic_bytes(path: str = "/proc/net/dev") -> List[NicCounters]:
    """The counters of each network interface but the loopback."""
    found = []
    for line in text_of(path).splitlines():
        name, colon, rest = line.partition(":")
        fields = rest.split()
        if colon and len(fields) > 8 and fields[0].isdigit() and fields[8].isdigit() and name.strip() != "lo":
            found.append(NicCounters(name.strip(), int(fields[0]), int(fields[8])))
    return found


def infiniband_bytes(root: str = "/sys/class/infiniband") -> List[NicCounters]:
    """The counters of each InfiniBand or RoCE port: what they carry past the kernel is in no interface's."""
    found = []
    for device in sorted_names(root):
        for port in sorted_names(os.path.join(root, device, "ports")):
            folder = os.path.join(root, device, "ports", port, "counters")
            words = [text_of(os.path.join(folder, "port_%s_data" % way), 40).strip() for way in ("rcv", "xmit")]
            if all(word.isdigit() for word in words):
                found.append(NicCounters("%s:%s" % (device, port), int(words[0]) * _WORD, int(words[1]) * _WORD))
    return found
