"""What a check is, and what it is given: values only.

Not here: the checks themselves (a file a category), running them (checks/__init__.py), gathering what they judge
(clusterddp/probe/evidence.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from clusterddp.errors import ClusterddpError
    from clusterddp.facts import Bench, Facts, Failure, GpuHealth, Health, Interface, Pair
    from clusterddp.inventory import HostEntry

Verdict = Literal["fail", "unknown", "warn", "skipped", "pass"]
WORST_FIRST: tuple[Verdict, ...] = ("fail", "unknown", "warn", "skipped", "pass")
# asked: for its facts, whatever came of it; gpu-trial: gpu-health with each GPU tried by torch; dialled: a network on
# which dials were made; bench: what is only asked with --bench, pairs: the speed of every pair,
# workers: a run over all hosts
Need = Literal[
    "asked",
    "facts",
    "health",
    "election",
    "gpu-health",
    "gpu-trial",
    "network",
    "dialled",
    "runs",
    "rehearsal",
    "bench",
    "pairs",
    "shared",
    "workers",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """One host as it was found: not reached (``error``), or what its answers hold; None: it was not asked."""

    entry: HostEntry
    error: ClusterddpError | None = None
    noise: str = ""
    facts: Facts | None = None
    facts_error: str = ""
    health: Health | None = None
    health_error: str = ""
    elected: Mapping[str, bool] | None = None  # by endpoint of a torchrun by hand: this host takes itself for it
    elected_error: str = ""
    runs_error: str = ""
    gpu_health: GpuHealth | None = None
    gpu_error: str = ""
    shared: Mapping[str, tuple[str, ...]] | None = None  # state, workdir, home: the hosts whose it is too

    @property
    def name(self) -> str:
        """The host's name in the inventory."""
        return self.entry.name

    @property
    def nameless(self) -> bool:
        """Whether it could not look up every host's name; the check ``names`` tells why."""
        return bool(self.health and any(one.error for one in self.health.names.values()))


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkSeen:
    """Dials between all pairs, both ways, on the network that serves best.

    Attributes:
        label: The network.
        where: Each host's interface in it.
        failures: The dials on it that did not come through.
        pairs: What the dials on it came to, every ordered pair of hosts, row by row.
        unreached: Addresses that a host dialled in vain on other networks, and why: by host and address.
        deaf: Hosts that could not listen or dial, and why.
        error: No network comes into question; nothing was dialled.
    """

    label: str = ""
    where: Mapping[str, Interface] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    pairs: tuple[Pair, ...] = ()
    unreached: Mapping[tuple[str, str], str] = field(default_factory=dict)
    deaf: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSeen:
    """A run that lives on some hosts, or has left processes there without a supervisor (``left``: pids by host)."""

    run: str
    name: str = ""
    operator: str = ""
    hosts: tuple[str, ...] = ()
    left: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearsalSeen:
    """A small job that was run over the hosts.

    Attributes:
        reached: The last stage that each host told; empty for one that told none.
        backend: ``nccl`` or ``gloo``; ``why``: why not NCCL, where there are GPUs.
        blamed: Hosts that failed, where it is known.
        words: How it failed; empty where it did not, or hung.
        remedy: What helps, where the words are known.
        seconds: How long it took.
        left: Hosts on which something of it may be left, and what.
    """

    reached: Mapping[str, str] = field(default_factory=dict)
    backend: str = "gloo"
    why: str = ""
    blamed: tuple[str, ...] = ()
    words: str = ""
    remedy: str = ""
    seconds: float = 0.0
    left: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """All that is known of the cluster; for a check only the hosts that it can judge."""

    hosts: tuple[Seen, ...]
    network: NetworkSeen | None = None
    runs: tuple[RunSeen, ...] | None = None
    rehearsal: RehearsalSeen | None = None
    bench: Bench | None = None
    share_gpus: bool = False  # whether it is meant that others compute on the GPUs too

    @property
    def facts(self) -> list[tuple[HostEntry, Facts]]:
        """The hosts' facts, in order."""
        return [(seen.entry, seen.facts) for seen in self.hosts if seen.facts]

    @property
    def health(self) -> list[tuple[HostEntry, Health]]:
        """The hosts' health, in order."""
        return [(seen.entry, seen.health) for seen in self.hosts if seen.health]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What a check found on some hosts; symptom and fix stand in for the check's own where they are given."""

    verdict: Verdict
    hosts: tuple[str, ...]
    message: str
    symptom: str = ""
    fix: str = ""


