"""What `top` shows of hosts and ranks at one moment, as values and as JSON (docs/labels-and-json.md). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterddp.remote.shared.collectives.hang_judge import UNDECIDED
from clusterddp.remote.shared.collectives.lateness import ALWAYS, IN_TURN, LateRanks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.remote.shared.collectives.pace_records import WorkerPace
    from clusterddp.remote.shared.probes.gpu_records import Xid
    from clusterddp.remote.shared.probes.usage_records import GpuUsage, HostUsage


@dataclass(frozen=True, kw_only=True, slots=True)
class NicRate:
    """Bytes a second of one network interface."""

    name: str
    received: float
    sent: float


@dataclass(frozen=True, kw_only=True, slots=True)
class HostLook:
    """One host: what it answered, and the answer before, which gives the rates."""

    name: str
    usage: HostUsage | None = None
    before: HostUsage | None = None
    xids: tuple[Xid, ...] = ()
    xids_error: str | None = None
    error: str = ""  # why it has not answered, or not all

    @property
    def _seconds(self) -> float:
        """The time between the two answers; 0 where there is no earlier one, or the host was restarted."""
        return max(0, self.usage.time_ns - self.before.time_ns) / 1e9 if self.usage and self.before else 0.0

    @property
    def cpu(self) -> float | None:
        """The share of its cores' time that was used; None while there is no rate."""
        if not self.usage or not self.before or self.usage.cpu_total <= self.before.cpu_total:
            return None
        return min(
            1.0, _less(self.usage.cpu_busy, self.before.cpu_busy) / (self.usage.cpu_total - self.before.cpu_total)
        )

    @property
    def memory_used(self) -> int | None:
        """Bytes of memory in use."""
        usage = self.usage
        if not usage or usage.memory is None or usage.memory_free is None:
            return None
        return _less(usage.memory, usage.memory_free)

    @property
    def disk_rates(self) -> tuple[float | None, float | None]:
        """Bytes a second read from and written to its disks; None while there is no rate."""
        if not self._seconds or not self.usage or not self.before:
            return None, None
        read = _less(self.usage.disk_read, self.before.disk_read)
        return read / self._seconds, _less(self.usage.disk_written, self.before.disk_written) / self._seconds

    @property
    def nics(self) -> tuple[NicRate, ...]:
        """The rates of its network interfaces, the busiest first; empty while there are none."""
        if not self._seconds or not self.usage or not self.before:
            return ()
        earlier = {nic.name: nic for nic in self.before.nics}
        found = [
            NicRate(
                name=nic.name,
                received=_less(nic.received, earlier[nic.name].received) / self._seconds,
                sent=_less(nic.sent, earlier[nic.name].sent) / self._seconds,
            )
            for nic in self.usage.nics
            if nic.name in earlier
        ]
        return tuple(sorted(found, key=lambda nic: -(nic.received + nic.sent)))

    def to_json(self) -> dict[str, Any]:
        """Return one object of ``hosts``."""
        usage, rates = self.usage, self.disk_rates
        value: dict[str, Any] = {
            "name": self.name,
            "error": self.error or None,
            "cores": usage.cores if usage else None,
            "cpu": _rounded(self.cpu),
            "cpu_pressure": usage.cpu_pressure if usage else None,
            "memory": usage.memory if usage else None,
            "memory_used": self.memory_used,
            "disk": usage.disk if usage else None,
            "disk_free": usage.disk_free if usage else None,
            "disk_read_per_s": _rounded(rates[0]),
            "disk_written_per_s": _rounded(rates[1]),
            "nics": [
                {"name": nic.name, "received_per_s": _rounded(nic.received), "sent_per_s": _rounded(nic.sent)}
                for nic in self.nics
            ],
            "gpus": [_gpu_json(gpu) for gpu in usage.gpus] if usage else [],
            "gpu_error": usage.gpu_error if usage else None,
        }
        return {**value, "xids": [xid._asdict() for xid in self.xids], "xids_error": self.xids_error}


@dataclass(frozen=True, kw_only=True, slots=True)
class RankLook:
    """One live worker, as of the last time that ranks were asked."""

    host: str
    pace: WorkerPace
    late_ms: float | None = None  # the median time after the first rank in each step

    def to_json(self) -> dict[str, Any]:
        """Return one object of ``ranks``."""
        pace = self.pace
        return {
            "rank": pace.rank,
            "host": self.host,
            "local_rank": pace.local_rank,
            "pid": pace.pid,
            "collectives_per_s": pace.per_second,
            "late_ms": _rounded(self.late_ms),
            "output_age_s": None if pace.output_ms is None else pace.output_ms / 1000,
            "memory": pace.memory,
            "waits": list(pace.waits),
            "why": pace.why or None,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class TopLook:
    """All that `top` shows at one moment; without a live run the ranks are empty and ``late`` is None."""

    time: float  # seconds since the epoch
    hosts: tuple[HostLook, ...]
    run: str | None = None
    name: str | None = None
    state: str | None = None
    started: float | None = None
    time_left: float | None = None  # seconds until its time limit; None: it has none
    ranks: tuple[RankLook, ...] = ()
    late: LateRanks | None = None
    notices: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """Who is late, in a sentence; empty without a live run."""
        return _sentence(self.late, self.ranks) if self.late else ""

    def to_json(self) -> dict[str, Any]:
        """Return the object of ``top --json``."""
        late = self.late
        return {
            "time": round(self.time, 3),
            "run": self.run,
            "name": self.name,
            "state": self.state,
            "started": self.started,
            "time_left": self.time_left,
            "late": {
                "kind": late.kind,
                "ranks": list(late.ranks),
                "excess_ms": late.excess_ms,
                "share": _rounded(late.share),
                "steps": late.steps,
                "sentence": self.sentence,
            }
            if late
            else None,
            "ranks": [rank.to_json() for rank in self.ranks],
            "hosts": [host.to_json() for host in self.hosts],
            "notices": list(self.notices),
        }


def _less(now: int, before: int) -> int:
    """Return by how much a counter has grown; 0 if it began anew."""
    return max(0, now - before)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _gpu_json(gpu: GpuUsage) -> dict[str, Any]:
    return {**gpu._asdict(), "processes": [process._asdict() for process in gpu.processes]}


def _sentence(late: LateRanks, ranks: Sequence[RankLook]) -> str:
    if late.kind == UNDECIDED:
        return f"who is late is undecided: {late.reason}"
    places = {one.pace.rank: f"{one.host}:{one.pace.local_rank}" for one in ranks}
    named = ", ".join(f"{rank} ({places[rank]})" if rank in places else str(rank) for rank in late.ranks)
    after = f"{late.excess_ms:.1f} ms (median) after the second-latest rank"
    if late.kind == ALWAYS:
        who = f"rank {named} is" if len(late.ranks) == 1 else f"ranks {named} are"
        return f"{who} late in each step: {after}, the last in {late.share:.0%} of {late.steps} steps"
    if late.kind == IN_TURN:
        return (
            f"ranks {named} are late in turn: the last one of a step comes {after}; no rank alone holds the others up"
        )
    return f"no rank is late ({late.steps} steps)"
