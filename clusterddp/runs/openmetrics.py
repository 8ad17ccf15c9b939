"""What `top` saw as OpenMetrics text, and a file of it for a node exporter's textfile collector.

Every family is a gauge without timestamps: the collector reads the older format of Prometheus, in which such text means
the same.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clusterddp.remote.shared.probes.usage_records import GpuUsage
    from clusterddp.runs.top_looks import HostLook, RankLook, TopLook

FILE_MODE = 0o644  # another user's exporter reads it; it holds no command line, and no user's name
_MIB = 1 << 20


class Family(NamedTuple):
    """One family of metrics; its name ends with its unit, if it has one."""

    name: str
    help: str
    unit: str = ""


class Sample(NamedTuple):
    """One value; None where it is not known."""

    family: str
    labels: Mapping[str, str]
    value: float | None


FAMILIES = (
    Family("clusterddp_look_timestamp_seconds", "When these values were seen.", "seconds"),
    Family("clusterddp_host_up", "Whether the host answered (1) or not (0)."),
    Family("clusterddp_host_cpu_ratio", "Share of the time of its cores that was used.", "ratio"),
    Family("clusterddp_host_memory_bytes", "Memory that a job may use.", "bytes"),
    Family("clusterddp_host_memory_used_bytes", "Memory in use.", "bytes"),
    Family("clusterddp_host_disk_bytes", "Size of the file system with the state folder.", "bytes"),
    Family("clusterddp_host_disk_free_bytes", "Room in the file system with the state folder.", "bytes"),
    Family("clusterddp_host_disk_read_bytes_per_second", "Read from all disks.", "bytes_per_second"),
    Family("clusterddp_host_disk_written_bytes_per_second", "Written to all disks.", "bytes_per_second"),
    Family("clusterddp_host_network_received_bytes_per_second", "Received by an interface.", "bytes_per_second"),
    Family("clusterddp_host_network_sent_bytes_per_second", "Sent by an interface.", "bytes_per_second"),
    Family("clusterddp_host_xids", "Messages of the NVIDIA driver in the kernel log since boot."),
    Family("clusterddp_gpu_busy_ratio", "Share of the time in which the GPU computed.", "ratio"),
    Family("clusterddp_gpu_memory_bytes", "Memory of the GPU.", "bytes"),
    Family("clusterddp_gpu_memory_used_bytes", "Memory of the GPU in use.", "bytes"),
    Family("clusterddp_gpu_power_watts", "Power that the GPU draws.", "watts"),
    Family("clusterddp_gpu_temperature_celsius", "Temperature of the GPU.", "celsius"),
    Family("clusterddp_gpu_processes", "Processes that compute on the GPU."),
    Family("clusterddp_run_time_left_seconds", "Time until the limit of the run.", "seconds"),
    Family("clusterddp_rank_collectives_per_second", "Collective operations that the rank called a second."),
    Family("clusterddp_rank_lateness_seconds", "Median time after the first rank of a step.", "seconds"),
    Family("clusterddp_rank_late", "Whether the others wait for this rank in each step (1) or not (0)."),
    Family("clusterddp_rank_output_age_seconds", "Time since the rank printed.", "seconds"),
    Family("clusterddp_rank_memory_bytes", "Memory of the worker's process.", "bytes"),
)  # fmt: skip


def as_text(look: TopLook) -> str:
    """Return a look as OpenMetrics text, families without a known value left out."""
    samples: dict[str, dict[str, float]] = {}
    for sample in _samples(look):
        if sample.value is not None:  # of two with the same labels, which no reader would take, the last
            samples.setdefault(sample.family, {})[_series(sample)] = sample.value
    lines = []
    for family in FAMILIES:
        if family.name in samples:
            lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} gauge"]
            lines += [f"# UNIT {family.name} {family.unit}"] if family.unit else []
            lines += [f"{series} {value}" for series, value in samples[family.name].items()]
    return "\n".join([*lines, "# EOF", ""])


def write(path: Path, look: TopLook) -> None:
    """Replace the file by a look, as a whole: whoever reads it sees the earlier or this one. Raises OSError."""
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".new")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as out:
            out.write(as_text(look))
            os.fchmod(handle, FILE_MODE)
        Path(unfinished).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(unfinished).unlink()
        raise


def _series(sample: Sample) -> str:
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels.items())
    return f"{sample.family}{{{labels}}}" if labels else sample.family


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _samples(look: TopLook) -> Iterator[Sample]:
    yield Sample("clusterddp_look_timestamp_seconds", {}, round(look.time, 3))
    for host in look.hosts:
        yield from _host_samples(host)
    if look.run is not None:
        run = {"run": look.run, "name": look.name or ""}
        yield Sample("clusterddp_run_time_left_seconds", run, look.time_left)
        late = set(look.late.ranks) if look.late and look.late.kind == "always" else set()
        for rank in look.ranks:
            labels = {"run": look.run, "rank": str(rank.pace.rank), "host": rank.host}
            yield from _rank_samples(rank, labels, is_late=rank.pace.rank in late)


def _host_samples(host: HostLook) -> Iterator[Sample]:
    labels, usage, rates = {"host": host.name}, host.usage, host.disk_rates
    yield Sample("clusterddp_host_up", labels, int(usage is not None))
    if usage is None:
        return
    yield Sample("clusterddp_host_cpu_ratio", labels, host.cpu)
    yield Sample("clusterddp_host_memory_bytes", labels, usage.memory)
    yield Sample("clusterddp_host_memory_used_bytes", labels, host.memory_used)
    yield Sample("clusterddp_host_disk_bytes", labels, usage.disk)
    yield Sample("clusterddp_host_disk_free_bytes", labels, usage.disk_free)
    yield Sample("clusterddp_host_disk_read_bytes_per_second", labels, rates[0])
    yield Sample("clusterddp_host_disk_written_bytes_per_second", labels, rates[1])
    for nic in host.nics:
        of_nic = {**labels, "device": nic.name}
        yield Sample("clusterddp_host_network_received_bytes_per_second", of_nic, nic.received)
        yield Sample("clusterddp_host_network_sent_bytes_per_second", of_nic, nic.sent)
    for xid in host.xids:
        yield Sample("clusterddp_host_xids", {**labels, "xid": str(xid.xid), "bus": xid.bus}, xid.times)
    for gpu in usage.gpus:
        yield from _gpu_samples(gpu, {**labels, "gpu": str(gpu.number), "uuid": gpu.uuid})


def _gpu_samples(gpu: GpuUsage, labels: Mapping[str, str]) -> Iterator[Sample]:
    busy, used, memory = gpu.busy_percent, gpu.used_mib, gpu.memory_mib
    yield Sample("clusterddp_gpu_busy_ratio", labels, None if busy is None else busy / 100)
    yield Sample("clusterddp_gpu_memory_bytes", labels, None if memory is None else memory * _MIB)
    yield Sample("clusterddp_gpu_memory_used_bytes", labels, None if used is None else used * _MIB)
    yield Sample("clusterddp_gpu_power_watts", labels, gpu.watts)
    yield Sample("clusterddp_gpu_temperature_celsius", labels, gpu.celsius)
    yield Sample("clusterddp_gpu_processes", labels, len(gpu.processes))


def _rank_samples(rank: RankLook, labels: Mapping[str, str], *, is_late: bool) -> Iterator[Sample]:
    pace, late_ms, output_ms = rank.pace, rank.late_ms, rank.pace.output_ms
    yield Sample("clusterddp_rank_collectives_per_second", labels, pace.per_second)
    yield Sample("clusterddp_rank_lateness_seconds", labels, None if late_ms is None else late_ms / 1000)
    yield Sample("clusterddp_rank_late", labels, int(is_late))
    yield Sample("clusterddp_rank_output_age_seconds", labels, None if output_ms is None else output_ms / 1000)
    yield Sample("clusterddp_rank_memory_bytes", labels, pace.memory)