def fail(host: str, message: str, **more: Any) -> Finding:
    """A job on this host would fail."""
    return Finding(verdict="fail", hosts=(host,), message=message, **more)


def warn(host: str, message: str, **more: Any) -> Finding:
    """A job may suffer."""
    return Finding(verdict="warn", hosts=(host,), message=message, **more)


def unknown(host: str, message: str, **more: Any) -> Finding:
    """It could not be looked at."""
    return Finding(verdict="unknown", hosts=(host,), message=message, **more)


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One check.

    Attributes:
        name: What ``--only`` and ``--skip`` say; known messages name it too.
        category: The heading it stands under.
        title: What is true when it passes.
        judge: Pure: what is wrong with the hosts that have all the check needs; a host not named passes.
        needs: What of a host it judges. A host without it is skipped (it did not answer) or unknown.
        after: Checks whose failures on a host explain ours there: it is skipped, the cause is told once.
        symptom: What a user would have seen in training.
        fix: What to do.
    """

    name: str
    category: str
    title: str
    judge: Callable[[Evidence], Iterable[Finding]]
    needs: tuple[Need, ...] = ()
    after: tuple[str, ...] = ()
    symptom: str = ""
    fix: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """What a check says of some hosts: one object of ``doctor --json``."""

    name: str
    category: str
    verdict: Verdict
    hosts: tuple[str, ...]
    message: str
    symptom: str = ""
    fix: str = ""

    def to_json(self) -> dict[str, Any]:
        """By the contract."""
        return {
            "name": self.name,
            "category": self.category,
            "verdict": self.verdict,
            "hosts": list(self.hosts),
            "message": self.message,
            "symptom": self.symptom,
            "fix": self.fix,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """What was found of the cluster, and what the checks say of it, in their order."""

    evidence: Evidence
    results: tuple[CheckResult, ...]

    @property
    def verdict(self) -> Verdict:
        """Of all together; what was skipped stands for nothing, its cause is there too."""
        return worst(self.results)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Every two hosts, row by row; empty where nothing was dialled."""
        return self.evidence.network.pairs if self.evidence.network else ()

    def to_json(self) -> dict[str, Any]:
        """``doctor --json``, by the contract."""
        return {
            "verdict": self.verdict,
            "checks": [one.to_json() for one in self.results],
            "pairs": [one.to_json() for one in self.pairs],
            **({"bench": self.evidence.bench.to_json()} if self.evidence.bench else {}),
        }


def worst(results: Iterable[CheckResult]) -> Verdict:
    """The verdict of several together."""
    found = {result.verdict for result in results} - {"skipped"}
    return next((verdict for verdict in WORST_FIRST if verdict in found), "pass")


def for_facts(judge: Callable[[HostEntry, Facts], Finding | None]) -> Callable[[Evidence], list[Finding]]:
    """A judgement of each host's facts alone."""
    return lambda evidence: [found for one in evidence.facts if (found := judge(*one))]


def for_health(judge: Callable[[HostEntry, Health], Finding | None]) -> Callable[[Evidence], list[Finding]]:
    """A judgement of each host's health alone."""
    return lambda evidence: [found for one in evidence.health if (found := judge(*one))]


def odd_ones(values: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The value that most hosts have (the first of equals), and the hosts with another."""
    counts: dict[str, int] = {}
    for value in values.values():
        counts[value] = counts.get(value, 0) + 1
    usual = max(counts, key=lambda value: counts[value], default="")
    return usual, {host: value for host, value in values.items() if value != usual}
