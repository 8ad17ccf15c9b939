"""Evidence made for tests of the doctor's checks: a healthy cluster, and the few things a test is about."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clusterddp.checks.catalog.machine import STRAY_RANKS
from clusterddp.checks.engine import judge, select
from clusterddp.checks.evidence import Answer, Evidence, HostEvidence, NetworkEvidence, RehearsalEvidence, RunEvidence
from clusterddp.checks.needs import ELECTION, GPU_HEALTH, HEALTH, SHARED
from clusterddp.errors import UnreachableError
from clusterddp.facts.dials import Pair
from clusterddp.facts.host import TorchFacts
from clusterddp.facts.network import DialFailure
from clusterddp.remote.shared.probes.gpu_records import Card, GpuCopies, GpuHealth, GpuSmokeTest, GpuStart
from clusterddp.remote.shared.probes.health_records import Cgroup, FolderDisk, Health, LoginPython, Lookup, Write
from tests.unit.facts_made import interface, node

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterddp.checks.model import Check, CheckResult, Need


def health(*peers: str, **fields: Any) -> Health:
    """A healthy host that knows its peers (``gpu01`` has 10.0.0.1, …)."""
    values: dict[str, Any] = {
        "limits": {"nofile": (1024, 1 << 20), "memlock": (1 << 23, 1 << 23), "nproc": (None, None)},
        "available_bytes": 1 << 34,
        "infiniband": False,
        "hcas": (),
        "taken": (),
        "folders": {key: folder(f"/{key}") for key in ("state", "workdir", "tmp", "shm")},
        "names": {peer: Lookup(addresses=(address(peer),)) for peer in peers},
        "owners": {},
        "writes": {key: Write(ms=3) for key in ("state", "workdir")},
        "login": LoginPython(python="/usr/bin/python3", same=True),
        "cgroup": Cgroup(),
        **fields,
    }
    return Health(**values)


def gpu_health(*uuids: str, **fields: Any) -> GpuHealth:
    """A host whose GPUs are well; without any it has nothing to tell of them."""
    if not uuids and not fields:
        return GpuHealth(reason="no NVIDIA GPU there")
    starts = tuple(GpuStart(number=index, capability=(9, 0), arches=("sm_80", "sm_90")) for index in range(len(uuids)))
    values: dict[str, Any] = {
        "cards": tuple(card(index, uuid) for index, uuid in enumerate(uuids)),
        "smoke_test": GpuSmokeTest(starts=starts, peers=GpuCopies(tried=2)),
        **fields,
    }
    return GpuHealth(**values)


def card(index: int, uuid: str = "", **fields: Any) -> Card:
    watts = {"celsius": 30, "power_watts": 700, "default_watts": 700}
    values = {"bus": f"00000000:0{index}:00.0", "uncorrectable": 0, "width": 16, "most_width": 16, **watts, **fields}
    return Card(number=index, uuid=uuid or f"GPU-{index}", **values)


def folder(path: str, **fields: Any) -> FolderDisk:
    free = {"free_bytes": 1 << 39, "inodes": 1 << 24, "free_inodes": 1 << 23}
    return FolderDisk(path=path, **{"filesystem": "ext4", **free, **fields})


def address(name: str) -> str:
    return f"10.0.0.{int(name[-2:])}"


def seen(name: str, *peers: str, entry: dict[str, Any] | None = None, devices: int = 0, **fields: Any) -> HostEvidence:
    """A host; ``health`` and ``gpu_health`` among the fields change its health, all others its facts."""
    changed, gpu_changed = fields.pop("health", {}), fields.pop("gpu_health", {})
    own = {"hostname": name, "addresses": (interface("127.0.0.1", "lo", prefix=8), interface(address(name)))}
    torch = TorchFacts(version="2.7.0", cuda="12.8", gloo=True, nccl_available=True, device_count=devices)
    host, facts = node(name, entry=entry, devices=devices, **{**own, "torch": torch, **fields})
    told = gpu_health(*(gpu.uuid for gpu in facts.gpus), **gpu_changed)
    own_folders: dict[str, tuple[str, ...]] = dict.fromkeys(("state", "workdir", "home"), ())
    whole = health(name, *peers, **changed)
    answers: dict[Need[Any], Any] = {
        HEALTH: whole,
        GPU_HEALTH: told,
        SHARED: own_folders,
        ELECTION: {},
        STRAY_RANKS: (),
    }
    return with_answers(HostEvidence(entry=host, facts=facts), answers)


def with_answers(host: HostEvidence, answers: Mapping[Need[Any], Any]) -> HostEvidence:
    """The host with these answers; an ``Answer`` with an error stands as it is."""
    made = {need.name: value if isinstance(value, Answer) else Answer(value=value) for need, value in answers.items()}
    return replace(host, answers={**host.answers, **made})


def cluster(*changed: HostEvidence, count: int = 3, failures: tuple[DialFailure, ...] = (), **fields: Any) -> Evidence:
    """``count`` healthy hosts gpu01 …, some of them replaced."""
    names = [f"gpu{number:02}" for number in range(1, count + 1)]
    own = {one.name: one for one in changed}
    hosts = []
    for name in names:
        one = own.get(name) or seen(name, *names)
        hosts.append(one)
    where = {name: interface(address(name)) for name in names}
    network = NetworkEvidence(label="10.0.0.0/24", where=where, failures=failures, pairs=pairs(*names))
    runs: tuple[RunEvidence, ...] = ()
    rehearsal = RehearsalEvidence(reached=dict.fromkeys(names, "barrier"))
    return replace(Evidence(hosts=tuple(hosts), network=network, runs=runs, rehearsal=rehearsal), **fields)


def pairs(*names: str, changed: Mapping[tuple[str, str], Mapping[str, Any]] | None = None) -> tuple[Pair, ...]:
    """Healthy ways between all hosts, some of them changed."""
    well: dict[str, Any] = {"verdict": "pass", "word": "ok", "rtt_ms": 0.1, "bulk": True, "sent": 60}
    ways = [(source, target) for source in names for target in names if source != target]
    return tuple(Pair(source=way[0], target=way[1], **{**well, **(changed or {}).get(way, {})}) for way in ways)


class ComparedName(str):
    """A host's name that counts how often any such name is compared with another."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        ComparedName.compared += 1
        return str.__eq__(self, other)


