"""What a check is, what a need of checks is, and what they say: values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from clusterddp.errors import HelperError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from clusterddp.checks.evidence import Evidence, Seen
    from clusterddp.facts import Facts, Pair
    from clusterddp.inventory import HostEntry

    Culprits = Mapping[str, Mapping[str, str]]  # check → host → why it failed there

T = TypeVar("T")
Verdict = Literal["fail", "unknown", "warn", "skipped", "pass"]
WORST_FIRST: tuple[Verdict, ...] = ("fail", "unknown", "warn", "skipped", "pass")
NOT_ASKED = "the host was not asked"


def internal_error(subject: str) -> str:
    """What is said of hosts where a bug of ours was met: it tells nothing of them."""
    return f"internal error in {subject}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What a check found on some hosts; symptom and fix stand in for the check's own where they are given.

    ``final``: no job can start there in spite of it, so a run that skips the check gains nothing. ``by_hand``: the
    check's playbook does not mend it.
    """

    verdict: Verdict
    hosts: tuple[str, ...]
    message: str
    symptom: str = ""
    fix: str = ""
    final: bool = False
    by_hand: bool = False


def fail(host: str, message: str, **more: Any) -> Finding:
    """A job on this host would fail."""
    return Finding(verdict="fail", hosts=(host,), message=message, **more)


def warn(host: str, message: str, **more: Any) -> Finding:
    """A job may suffer."""
    return Finding(verdict="warn", hosts=(host,), message=message, **more)


def unknown(host: str, message: str, **more: Any) -> Finding:
    """It could not be looked at."""
    return Finding(verdict="unknown", hosts=(host,), message=message, **more)


def blind(host: str, why: str) -> Finding:
    """What a check would judge is missing there, and no other check tells so."""
    return unknown(host, f"could not look: {why}")


def skipped(host: str, why: str) -> Finding:
    """A host that is not judged, for a reason that another check tells, or is none."""
    return Finding(verdict="skipped", hosts=(host,), message=why)


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a question to one host may depend on.

    Attributes:
        entry: The host.
        own: Its facts; None where it did not tell them.
        facts: Those of all hosts that told them, by name.
        needs: The names of all that is needed, of whatever check.
        workdir: Where a job's code lies on it.
        code: The same, but empty where none of the project was ever synced.
    """

    entry: HostEntry
    own: Facts | None
    facts: Mapping[str, Facts]
    needs: frozenset[str] = frozenset()
    workdir: str
    code: str = ""


def _unread(host: str, _: Any) -> Any:
    raise HelperError(host, "it was asked something that nobody reads")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Need(Generic[T]):
    """Something that checks judge: how it is asked of a host, how the answer is read, what is said where it is missing.

    Attributes:
        name: In ``Seen.answers``.
        operation: What every host is asked (remote/helper/operations.py); empty where several hosts tell it together.
        arguments: The operation's, for one host.
        read: An answer's checked value, by the host's name and the JSON.
        timeout: Of the operation, in seconds; what may hang on the host is given up there much earlier.
        known: What is true of a host without asking it; None: it is asked.
        without_facts: A host is asked that did not tell its facts, too.
        lack: Why a host cannot be judged, or None: by all that is known, the host, and who failed which check (check →
            host → why). By default a host without an answer is unknown.
        bench: It is only gathered with ``--bench``.
        slurm: It is only gathered where Slurm has the hosts.
    """

    name: str
    operation: str = ""
    arguments: Callable[[Asked], Mapping[str, Any]] = lambda _: {}
    read: Callable[[str, Any], T] = _unread
    timeout: float = 120.0
    known: Callable[[Asked], T | None] = lambda _: None
    without_facts: bool = False
    lack: Callable[[Evidence, Seen, Culprits], Finding | None] | None = None
    bench: bool = False
    slurm: bool = False

    def of(self, seen: Seen) -> T | None:
        """What a host has answered; None where it has not."""
        answer = seen.answers.get(self.name)
        return cast("T | None", answer.value) if answer else None

    def each(self, evidence: Evidence) -> list[tuple[HostEntry, T]]:
        """The hosts' answers, in order."""
        return [(seen.entry, told) for seen in evidence.hosts if (told := self.of(seen)) is not None]

    def missing(self, evidence: Evidence, seen: Seen, culprits: Culprits) -> Finding | None:
        """Why a host cannot be judged for want of this; None if it can."""
        if self.name in evidence.broken:
            return blind(seen.name, internal_error(self.name))
        if self.lack:
            return self.lack(evidence, seen, culprits)
        return None if self.of(seen) is not None else self.unanswered(seen)

    def unanswered(self, seen: Seen) -> Finding:
        """That a host has not answered, and why."""
        answer = seen.answers.get(self.name)
        return blind(seen.name, (answer and answer.error) or NOT_ASKED)


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
        playbook: Which playbook of ours does it.
    """

    name: str
    category: str
    title: str
    judge: Callable[[Evidence], Iterable[Finding]]
    needs: tuple[Need[Any], ...] = ()
    after: tuple[str, ...] = ()
    symptom: str = ""
    fix: str = ""
    playbook: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """What a check says of some hosts: one object of ``doctor --json``; ``final`` as of a finding."""

    name: str
    category: str
    verdict: Verdict
    hosts: tuple[str, ...]
    message: str
    symptom: str = ""
    fix: str = ""
    playbook: str = ""
    final: bool = False

    def to_json(self) -> dict[str, Any]:
        """As docs/labels-and-json.md has it."""
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
        """The object of ``doctor --json`` (docs/labels-and-json.md)."""
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


def for_each(need: Need[T], judge: Callable[[HostEntry, T], Finding | None]) -> Callable[[Evidence], list[Finding]]:
    """A judgement of each host's answer alone."""
    return lambda evidence: [found for one in need.each(evidence) if (found := judge(*one))]


def odd_ones(values: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The value that most hosts have (the first of equals), and the hosts with another."""
    counts: dict[str, int] = {}
    for value in values.values():
        counts[value] = counts.get(value, 0) + 1
    usual = max(counts, key=lambda value: counts[value], default="")
    return usual, {host: value for host, value in values.items() if value != usual}
