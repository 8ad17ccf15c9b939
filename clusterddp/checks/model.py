"""The values that checks are made of: a check, what it needs to know, its findings and results."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from clusterddp.errors import HelperError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from clusterddp.checks.evidence import Evidence, HostEvidence
    from clusterddp.facts.dials import Pair
    from clusterddp.facts.host import Facts
    from clusterddp.inventory import HostEntry

    Culprits = Mapping[str, Mapping[str, str]]  # check → host → why it failed there

T = TypeVar("T")
Verdict = Literal["fail", "unknown", "warn", "skipped", "pass"]
WORST_FIRST: tuple[Verdict, ...] = ("fail", "unknown", "warn", "skipped", "pass")
NOT_ASKED = "the host was not asked"


def internal_error(subject: str) -> str:
    """The message for hosts that could not be judged because of a bug in clusterddp."""
    return f"internal error in {subject}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What a check found on some hosts; ``symptom`` and ``fix`` replace those of the check if they are given."""

    verdict: Verdict
    hosts: tuple[str, ...]
    message: str
    symptom: str = ""
    fix: str = ""
    final: bool = False  # no job can start on the host even if the check is skipped
    by_hand: bool = False  # the check's playbook does not repair it


def fail(host: str, message: str, **more: Any) -> Finding:
    """The finding that a job on this host would fail."""
    return Finding(verdict="fail", hosts=(host,), message=message, **more)


def warn(host: str, message: str, **more: Any) -> Finding:
    """The finding that a job on this host may suffer."""
    return Finding(verdict="warn", hosts=(host,), message=message, **more)


def unknown(host: str, message: str, **more: Any) -> Finding:
    """The finding that a host could not be judged."""
    return Finding(verdict="unknown", hosts=(host,), message=message, **more)


def missing_data(host: str, why: str) -> Finding:
    """The finding that a host could not be judged because data is missing, which no other check reports."""
    return unknown(host, f"could not look: {why}")


def skipped(host: str, why: str) -> Finding:
    """The finding that a host was not judged: another check reports the cause, or there is nothing to judge."""
    return Finding(verdict="skipped", hosts=(host,), message=why)


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryContext:
    """What the request to one host for a ``Need`` may depend on."""

    entry: HostEntry
    own_facts: Facts | None  # the host's facts; None if it did not report them
    facts: Mapping[str, Facts]  # the facts of all hosts that reported them, by name
    needs: frozenset[str] = frozenset()  # the names of the needs of all selected checks
    workdir: str  # the folder of a job's code on the host
    code: str = ""  # the same, but empty if the project was never synced


