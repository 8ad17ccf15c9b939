"""Runs checks over what was gathered: which apply, what each found, and who could not be judged.

A host that a check cannot judge never passes: it is skipped where a failure found before explains that, else unknown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.checks.catalog import TABLE
from clusterddp.checks.catalog.connectivity import CATEGORY
from clusterddp.checks.model import WORST_FIRST, Check, CheckResult, Finding, blind, internal_error, skipped
from clusterddp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from clusterddp.checks.evidence import Evidence, Seen

    Culprits = Mapping[str, Mapping[str, str]]  # check → host → why it failed there

_ROOTS = ("connection", "host-keys", "helper")  # one of them tells why a host was not reached
_BAD = ("fail", "warn")


def select(
    only: Iterable[str] = (), skip: Iterable[str] = (), *, bench: bool = False, slurm: bool = False
) -> list[Check]:
    """The checks to be run: names of checks or of categories; none in ``only`` means all.

    Those whose failure would explain one of ``only`` are run too; those that measure only for a ``bench``, those of
    Slurm only where it has the hosts.

    Raises:
        UsageError: a name is neither, or of what is only looked at for a ``bench``, or under Slurm.
    """
    only, skip = named(only), named(skip)
    known = {word for check in TABLE for word in (check.name, check.category)}
    wrong = next((word for word in (*only, *skip) if word not in known), None)
    if wrong is not None:
        raise UsageError(f"{wrong!r} is no check", remedy="`clusterddp doctor --list` shows them")
    left = [check for check in TABLE if not {check.name, check.category} & set(skip)]
    for given, of_it, how in (
        (bench, _measures, "measured with `doctor --bench`"),
        (slurm, of_slurm, "looked at with `doctor --launcher slurm`"),
    ):
        barred = {word for check in TABLE if of_it(check) for word in (check.name, check.category)}
        if not given and barred & set(only):
            raise UsageError(f"{min(barred & set(only))} is {how} only")
        left = [check for check in left if given or not of_it(check)]
    if not only:
        return left
    wanted = {check.name for check in left if {check.name, check.category} & set(only)}
    for check in reversed(TABLE):  # what explains a failure stands above it
        if check.name in wanted:
            wanted |= {*_ROOTS, *check.after, *(["setup"] if check.needs else [])}
    return [check for check in left if check.name in wanted]


def named(words: Iterable[str]) -> list[str]:
    """Names of checks and categories as the table spells them, whatever their case; others as they are."""
    known = {word.lower(): word for check in TABLE for word in (check.name, check.category)}
    return [known.get(word.lower(), word) for word in words]


def judge(
    evidence: Evidence, checks: Sequence[Check], crashed: Callable[[Exception, str], object] = lambda *_: None
) -> list[CheckResult]:
    """What every check says, in order; within a check the worst first, equal hosts together.

    A check that raises is unknown on all hosts and changes nothing for the others; ``crashed`` takes the exception and
    what was being done.
    """
    culprits: dict[str, dict[str, str]] = {}
    results: list[CheckResult] = []
    for check in checks:
        try:
            findings = _findings(evidence, check, culprits)
        except Exception as error:  # noqa: BLE001 - a bug of one check, whatever it is
            crashed(error, f"the check {check.name}")
            hosts = tuple(seen.name for seen in evidence.hosts)
            findings = [Finding(verdict="unknown", hosts=hosts, message=internal_error(check.name))]
        culprits[check.name] = {
            host: found.message for found in findings if found.verdict == "fail" for host in found.hosts
        }
        results += _results(check, findings)
    return results


def _measures(check: Check) -> bool:
    """Whether it is run with ``--bench`` only."""
    return any(need.bench for need in check.needs)


def of_slurm(check: Check) -> bool:
    """Whether it is about Slurm."""
    return any(need.slurm for need in check.needs)


def _findings(evidence: Evidence, check: Check, culprits: Culprits) -> list[Finding]:
    lacking = {seen.name: _lack(evidence, seen, check, culprits) for seen in evidence.hosts}
    findings = [found for found in lacking.values() if found]
    judged = tuple(seen for seen in evidence.hosts if not lacking[seen.name])
    if not judged:
        return findings
    found = list(check.judge(replace(evidence, hosts=judged)))
    named = {host for one in found for host in one.hosts}
    well = tuple(seen.name for seen in judged if seen.name not in named)
    if well:
        found.append(Finding(verdict="pass", hosts=well, message=check.title))
    return findings + found


def _lack(evidence: Evidence, seen: Seen, check: Check, culprits: Culprits) -> Finding | None:
    """Why a check cannot judge a host; None if it can. Where no failure above tells it already, it is unknown."""
    cause = next((name for name in check.after if seen.name in culprits.get(name, {})), None)
    if cause:
        return skipped(seen.name, f"because of {cause}")
    if seen.error and (check.needs or check.category != CATEGORY):
        told = any(seen.name in culprits.get(name, {}) for name in _ROOTS)
        return skipped(seen.name, "because the host was not reached") if told else blind(seen.name, seen.error.message)
    return next((found for need in check.needs if (found := need.missing(evidence, seen, culprits))), None)


def _fix(check: Check, found: Finding) -> str:
    """What to do about a finding; where a playbook of ours does it, that too."""
    fix = found.fix or check.fix
    return f"{fix}; {playbook} does it (`clusterddp doctor --fix`)" if (playbook := _playbook(check, found)) else fix


def _playbook(check: Check, found: Finding) -> str:
    """The playbook of ours that mends it."""
    return "" if found.by_hand else check.playbook


def _results(check: Check, findings: Iterable[Finding]) -> list[CheckResult]:
    """Equal findings as one, with all their hosts."""
    joined: dict[Finding, list[str]] = {}
    for found in findings:
        hosts = joined.setdefault(replace(found, hosts=()), [])
        hosts += [host for host in found.hosts if host not in hosts]
    results = [
        CheckResult(
            name=check.name,
            category=check.category,
            verdict=found.verdict,
            hosts=tuple(hosts),
            message=found.message,
            symptom=(found.symptom or check.symptom) if found.verdict in _BAD else "",
            fix=_fix(check, found) if found.verdict in _BAD else "",
            playbook=_playbook(check, found) if found.verdict in _BAD else "",
            final=found.final,
        )
        for found, hosts in joined.items()
    ]
    return sorted(results, key=lambda result: WORST_FIRST.index(result.verdict))
