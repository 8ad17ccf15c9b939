"""Draw a look of `top`: the run, who is late, its ranks, the hosts, their GPUs, and who holds these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.cli.tables import Table, drawn, escape
from clusterddp.remote.shared.collectives.lateness import ALWAYS, IN_TURN
from clusterddp.remote.shared.text.counted import counted
from clusterddp.remote.shared.text.short_duration import ago
from clusterddp.text.units import human_duration, human_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.remote.shared.probes.gpu_records import Xid
    from clusterddp.remote.shared.probes.usage_records import GpuUsage
    from clusterddp.runs.top_looks import HostLook, TopLook

_FULL = 0.9  # of memory or a disk, from which on it is shown in red
_HOT = 85  # degrees, likewise
_MIB = 1 << 20
_RECENT = 3600  # seconds: an Xid that is older is not shown, --json has it


def lines(look: TopLook) -> list[str]:
    """Return the look as lines for this output, as wide as it is."""
    shown = [escape(line) for line in _head(look)]
    if look.sentence:
        style = {ALWAYS: "bold red", IN_TURN: "yellow"}.get(look.late.kind if look.late else "")
        shown.append(f"[{style}]{escape(look.sentence)}[/]" if style else escape(look.sentence))
    shown += [escape(notice) for notice in look.notices]
    tables = [_ranks(look), _hosts(look), _gpus(look)]
    if look.late is None:
        tables.append(_holders(look))
    return drawn([*shown, *(table for table in tables if len(table.rows) > 1), *map(escape, _complaints(look))])


def _head(look: TopLook) -> Iterator[str]:
    if look.run is None:
        yield "no run of this project is live"
        return
    name = f" ({look.name})" if look.name else ""
    age = f" for {human_duration(look.time - look.started)}" if look.started and look.late is not None else ""
    left = f"; {human_duration(look.time_left)} to its time limit" if look.time_left is not None else ""
    ranks = f", {counted(len(look.ranks), 'rank')}" if look.ranks else ""  # none of a run that is over
    yield f"run {look.run}{name}: {look.state}{age}{ranks}{left}"


def _ranks(look: TopLook) -> Table:
    table = Table("rank", "worker", "calls/s", "late", "memory", "output", "waits", long=True)
    late = set(look.late.ranks) if look.late else set()
    for one in sorted(look.ranks, key=lambda one: (one.pace.rank not in late, one.pace.rank)):
        pace = one.pace
        style = "bold red" if pace.rank in late else ""
        behind = "-" if one.late_ms is None else f"{one.late_ms:.1f} ms"
        printed = "-" if pace.output_ms is None else ago(pace.output_ms / 1000)
        table.add(
            f"[{style}]{pace.rank}[/]" if style else str(pace.rank),
            escape(f"{one.host}:{pace.local_rank}"),
            f"{pace.per_second:.1f}" if not pace.why else "-",
            f"[{style}]{behind}[/]" if style else behind,
            short_size(pace.memory),
            printed,
            escape(pace.why or ", ".join(pace.waits) or "-"),
        )
    return table


def _hosts(look: TopLook) -> Table:
    table = Table("host", "cpu", "memory", "disk", "read/s", "write/s", "nic", "in/s", "out/s")
    for host in look.hosts:
        cpu = "-" if host.cpu is None else f"{host.cpu:.0%}"
        nic = host.nics[0] if host.nics else None  # the busiest one
        network = (escape(nic.name), short_size(nic.received), short_size(nic.sent)) if nic else ("-",) * 3
        if host.usage:
            table.add(escape(host.name), cpu, _memory(host), _disk(host), *map(short_size, host.disk_rates), *network)
        else:
            table.add(escape(host.name), "[red]no answer[/]", *("-",) * 7)
    return table


def _memory(host: HostLook) -> str:
    used, memory = host.memory_used, host.usage.memory if host.usage else None
    if used is None or not memory:
        return "-"
    return _marked(f"{short_size(used)}/{short_size(memory)}", red=used > _FULL * memory)


def _disk(host: HostLook) -> str:
    disk, free = (host.usage.disk, host.usage.disk_free) if host.usage else (None, None)
    if not disk or free is None:
        return "-"
    return _marked(f"{1 - min(1, free / disk):.0%}", red=free < (1 - _FULL) * disk)


def _gpus(look: TopLook) -> Table:
    table = Table("GPU", "use", "memory", "power", "temperature", "Xids")
    for host, gpu in _each_gpu(look):
        used, memory = gpu.used_mib, gpu.memory_mib
        hot = gpu.celsius is not None and gpu.celsius >= _HOT
        table.add(
            escape(f"{host.name}:{gpu.number}"),
            "-" if gpu.busy_percent is None else f"{gpu.busy_percent}%",
            "-" if used is None or memory is None else f"{short_size(used * _MIB)}/{short_size(memory * _MIB)}",
            "-" if gpu.watts is None else f"{gpu.watts} W",
            "-" if gpu.celsius is None else _marked(f"{gpu.celsius} °C", red=hot),
            _xids([xid for xid in host.xids if _same_bus(xid.bus, gpu.bus)]),
        )
    return table


def _holders(look: TopLook) -> Table:
    """Who holds which GPU; one that nobody holds is free."""
    table = Table("GPU", "held by", "run", "memory", "process", long=True)
    for host, gpu in _each_gpu(look):
        name = escape(f"{host.name}:{gpu.number}")
        for process in gpu.processes:
            memory = "-" if process.memory_mib is None else short_size(process.memory_mib * _MIB)
            command = f"{process.pid} {process.command}"
            table.add(name, escape(process.user or "?"), escape(process.run or "-"), memory, escape(command))
        if not gpu.processes:
            table.add(name, "nobody", "-", "-", "-")
    return table


def _each_gpu(look: TopLook) -> Iterator[tuple[HostLook, GpuUsage]]:
    for host in look.hosts:
        for gpu in host.usage.gpus if host.usage else ():
            yield host, gpu


def _complaints(look: TopLook) -> Iterator[str]:
    """Yield a line for what a host could not tell."""
    for host in look.hosts:
        if host.error:
            yield f"{host.name}: {host.error}"
        if host.usage and host.usage.gpu_error:
            yield f"{host.name}: its GPUs are not known: {host.usage.gpu_error}"
        if host.xids_error:
            yield f"{host.name}: its Xids are not known: {host.xids_error}"


def _xids(xids: list[Xid]) -> str:
    """Return the recent Xids, the newest first."""
    recent = sorted((xid for xid in xids if xid.seconds_ago <= _RECENT), key=lambda xid: xid.seconds_ago)
    return _marked(", ".join(f"{xid.xid} {ago(xid.seconds_ago)}" for xid in recent[:3]), red=True) if recent else "-"


def _same_bus(a: str, b: str) -> bool:
    """Whether two PCI addresses are one: a domain has four digits or eight, and the kernel leaves the function out."""
    return _bus(a) == _bus(b) != ""


def _bus(address: str) -> str:
    return address.lower().partition(".")[0][-10:] if address.count(":") > 1 else ""


def _marked(text: str, *, red: bool) -> str:
    return f"[red]{text}[/]" if red else text


def short_size(size: float | None) -> str:
    """Return a number of bytes in few letters: ``1.9G``."""
    return "-" if size is None else human_size(round(size)).partition(" byte")[0].replace(" ", "").rstrip("B")