def _no_reader(host: str, _: Any) -> Any:
    """The default of ``Need.read``, for needs that are not an answer of a host."""
    raise HelperError(host, "it was asked something that nobody reads")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Need(Generic[T]):
    """Something that checks judge: how a host is asked for it and its answer read, what is said if it is missing."""

    name: str  # the key in ``HostEvidence.answers``
    # the operation that every host runs (remote/helper/operations.py); empty if it takes several hosts
    operation: str = ""
    arguments: Callable[[QueryContext], Mapping[str, Any]] = lambda _: {}
    read: Callable[[str, Any], T] = _no_reader  # decodes an answer, given the host's name and the JSON
    timeout: float = 120.0  # for the operation, in seconds; what may hang on the host is given up there much earlier
    # the answer if it is known without asking the host; else None
    known: Callable[[QueryContext], T | None] = lambda _: None
    without_facts: bool = False  # whether a host that did not report its facts is asked too
    # why a host cannot be judged, or None, given the evidence, the host, and who failed which check (check → host →
    # why). By default a host without an answer is unknown.
    explain: Callable[[Evidence, HostEvidence, Culprits], Finding | None] | None = None
    bench: bool = False  # collected only with ``--bench``
    launcher: str = ""  # collected only on the hosts of this launcher; empty: of any
    hint: str = ""  # with such a launcher: how it is collected, for those who ask for it on other hosts
    reported_by_manager: bool = False  # reported by a workload manager for all hosts, and judged apart from them

    def of(self, report: HostEvidence) -> T | None:
        """A host's answer; None if there is none."""
        answer = report.answers.get(self.name)
        return cast("T | None", answer.value) if answer else None

    def each(self, evidence: Evidence) -> list[tuple[HostEntry, T]]:
        """The hosts that answered, with their answers, in order."""
        return [(report.entry, answer) for report in evidence.hosts if (answer := self.of(report)) is not None]

    def missing(self, evidence: Evidence, report: HostEvidence, culprits: Culprits) -> Finding | None:
        """Why a host cannot be judged for want of this answer; None if it can."""
        if self.name in evidence.broken:
            return missing_data(report.name, internal_error(self.name))
        if self.explain:
            return self.explain(evidence, report, culprits)
        return None if self.of(report) is not None else self.unanswered(report)

    def unanswered(self, report: HostEvidence) -> Finding:
        """The finding that a host has not answered, and why."""
        answer = report.answers.get(self.name)
        return missing_data(report.name, (answer and answer.error) or NOT_ASKED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One check of `doctor`."""

    name: str  # what ``--only`` and ``--skip`` take; known messages name it too
    category: str  # the heading in the output
    title: str  # what is true if it passes
    # returns findings for the hosts that have all the check needs, without I/O; a host it does not name passes
    judge: Callable[[Evidence], Iterable[Finding]]
    needs: tuple[Need[Any], ...] = ()  # what must be known of a host; without it the host is skipped or unknown
    # checks whose failure on a host explains this one's: the host is skipped here, so that a cause is reported once
    after: tuple[str, ...] = ()
    symptom: str = ""  # what a user would have seen in training
    fix: str = ""
    playbook: str = ""  # which playbook of ours applies the fix


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """A check's verdict on some hosts: one object of ``doctor --json``; ``final`` as in ``Finding``."""

    name: str
    category: str
    verdict: Verdict
    hosts: tuple[str, ...]
    message: str
    symptom: str = ""
    fix: str = ""
    playbook: str = ""
    final: bool = False
    bug: Exception | None = field(default=None, compare=False, repr=False)  # what the check raised

    def to_json(self) -> dict[str, Any]:
        """The object described in docs/labels-and-json.md."""
        return {
            "name": self.name,
            "category": self.category,
            "verdict": self.verdict,
            "hosts": list(self.hosts),
            "message": self.message,
            "symptom": self.symptom,
            "fix": self.fix,
            "playbook": self.playbook,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """What was collected of the cluster, and the results of the checks in their order."""

    evidence: Evidence
    results: tuple[CheckResult, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all; skipped ones do not count, since the check that caused them does."""
        return worst(self.results)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Every ordered pair of hosts, row by row; empty if no connections were tried."""
        return self.evidence.network.pairs if self.evidence.network else ()

    def to_json(self) -> dict[str, Any]:
        """The object of ``doctor --json`` (docs/labels-and-json.md)."""
        return {
            "verdict": self.verdict,
            "checks": [result.to_json() for result in self.results],
            "pairs": [result.to_json() for result in self.pairs],
            **({"bench": self.evidence.bench.to_json()} if self.evidence.bench else {}),
        }


def worst(results: Iterable[CheckResult]) -> Verdict:
    """The worst verdict of several results; skipped ones do not count."""
    verdicts = {result.verdict for result in results} - {"skipped"}
    return next((verdict for verdict in WORST_FIRST if verdict in verdicts), "pass")


def for_facts(judge: Callable[[HostEntry, Facts], Finding | None]) -> Callable[[Evidence], list[Finding]]:
    """Turn a function that judges one host's facts into a check."""
    return lambda evidence: [found for one in evidence.facts if (found := judge(*one))]


def for_each(need: Need[T], judge: Callable[[HostEntry, T], Finding | None]) -> Callable[[Evidence], list[Finding]]:
    """Turn a function that judges one host's answer into a check."""
    return lambda evidence: [found for one in need.each(evidence) if (found := judge(*one))]


def odd_ones(values: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The most frequent value (of equally frequent ones the first), and each host that has another one, with it."""
    counts = Counter(values.values())
    usual = max(counts, key=lambda value: counts[value], default="")
    return usual, {host: value for host, value in values.items() if value != usual}
