"""The check that runs a small real job over all hosts, after all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.checks.catalog import connectivity, gpus, machine, network, software, storage
from clusterddp.checks.model import Check, Finding, unknown, warn
from clusterddp.checks.needs import DIALLED, FACTS, REHEARSAL
from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterddp.checks.evidence import Evidence, RehearsalSeen

CATEGORY = "Rehearsal"
STAGES = ("rendezvous", "import torch", "process group", "all-reduce", "barrier")  # as the job reports them
_HARMLESS = {"login-noise", "login-environment", "busy-gpus", "live-runs", "leftovers", "disk"}
_TABLES = (connectivity, software, gpus, machine, network, storage)
CAUSES = tuple(check.name for table in _TABLES for check in table.CHECKS if check.name not in _HARMLESS)


def _judge(evidence: Evidence) -> Iterable[Finding]:
    seen = evidence.rehearsal
    if seen is None:
        return
    hosts = tuple(one.name for one in evidence.hosts)
    yield from (warn(host, f"something of it may be left: {what}") for host, what in seen.left.items())
    if seen.failure:
        yield from _failed(seen, hosts)
        return
    behind = [host for host in hosts if _stage(seen, host) < len(STAGES)]
    if not behind:
        well = tuple(host for host in hosts if host not in seen.left)
        yield Finding(verdict="pass", hosts=well, message=f"{_size(seen, hosts)} in {seen.seconds:.1f} s")
    elif min(_stage(seen, host) for host in behind) < STAGES.index("import torch") + 1:
        text = (
            f"could not look: {_came(seen, hosts)} within {seen.seconds:.0f} s, and an import of torch may take longer"
        )
        yield from (unknown(host, text) for host in hosts)
    else:
        message = f"it hung: {_came(seen, hosts)} within {seen.seconds:.0f} s"
        yield Finding(verdict="fail", hosts=hosts, message=message)


def _failed(seen: RehearsalSeen, hosts: tuple[str, ...]) -> Iterable[Finding]:
    blamed = tuple(host for host in hosts if host in seen.blamed) or hosts
    came = f"{_came(seen, hosts)}: " if seen.reached else "it did not start: "
    yield Finding(verdict="fail", hosts=blamed, message=came + seen.failure, fix=seen.remedy)
    others = tuple(host for host in hosts if host not in blamed)
    if others:
        yield Finding(verdict="skipped", hosts=others, message=f"because of {folded_names(blamed)}")


def _stage(seen: RehearsalSeen, host: str) -> int:
    """The number of stages that a host has completed."""
    stage = seen.reached.get(host, "")
    return STAGES.index(stage) + 1 if stage in STAGES else 0


def _came(seen: RehearsalSeen, hosts: tuple[str, ...]) -> str:
    """Describe how far each host came, grouped by stage, those that came least far first."""
    by_stage: dict[int, list[str]] = {}
    for host in hosts:
        by_stage.setdefault(_stage(seen, host), []).append(host)
    parts = []
    for stage, names in sorted(by_stage.items()):
        came = f"came to {STAGES[stage - 1]!r}" if stage else "had started"
        missing = f", not to {STAGES[stage]!r}" if stage < len(STAGES) else ""
        parts.append(f"{folded_names(names)} {came}{missing}")
    return "; ".join(parts)


def _size(seen: RehearsalSeen, hosts: tuple[str, ...]) -> str:
    why = f" (not NCCL: {seen.why})" if seen.why else ""
    return f"{seen.backend}{why} over {counted(len(hosts), 'host')}: all-reduce checked"


CHECKS = (
    Check(
        name="rehearsal",
        category=CATEGORY,
        title="a small job of one process a host runs through",
        judge=_judge,
        needs=(FACTS, DIALLED, REHEARSAL),
        after=CAUSES,
        symptom="the job hangs or fails at the same place",
        fix="look at the stage it came to: `clusterddp run --debug-comm` of any script shows what NCCL and gloo do",
    ),
)
