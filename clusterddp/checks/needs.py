"""What checks need to know: how each host is asked, how its answer is read, what is reported if it is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterddp.checks.model import NOT_ASKED, Need, blind, skipped
from clusterddp.errors import HelperError
from clusterddp.facts.gpu_assignment import FREE_MIB
from clusterddp.facts.host import python_query
from clusterddp.facts.job_paths import job_paths
from clusterddp.facts.library_defaults import own_endpoints
from clusterddp.facts.read_facts import read_answer
from clusterddp.remote.shared.probes.gpu_records import GpuHealth, GpuHealthRequest
from clusterddp.remote.shared.probes.health_records import Health, HealthRequest
from clusterddp.remote.shared.probes.torchrun_records import ElectionRequest
from clusterddp.remote.shared.schema.record import written

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clusterddp.checks.evidence import Evidence, Seen
    from clusterddp.checks.model import Asked, Culprits, Finding
    from clusterddp.facts.host import Facts
    from clusterddp.remote.shared.probes.health_records import Lookup


def looked_up(seen: Seen, name: str) -> Lookup | None:
    """What a host resolved a name to; None if it did not report that."""
    health = HEALTH.of(seen)
    return health.names.get(name) if health else None


def nameless(seen: Seen) -> bool:
    """Whether a host could not look up every host's name; the check ``names`` reports why."""
    health = HEALTH.of(seen)
    return bool(health and any(one.error for one in health.names.values()))


def _never(_: Evidence, __: Seen, ___: Culprits) -> Finding | None:
    return None


def _not_asked(_: Evidence, seen: Seen, __: Culprits) -> Finding | None:
    return blind(seen.name, NOT_ASKED) if seen.facts is None and not seen.facts_error else None


def _no_facts(_: Evidence, seen: Seen, culprits: Culprits) -> Finding | None:
    if seen.facts is not None:
        return None
    reported = seen.name in culprits.get("setup", {})
    return skipped(seen.name, "because of setup") if reported else blind(seen.name, seen.facts_error or NOT_ASKED)


ASKED: Need[Any] = Need(name="asked", lack=_not_asked)  # the host was asked for its facts, successfully or not
FACTS: Need[Any] = Need(name="facts", lack=_no_facts)


def _health_arguments(asked: Asked) -> Mapping[str, Any]:
    entry, own = asked.entry, asked.own
    request = HealthRequest(
        workdir=asked.workdir,
        tmp=own.folder_variables.get("TMPDIR") if own else None,
        code=asked.code,
        extensions=_extensions(own) if own else None,
        paths=tuple({**(job_paths(entry, own) if own else {}), **dict.fromkeys(entry.links.values())}),
        login=not entry.python and not entry.setup,  # else the inventory decides, whatever a login finds
        python=own.python if own else None,
        names=tuple(dict.fromkeys(one.hostname for one in asked.facts.values())),
        ports=entry.ports,
        pids=tuple(pid for gpu in own.gpus for pid in gpu.processes) if own else (),
    )
    return written(request)


def _extensions(facts: Facts) -> str:
    """The folder in which torch builds extensions during a job."""
    cache = facts.folder_variables.get("XDG_CACHE_HOME") or "~/.cache"
    return facts.folder_variables.get("TORCH_EXTENSIONS_DIR") or f"{cache}/torch_extensions"


def _read_health(host: str, data: Any) -> Health:
    return read_answer(Health, host, data)


HEALTH: Need[Health] = Need(
    name="health", operation="health", arguments=_health_arguments, read=_read_health, timeout=60.0, without_facts=True
)


def _election_arguments(asked: Asked) -> Mapping[str, Any]:
    """The endpoints that a torchrun by hand would be given: the first host's own name, and its address."""
    own, first = asked.own, next(iter(asked.facts.values()))
    if own is None or own.python is None:
        raise HelperError(asked.entry.name, (own and own.python_error) or "no interpreter to ask")
    outward = [one.address for one in first.addresses if not one.loopback]
    address = first.ssh_address if first.ssh_address in outward else next(iter(outward), None)
    endpoints = tuple(name for name in (first.hostname, address) if name)
    return written(ElectionRequest(python_query(asked.entry), own.python, endpoints, own.torch_folder))


def _no_vote(_: Evidence, seen: Seen, __: Culprits) -> Finding | None:
    if nameless(seen):
        return skipped(seen.name, "because of names")
    return ELECTION.unanswered(seen) if ELECTION.of(seen) is None else None


# For each endpoint, whether torch on this host believes that the endpoint is this host.
ELECTION: Need[Mapping[str, bool]] = Need(
    name="election", operation="election", arguments=_election_arguments, read=own_endpoints, lack=_no_vote
)