def comparisons(act: Callable[[list[ComparedName]], object], count: int) -> int:
    """How often ``act`` compares the names of so many hosts."""
    names = [ComparedName(f"gpu{number:02}") for number in range(1, count + 1)]
    before = ComparedName.compared
    act(names)
    return ComparedName.compared - before


def unreached(*names: str) -> Evidence:
    """A cluster none of whose hosts was reached."""
    entry = seen("gpu01").entry
    lost = [HostEvidence(entry=replace(entry, name=name), error=UnreachableError(name, "no route")) for name in names]
    return replace(cluster(), hosts=tuple(lost))


def failure(source: str, target: str, word: str = "timeout", *, ranged: bool) -> DialFailure:
    return DialFailure(
        source=source, target=target, address=address(target), port=29400 if ranged else 40000, ranged=ranged, word=word
    )


def black_holes(host: str, hosts: Sequence[str]) -> tuple[DialFailure, ...]:
    """Connections between a host and all others, both ways, on which large packets are lost."""
    ways = [way for other in hosts if other != host for way in ((host, other), (other, host))]
    return tuple(failure(*way, "black hole", ranged=False) for way in ways)


def judged(evidence: Evidence, checks: Sequence[Check]) -> list[CheckResult]:
    """What the checks find; what a check raises is raised here, too."""
    results = judge(evidence, checks)
    for result in results:
        if result.bug:
            raise result.bug
    return results


def wrong(evidence: Evidence) -> list[CheckResult]:
    """What all checks have to say but pass and skipped."""
    return [result for result in judged(evidence, select()) if result.verdict not in ("pass", "skipped")]


def said(evidence: Evidence) -> list[tuple[str, str, tuple[str, ...]]]:
    """``(name, verdict, hosts)`` of all that is wrong."""
    return [(result.name, result.verdict, result.hosts) for result in wrong(evidence)]
