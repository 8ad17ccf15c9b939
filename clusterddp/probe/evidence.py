"""Gather what the doctor's checks judge, and what a log's known messages point to.

Facts, health and dials are asked of all hosts at once; only what some check needs is asked at all.
Not here: the judgements (checks/), the messages (known/), what is printed (cli/tables.py).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clusterddp.checks.evidence import Evidence, NetworkSeen, RunSeen, Seen
from clusterddp.errors import PlanError
from clusterddp.facts import GpuHealth, Health, candidates, job_paths, loopback, matrix, nearest
from clusterddp.facts.gpu_assignment import FREE_MIB
from clusterddp.hosts.fanout import each
from clusterddp.probe.network import elections, facts_request, probe, shared_folders, try_all
from clusterddp.project import WORKDIRS
from clusterddp.runs.view import views

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from clusterddp.facts import Facts
    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.inventory import HostEntry
    from clusterddp.runs.cleanup import Orphans
    from clusterddp.runs.view import RunView

GPU_TIMEOUT = 420.0  # seconds: setup lines, GPUs started in a few waves, copies between them, each within its own limit
HEALTH_TIMEOUT = 60.0  # seconds; what may hang on the host is given up there much earlier


def gather(
    entries: Sequence[HostEntry],
    outcomes: Sequence[Outcome[Host]],
    needs: Collection[str],
    *,
    workdir: str,
    fresh: bool,
) -> Evidence:
    """Ask the hosts that were reached for what the checks need; runs are the caller's.

    Args:
        entries: The hosts, as they were to be connected.
        outcomes: Their connections.
        needs: What the checks need: ``asked``, ``facts``, ``health``, ``election``, ``gpu-health``, ``gpu-trial``,
            ``network``, ``dialled``, ``shared``.
        workdir: Where the project's code lies unless the inventory says another; empty where none was ever synced.
        fresh: Ask torch anew instead of trusting what it said earlier.
    """
    hosts = [outcome.value for outcome in outcomes if outcome.value]
    seen = {
        entry.name: Seen(entry=entry, error=outcome.error, noise=outcome.value.noise if outcome.value else "")
        for entry, outcome in zip(entries, outcomes, strict=True)
    }
    if needs:
        for told in probe(hosts, fresh=fresh, packages=True):
            words = told.words
            seen[told.name] = replace(seen[told.name], facts=told.value, facts_error=words)
    facts = {name: one.facts for name, one in seen.items() if one.facts}
    told_facts = [host for host in hosts if host.name in facts]
    beside = ThreadPoolExecutor(4)
    try:
        wanted = {"network", "dialled"} & set(needs)
        wants_gpus = {"gpu-health", "gpu-trial"} & set(needs)
        dialled = beside.submit(network, told_facts, facts) if wanted else None
        asking = beside.submit(_gpu_healths, hosts, facts, trial="gpu-trial" in needs) if wants_gpus else None
        sharing = beside.submit(_shared, hosts) if "shared" in needs else None
        electing = beside.submit(elections, told_facts, facts) if "election" in needs and told_facts else None
        if "health" in needs:
            for outcome in healths(hosts, facts, workdir):
                seen[outcome.name] = replace(seen[outcome.name], health=outcome.value, health_error=outcome.words)
        for answer in asking.result() if asking else ():
            seen[answer.name] = replace(seen[answer.name], gpu_health=answer.value, gpu_error=answer.words)
        for seeing in sharing.result() if sharing else ():
            seen[seeing.name] = replace(seen[seeing.name], shared=seeing.value)
        for vote in electing.result() if electing else ():
            seen[vote.name] = replace(seen[vote.name], elected=vote.value, elected_error=vote.words)
        dials = dialled.result() if dialled else None
    finally:  # after Ctrl-C nobody waits for hosts that may never answer
        beside.shutdown(wait=False, cancel_futures=True)
    return Evidence(hosts=tuple(seen.values()), network=dials)


def healths(hosts: Sequence[Host], facts: Mapping[str, Facts], workdir: str = "") -> list[Outcome[Health]]:
    """The hosts' health, as each tells it; with a ``workdir``, what was changed there too."""
    names = list(dict.fromkeys(one.hostname for one in facts.values()))

    def ask(host: Host) -> Health:
        own = facts.get(host.name)
        args = {
            "workdir": host.entry.workdir or WORKDIRS,
            "tmp": own.places.get("TMPDIR") if own else None,
            "code": workdir and (host.entry.workdir or workdir),
            "extensions": _extensions(own) if own else None,
            "paths": list(job_paths(host.entry, own)) if own else [],
            "login": not host.entry.python and not host.entry.setup,  # else it is meant whatever a login finds
            "python": own.python if own else None,
            "names": names,
            "ports": list(host.entry.ports),
            "pids": [pid for gpu in own.gpus for pid in gpu.processes] if own else [],
        }
        return Health.from_json(host.name, host.call("health", args, timeout=HEALTH_TIMEOUT))

    return each(hosts, ask)


