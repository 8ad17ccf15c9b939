"""The check that runs a small real job over all hosts, after all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.checks.catalog import connectivity, gpus, kernel_tables, machine, network, software, storage
from clusterddp.checks.model import Check, Finding, missing_data, warn
from clusterddp.checks.needs import DIALLED, FACTS, REHEARSAL
from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterddp.checks.evidence import Evidence, RehearsalEvidence

CATEGORY = "Rehearsal"
STAGES = ("rendezvous", "import torch", "process group", "all-reduce", "barrier")  # as the job reports them
_NO_CAUSES = {"login-noise", "login-environment", "busy-gpus", "live-runs", "leftovers", "disk"}
_TABLES = (connectivity, software, gpus, machine, kernel_tables, network, storage)
_IN_TABLES = tuple(check.name for table in _TABLES for check in table.CHECKS if check.name not in _NO_CAUSES)
CAUSES = (*_IN_TABLES, "black-hole")  # no other check of how good the network is fails


def _judge(evidence: Evidence) -> Iterable[Finding]:
    result = evidence.rehearsal
    if result is None:
        return
    hosts = evidence.names
    yield from (warn(host, f"something of it may be left: {what}") for host, what in result.left.items())
    if result.failure:
        yield from _failed(result, hosts)
        return
    behind = [host for host in hosts if _stage(result, host) < len(STAGES)]
    if not behind:
        well = tuple(host for host in hosts if host not in result.left)
        yield Finding(verdict="pass", hosts=well, message=f"{_success_text(result, hosts)} in {result.seconds:.1f} s")
    elif min(_stage(result, host) for host in behind) < STAGES.index("import torch") + 1:
        progress = f"{_progress_text(result, hosts)} within {result.seconds:.0f} s"
        text = f"{progress}, and an import of torch may take longer"
        yield from (missing_data(host, text) for host in hosts)
    else:
        message = f"it hung: {_progress_text(result, hosts)} within {result.seconds:.0f} s"
        yield Finding(verdict="fail", hosts=hosts, message=message)


def _failed(result: RehearsalEvidence, hosts: tuple[str, ...]) -> Iterable[Finding]:
    blamed = tuple(host for host in hosts if host in result.blamed) or hosts
    text = f"{_progress_text(result, hosts)}: " if result.reached else "it did not start: "
    yield Finding(verdict="fail", hosts=blamed, message=text + result.failure, fix=result.remedy)
    others = tuple(host for host in hosts if host not in blamed)
    if others:
        yield Finding(verdict="skipped", hosts=others, message=f"because of {folded_names(blamed)}")


def _stage(result: RehearsalEvidence, host: str) -> int:
    """The number of stages that a host has completed."""
    stage = result.reached.get(host, "")
    return STAGES.index(stage) + 1 if stage in STAGES else 0


def _progress_text(result: RehearsalEvidence, hosts: tuple[str, ...]) -> str:
    """Describe how far each host came, grouped by stage, those that came least far first."""
    by_stage: dict[int, list[str]] = {}
    for host in hosts:
        by_stage.setdefault(_stage(result, host), []).append(host)
    parts = []
    for stage, names in sorted(by_stage.items()):
        text = f"came to {STAGES[stage - 1]!r}" if stage else "had started"
        missing = f", not to {STAGES[stage]!r}" if stage < len(STAGES) else ""
        parts.append(f"{folded_names(names)} {text}{missing}")
    return "; ".join(parts)


def _success_text(result: RehearsalEvidence, hosts: tuple[str, ...]) -> str:
    why = f" (not NCCL: {result.why})" if result.why else ""
    return f"{result.backend}{why} over {counted(len(hosts), 'host')}: all-reduce checked"


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
