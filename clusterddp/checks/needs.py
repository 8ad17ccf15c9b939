"""What checks need to know: how each host is asked, how its answer is read, what is reported if it is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterddp.checks.model import NOT_ASKED, Need, missing_data, skipped
from clusterddp.errors import HelperError
from clusterddp.facts.dial_schedule import some_others
from clusterddp.facts.gpu_assignment import FREE_MIB
from clusterddp.facts.host import python_query
from clusterddp.facts.job_paths import job_paths
from clusterddp.facts.library_defaults import own_endpoints
from clusterddp.facts.read_facts import read_answer
from clusterddp.remote.shared.probes.gpu_records import GpuHealth, GpuHealthRequest
from clusterddp.remote.shared.probes.health_records import Health, HealthRequest
from clusterddp.remote.shared.probes.torchrun_records import ElectionRequest
from clusterddp.remote.shared.schema.record import to_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clusterddp.checks.evidence import Evidence, HostEvidence
    from clusterddp.checks.model import Culprits, Finding, QueryContext
    from clusterddp.facts.host import Facts
    from clusterddp.remote.shared.probes.health_records import Lookup


def lookup_of(report: HostEvidence, name: str) -> Lookup | None:
    """What a host resolved a name to; None if it did not report that."""
    health = HEALTH.of(report)
    return health.names.get(name) if health else None


def has_failed_lookups(report: HostEvidence) -> bool:
    """Whether a host could not look up every host's name; the check ``names`` reports why."""
    health = HEALTH.of(report)
    return bool(health and any(one.error for one in health.names.values()))


# The next functions are values of ``Need.explain``: why a host cannot be judged without certain data, or None.
def _never_missing(_: Evidence, __: HostEvidence, ___: Culprits) -> Finding | None:
    return None


def _facts_not_asked(_: Evidence, report: HostEvidence, __: Culprits) -> Finding | None:
    return missing_data(report.name, NOT_ASKED) if report.facts is None and not report.facts_error else None


def _facts_missing(_: Evidence, report: HostEvidence, culprits: Culprits) -> Finding | None:
    if report.facts is not None:
        return None
    if report.name in culprits.get("setup", {}):
        return skipped(report.name, "because of setup")
    return missing_data(report.name, report.facts_error or NOT_ASKED)


ASKED: Need[Any] = Need(name="asked", explain=_facts_not_asked)  # the host was asked for its facts, successfully or not
FACTS: Need[Any] = Need(name="facts", explain=_facts_missing)


def _health_arguments(context: QueryContext) -> Mapping[str, Any]:
    entry, own_facts = context.entry, context.own_facts
    request = HealthRequest(
        workdir=context.workdir,
        tmp=own_facts.folder_variables.get("TMPDIR") if own_facts else None,
        code=context.code,
        extensions=_extensions(own_facts) if own_facts else None,
        paths=tuple({**(job_paths(entry, own_facts) if own_facts else {}), **dict.fromkeys(entry.links.values())}),
        login=not entry.python and not entry.setup,  # else the inventory decides, whatever a login finds
        python=own_facts.python if own_facts else None,
        names=tuple(dict.fromkeys(context.facts[name].hostname for name in _looked_up(context))),
        ports=entry.ports,
        pids=tuple(pid for gpu in own_facts.gpus for pid in gpu.processes) if own_facts else (),
    )
    return to_fields(request)


def _looked_up(context: QueryContext) -> list[str]:
    """The hosts whose names a host looks up: its own, and others'."""
    others = some_others(tuple(context.facts)).get(context.entry.name, tuple(context.facts))
    return [name for name in context.facts if name == context.entry.name or name in set(others)]


def _extensions(facts: Facts) -> str:
    """The folder in which torch builds extensions during a job."""
    cache = facts.folder_variables.get("XDG_CACHE_HOME") or "~/.cache"
    return facts.folder_variables.get("TORCH_EXTENSIONS_DIR") or f"{cache}/torch_extensions"


def _read_health(host: str, data: Any) -> Health:
    return read_answer(Health, host, data)


HEALTH: Need[Health] = Need(
    name="health", operation="health", arguments=_health_arguments, read=_read_health, timeout=60.0, without_facts=True
)


def _election_arguments(context: QueryContext) -> Mapping[str, Any]:
    """Return the question whether torch on this host takes the first host's name and address for this host."""
    own_facts, first = context.own_facts, next(iter(context.facts.values()))
    if own_facts is None or own_facts.python is None:
        raise HelperError(context.entry.name, (own_facts and own_facts.python_error) or "no interpreter to ask")
    query, endpoints = python_query(context.entry), endpoints_of(first)
    return to_fields(ElectionRequest(query, own_facts.python, endpoints, own_facts.torch_folder))


def endpoints_of(first: Facts) -> tuple[str, ...]:
    """Return the first host's name and address, under which a torchrun by hand is told to find its store."""
    outward = [one.address for one in first.addresses if not one.loopback]
    address = first.ssh_address if first.ssh_address in outward else next(iter(outward), None)
    return tuple(name for name in (first.hostname, address) if name)


def _election_missing(_: Evidence, report: HostEvidence, __: Culprits) -> Finding | None:
    if has_failed_lookups(report):
        return skipped(report.name, "because of names")
    return ELECTION.unanswered(report) if ELECTION.of(report) is None else None


