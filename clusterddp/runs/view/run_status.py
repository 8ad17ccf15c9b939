"""A run's status as ``status`` and ``runs`` show it, and as JSON (docs/labels-and-json.md). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from clusterddp.remote.shared.run.run_record import RunRecord
    from clusterddp.remote.shared.verdict.judge import Failure, HostEnd
    from clusterddp.runs.view.managed_job import JobStatus
    from clusterddp.runs.view.verdict_lines import Verdict

UNREACHABLE = "unreachable"  # the state of a host that did not answer
NOT_ASKED = "not asked"  # the same of one outside `--limit`, or no longer in the inventory


class LastHeard(NamedTuple):
    """The last status that another host of the run received from one that does not answer."""

    by: str  # the host that received it
    state: str
    seconds_ago: float


@dataclass(frozen=True, kw_only=True, slots=True)
class HostStatus:
    """One host's part in a run."""

    name: str
    state: str
    ranks: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    last_output: float | None = None  # seconds since the epoch
    heard: LastHeard | None = None
    end: HostEnd | None = None  # how its part ended by the kept verdict, if that says so

    def to_json(self) -> dict[str, Any]:
        """Return one object of the status's ``hosts`` or ``spares``."""
        value: dict[str, Any] = {"name": self.name, "state": self.state}
        value.update(ranks=list(self.ranks), pids=list(self.pids), gpus=list(self.gpus), last_output=self.last_output)
        return {**value, "told": self.heard._asdict()} if self.heard else value

    def end_json(self) -> dict[str, Any] | None:
        """Return the host's field ``end``."""
        end = self.end
        if end is None:
            return None
        value = {"state": end.state, "reason": end.reason or None, "ended": seconds(end.ended)}
        return {**value, "workdir": end.workdir, "exits": dict(end.exits)}


@dataclass(frozen=True, kw_only=True, slots=True)
class HostDetails:
    """What ``status`` shows beyond ``runs``."""

    failures: tuple[Failure, ...]  # first those that the run recovered from
    last_output: float | None  # of any worker, in seconds since the epoch
    hosts: tuple[HostStatus, ...]
    spares: tuple[HostStatus, ...]

    def to_json(self) -> dict[str, Any]:
        """Return its fields of the status object."""
        return {
            "failures": [failure.to_json() for failure in self.failures],
            "last_output": self.last_output,
            "hosts": [{**host.to_json(), "end": host.end_json()} for host in self.hosts],
            "spares": [host.to_json() for host in self.spares],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """A run's status without its hosts'; ``started`` and ``ended`` are seconds since the epoch."""

    run: str
    record: RunRecord
    state: str
    attempt: int
    round: int
    world_size: int | None
    started: float | None
    ended: float | None
    verdict: Verdict | None
    notices: tuple[str, ...]
    job: JobStatus | None

    def to_json(self) -> dict[str, Any]:
        """Return the status object, without what ``HostDetails`` has."""
        record, verdict = self.record, self.verdict
        return {
            "run": self.run,
            "name": record.name,
            "state": self.state,
            "attempt": self.attempt,
            "round": self.round,
            "world_size": self.world_size,
            "started": self.started,
            "ended": self.ended,
            "exit_code": verdict.exit_code if verdict else None,
            "verdict": verdict.line if verdict else None,
            "remedy": (verdict.remedy or None) if verdict else None,
            "notices": list(self.notices),
            "workdirs": dict(record.workdirs),
            "own_data": {host: list(paths) for host, paths in record.own_data.items()},
            "replaced": dict(record.replaced),
            "job": self.job.number if self.job else None,
            "waits": self.job.waiting_for or None if self.job else None,
            "launcher": record.launcher or "ssh",
            "script": record.script,
            "argv": list(record.argv),
            "code": record.code,
            "git": record.git,
            "environment": record.environment,
            "operator": record.operator,
            "versions": record.versions,
        }


def seconds(time_ns: int | None) -> float | None:
    """Return a time in seconds, as JSON has it."""
    return None if time_ns is None else round(time_ns / 1e9, 3)