def _no_gpus(asked: Asked) -> GpuHealth | None:
    """The known answer of a host without GPUs or with a failed driver, which is not asked."""
    own = asked.own
    if own is None or own.gpus:
        return None
    listed = "nvidia-smi lists no GPU there" if own.pci_nvidia else "no NVIDIA GPU there"
    return GpuHealth(reason=own.nvidia_error or listed)


def _gpu_arguments(asked: Asked) -> Mapping[str, Any]:
    tried = asked.own if asked.own and GPU_SMOKE_TEST.name in asked.needs and _can_be_tried(asked.own) else None
    return written(GpuHealthRequest(python_query(asked.entry), tried.devices if tried else 0))


def _can_be_tried(own: Facts) -> bool:
    """Whether torch may start the GPUs: not while a process uses them, for a smoke test takes memory."""
    free = all(not gpu.processes and (gpu.used_mib or 0) < FREE_MIB for gpu in own.gpus)
    return bool(free and own.torch and own.torch.cuda and not own.torch.device_error)


def _read_gpu_health(host: str, data: Any) -> GpuHealth:
    return read_answer(GpuHealth, host, data)


GPU_HEALTH: Need[GpuHealth] = Need(
    name="gpu-health",
    operation="gpu_health",
    arguments=_gpu_arguments,
    read=_read_gpu_health,
    timeout=420.0,  # setup lines, GPUs started in a few waves, copies between them, each within its own limit
    known=_no_gpus,
)
GPU_SMOKE_TEST: Need[Any] = Need(
    name="gpu-smoke-test", lack=_never
)  # makes the question for GPU_HEALTH try each GPU with torch
# For the folders state, workdir and home, the other hosts that have the same one.
SHARED: Need[Mapping[str, tuple[str, ...]]] = Need(name="shared", lack=_never)


def _anywhere(reason: Callable[[Evidence], str]) -> Callable[[Evidence, Seen, Culprits], Finding | None]:
    """A ``lack`` for a need that concerns all hosts at once: ``reason`` says why it is missing, or is empty."""
    return lambda evidence, seen, _: blind(seen.name, why) if (why := reason(evidence)) else None


def _not_dialled(evidence: Evidence) -> str:
    return "nothing was dialled" if evidence.network is None else ""


def _no_dials(evidence: Evidence, seen: Seen, culprits: Culprits) -> Finding | None:
    if evidence.network and evidence.network.error:
        return skipped(seen.name, "because of network")
    return NETWORK.missing(evidence, seen, culprits)


def _no_runs(evidence: Evidence, seen: Seen, _: Culprits) -> Finding | None:
    answer = seen.answers.get(RUNS.name)
    if answer and answer.error:
        return blind(seen.name, answer.error)
    return blind(seen.name, "no host told its runs") if evidence.runs is None else None


def _unmeasured(evidence: Evidence, seen: Seen, culprits: Culprits) -> Finding | None:
    if evidence.bench and not evidence.bench.refused:
        return None
    if culprits.get("idle") or evidence.bench:
        return skipped(seen.name, "because of idle")
    return blind(seen.name, "nothing was measured")


def _no_workers(evidence: Evidence, seen: Seen, culprits: Culprits) -> Finding | None:
    if evidence.bench and not evidence.bench.refused and evidence.bench.together is None:
        return blind(seen.name, "no host could take part")
    return _unmeasured(evidence, seen, culprits)


NETWORK: Need[Any] = Need(name="network", lack=_anywhere(_not_dialled))
DIALLED: Need[Any] = Need(name="dialled", lack=_no_dials)  # a network on which connections were tried
RUNS: Need[Any] = Need(name="runs", lack=_no_runs)
REHEARSAL: Need[Any] = Need(
    name="rehearsal", lack=_anywhere(lambda evidence: "" if evidence.rehearsal else "no host could take part")
)
BENCH: Need[Any] = Need(name="bench", bench=True, lack=_never)  # marks a check as one of --bench alone
PAIRS: Need[Any] = Need(name="pairs", bench=True, lack=_unmeasured)  # the speed of every pair
WORKERS: Need[Any] = Need(name="workers", bench=True, lack=_no_workers)  # the benchmark run over all hosts
# SLURM: what Slurm reports, judged on its login host; SLURM_NODE: the same compared with a node's own facts.
_OF_SLURM: dict[str, Any] = {"launcher": "slurm", "elsewhere": "looked at with `doctor --launcher slurm`"}
SLURM: Need[Any] = Need(
    name="slurm", of_manager=True, lack=_anywhere(lambda evidence: "" if evidence.manager else NOT_ASKED), **_OF_SLURM
)
SLURM_NODE: Need[Any] = Need(name="slurm-node", lack=_no_facts, **_OF_SLURM)