# For each endpoint, whether torch on this host believes that the endpoint is this host.
ELECTION: Need[Mapping[str, bool]] = Need(
    name="election", operation="election", arguments=_election_arguments, read=own_endpoints, explain=_election_missing
)


def _without_gpus(context: QueryContext) -> GpuHealth | None:
    """The known answer of a host without GPUs or with a failed driver, which is not asked."""
    own_facts = context.own_facts
    if own_facts is None or own_facts.gpus:
        return None
    reason = "nvidia-smi lists no GPU there" if own_facts.pci_nvidia else "no NVIDIA GPU there"
    return GpuHealth(reason=own_facts.nvidia_error or reason)


def _gpu_arguments(context: QueryContext) -> Mapping[str, Any]:
    facts = context.own_facts
    tested = facts.devices if facts and GPU_SMOKE_TEST.name in context.needs and _can_smoke_test(facts) else 0
    return to_fields(GpuHealthRequest(python_query(context.entry), tested))


def _can_smoke_test(own_facts: Facts) -> bool:
    """Whether torch may start the GPUs: not while a process uses them, for a smoke test takes memory."""
    free = all(not gpu.processes and (gpu.used_mib or 0) < FREE_MIB for gpu in own_facts.gpus)
    return bool(free and own_facts.torch and own_facts.torch.cuda and not own_facts.torch.device_error)


def _read_gpu_health(host: str, data: Any) -> GpuHealth:
    return read_answer(GpuHealth, host, data)


GPU_HEALTH: Need[GpuHealth] = Need(
    name="gpu-health",
    operation="gpu_health",
    arguments=_gpu_arguments,
    read=_read_gpu_health,
    timeout=420.0,  # setup lines, GPUs started in a few waves, copies between them, each within its own limit
    known=_without_gpus,
)
# Makes the question for GPU_HEALTH try each GPU with torch.
GPU_SMOKE_TEST: Need[Any] = Need(name="gpu-smoke-test", explain=_never_missing)
# For the folders state, workdir and home, the other hosts that have the same one.
SHARED: Need[Mapping[str, tuple[str, ...]]] = Need(name="shared", explain=_never_missing)


def _missing_for_all(reason: Callable[[Evidence], str]) -> Callable[[Evidence, HostEvidence, Culprits], Finding | None]:
    """An ``explain`` for a need that concerns all hosts at once: ``reason`` says why it is missing, or is empty."""
    return lambda evidence, report, _: missing_data(report.name, why) if (why := reason(evidence)) else None


def _not_dialled_reason(evidence: Evidence) -> str:
    return "nothing was dialled" if evidence.network is None else ""


def _connections_missing(evidence: Evidence, report: HostEvidence, culprits: Culprits) -> Finding | None:
    if evidence.network and evidence.network.error:
        return skipped(report.name, "because of network")
    return NETWORK.missing(evidence, report, culprits)


def _runs_missing(evidence: Evidence, report: HostEvidence, _: Culprits) -> Finding | None:
    answer = report.answers.get(RUNS.name)
    if answer and answer.error:
        return missing_data(report.name, answer.error)
    return missing_data(report.name, "no host told its runs") if evidence.runs is None else None


def _speeds_missing(evidence: Evidence, report: HostEvidence, culprits: Culprits) -> Finding | None:
    if evidence.bench and not evidence.bench.refused:
        return None
    if culprits.get("idle") or evidence.bench:
        return skipped(report.name, "because of idle")
    return missing_data(report.name, "nothing was measured")


def _collectives_missing(evidence: Evidence, report: HostEvidence, culprits: Culprits) -> Finding | None:
    if evidence.bench and not evidence.bench.refused and evidence.bench.together is None:
        return missing_data(report.name, "no host could take part")
    return _speeds_missing(evidence, report, culprits)


NETWORK: Need[Any] = Need(name="network", explain=_missing_for_all(_not_dialled_reason))
DIALLED: Need[Any] = Need(name="dialled", explain=_connections_missing)  # connections tried on a network
RUNS: Need[Any] = Need(name="runs", explain=_runs_missing)
REHEARSAL: Need[Any] = Need(
    name="rehearsal", explain=_missing_for_all(lambda evidence: "" if evidence.rehearsal else "no host could take part")
)
BENCH: Need[Any] = Need(name="bench", bench=True, explain=_never_missing)  # marks checks of --bench
PAIRS: Need[Any] = Need(name="pairs", bench=True, explain=_speeds_missing)  # the speed of every pair
WORKERS: Need[Any] = Need(name="workers", bench=True, explain=_collectives_missing)  # the run over all hosts
# SLURM: what Slurm reports, judged on its login host; SLURM_NODE: the same compared with a node's own facts.
_ON_SLURM: dict[str, Any] = {"launcher": "slurm", "hint": "looked at with `doctor --launcher slurm`"}
SLURM: Need[Any] = Need(
    name="slurm",
    reported_by_manager=True,
    explain=_missing_for_all(lambda evidence: "" if evidence.manager else NOT_ASKED),
    **_ON_SLURM,
)
SLURM_NODE: Need[Any] = Need(name="slurm-node", explain=_facts_missing, **_ON_SLURM)
