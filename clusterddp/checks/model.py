"""What a check is, and what it is given: values only.

Not here: the checks themselves (a file a category), running them (checks/__init__.py), gathering what they judge
(clusterddp/probe/evidence.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from clusterddp.checks.evidence import Evidence
    from clusterddp.facts import Facts, Health, Pair
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