def _gpu_healths(hosts: Sequence[Host], facts: dict[str, Facts], *, trial: bool) -> list[Outcome[GpuHealth]]:
    """What is known of NVIDIA's GPUs; a host that has none, or whose driver said so already, is not asked."""

    def ask(host: Host) -> GpuHealth:
        own = facts[host.name]
        if not own.gpus:  # what is there, and should be, is another check's
            listed = "nvidia-smi lists no GPU there" if own.pci_nvidia else "no NVIDIA GPU there"
            return GpuHealth(reason=own.nvidia_error or listed)
        torch = own.torch
        free = all(not gpu.processes and (gpu.used_mib or 0) < FREE_MIB for gpu in own.gpus)
        # A job that runs there may need the memory that a trial takes.
        tried = trial and free and torch is not None and torch.cuda and not torch.device_error
        args = {**facts_request(host.entry), "devices": own.devices if tried else 0}
        return GpuHealth.from_json(host.name, host.call("gpu_health", args, timeout=GPU_TIMEOUT))

    return each([host for host in hosts if host.name in facts], ask)


def _shared(hosts: Sequence[Host]) -> list[Outcome[dict[str, tuple[str, ...]]]]:
    """Which of a run's folders hosts have in common."""
    folders = {
        host.name: {"state": str(host.hello["state"]), "workdir": host.entry.workdir or WORKDIRS, "home": "~"}
        for host in hosts
    }
    return shared_folders(hosts, folders)


def _extensions(facts: Facts) -> str:
    """Where torch builds extensions in a job."""
    cache = facts.places.get("XDG_CACHE_HOME") or "~/.cache"
    return facts.places.get("TORCH_EXTENSIONS_DIR") or f"{cache}/torch_extensions"


def network(
    hosts: Sequence[Host], facts: Mapping[str, Facts], *, growing: bool = False, measured: bool = True
) -> NetworkSeen:
    """Dials between all pairs on every network that comes into question; what failed on the best.

    The doctor and every run choose by this. ``growing``: more hosts may join; ``measured``: losses and
    round trips too, which takes longer.
    """
    nodes = [(host.entry, facts[host.name]) for host in hosts]
    local = loopback(nodes, growing=growing)
    if local is not None or not nodes:
        return NetworkSeen(label="loopback", where=local or {})
    try:
        chosen = candidates(nodes)
    except PlanError as error:
        return NetworkSeen(error=error.message)
    echoes = _echoes(len(hosts)) if measured else 0
    dialled, deaf = try_all(hosts, chosen, echoes=echoes) if len(hosts) > 1 else ([], [])
    failures = [failure for one in dialled if (failure := one.failure)]
    best, broken = nearest(chosen, failures)
    return NetworkSeen(
        label=best.label,
        where=best.where,
        failures=tuple(broken),
        pairs=matrix(best.where, dialled),
        unreached={(one.source, one.address): one.meaning for one in failures if one not in broken},
        deaf={outcome.name: outcome.words for outcome in deaf},
    )


def with_runs(
    evidence: Evidence, told: Iterable[Outcome[list[dict[str, Any]]]], left: Iterable[Outcome[list[Orphans]]]
) -> Evidence:
    """The evidence with what its hosts told of their runs, and of processes left; who did not tell is unknown there."""
    told, left = list(told), list(left)
    both: list[Outcome[Any]] = [*told, *left]
    errors = {outcome.name: outcome.words for outcome in both if outcome.error}
    known = views([node for outcome in told for node in outcome.value or ()])
    runs = runs_seen(known, [one for outcome in left for one in outcome.value or ()])
    hosts = tuple(replace(seen, runs_error=errors.get(seen.name, "")) for seen in evidence.hosts)
    return replace(evidence, hosts=hosts, runs=runs)


def _echoes(hosts: int) -> int:
    """How many small messages on each way: many between few hosts, few between many."""
    return max(3, min(20, 120 // hosts))


def runs_seen(views: Iterable[RunView], orphans: Iterable[Orphans]) -> tuple[RunSeen, ...]:
    """The runs that live, and those that have left processes."""
    live = [
        RunSeen(
            run=view.run,
            name=view.name,
            operator=str(view.record.get("operator") or ""),
            hosts=tuple(str(node["host"]) for node in view.nodes),
        )
        for view in views
        if view.live
    ]
    left: dict[str, dict[str, tuple[int, ...]]] = {}
    for one in orphans:
        left.setdefault(one.run, {})[one.host] = tuple(pid for pid, _ in one.processes)
    return (*live, *(RunSeen(run=run, hosts=tuple(by_host), left=by_host) for run, by_host in left.items()))
