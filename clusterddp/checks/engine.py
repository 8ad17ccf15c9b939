"""Runs checks over what was gathered: which apply, what each found, and who could not be judged.

A host that a check cannot judge never passes: it is skipped where a failure found before explains that, else unknown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.checks.catalog import TABLE
from clusterddp.checks.catalog.connectivity import CATEGORY
from clusterddp.checks.model import WORST_FIRST, Check, CheckResult, Finding
from clusterddp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterddp.checks.evidence import Evidence, Seen

    Culprits = dict[str, dict[str, str]]  # check → host → why it failed there


_ROOTS = ("connection", "host-keys", "helper")  # one of them tells why a host was not reached
_BAD = ("fail", "warn")
_BLIND = "could not look: "
_MEASURED = {"bench", "pairs", "workers"}  # a check that needs one of them is run with --bench only


def select(only: Iterable[str] = (), skip: Iterable[str] = (), *, bench: bool = False) -> list[Check]:
    """The checks to be run: names of checks or of categories; none in ``only`` means all.

    Those whose failure would explain one of ``only`` are run too; those that measure only for a ``bench``.

    Raises:
        UsageError: a name is neither, or of what is only measured for a ``bench``.
    """
    only, skip = list(only), list(skip)
    known = {word for check in TABLE for word in (check.name, check.category)}
    wrong = next((word for word in (*only, *skip) if word not in known), None)
    if wrong is not None:
        raise UsageError(f"{wrong!r} is no check", remedy="`clusterddp doctor --list` shows them")
    left = [
        check
        for check in TABLE
        if not {check.name, check.category} & set(skip)
        if bench or not _MEASURED & set(check.needs)
    ]
    barred = {word for check in TABLE if _MEASURED & set(check.needs) for word in (check.name, check.category)}
    if not bench and barred & set(only):
        raise UsageError(f"{min(barred & set(only))} is measured with --bench only")
    if not only:
        return left
    wanted = {check.name for check in left if {check.name, check.category} & set(only)}
    for check in reversed(TABLE):  # what explains a failure stands above it
        if check.name in wanted:
            wanted |= {*_ROOTS, *check.after, *(["setup"] if check.needs else [])}
    return [check for check in left if check.name in wanted]


def judge(evidence: Evidence, checks: Sequence[Check]) -> list[CheckResult]:
    """What every check says, in order; within a check the worst first, equal hosts together."""
    culprits: Culprits = {}
    results: list[CheckResult] = []
    for check in checks:
        findings = _findings(evidence, check, culprits)
        culprits[check.name] = {
            host: found.message for found in findings if found.verdict == "fail" for host in found.hosts
        }
        results += _results(check, findings)
    return results


def _findings(evidence: Evidence, check: Check, culprits: Culprits) -> list[Finding]:
    judged: list[Seen] = []
    findings: list[Finding] = []
    for seen in evidence.hosts:
        cause = next((name for name in check.after if seen.name in culprits.get(name, {})), None)
        why = f"because of {cause}" if cause else _unjudged(seen, check, culprits)
        if why:
            findings.append(_not_judged((seen.name,), why))
        else:
            judged.append(seen)
    if not judged:
        return findings
    missing = _missing(evidence, check, culprits)
    if missing:
        return [*findings, _not_judged(tuple(seen.name for seen in judged), missing)]
    found = list(check.judge(replace(evidence, hosts=tuple(judged))))
    named = {host for one in found for host in one.hosts}
    well = tuple(seen.name for seen in judged if seen.name not in named)
    if well:
        found.append(Finding(verdict="pass", hosts=well, message=check.title))
    return findings + found


def _unjudged(seen: Seen, check: Check, culprits: Culprits) -> str:
    """Why a check cannot judge a host; empty if it can. Where no failure above tells it already, it is unknown."""
    if seen.error and (check.needs or check.category != CATEGORY):
        told = any(seen.name in culprits.get(name, {}) for name in _ROOTS)
        return "because the host was not reached" if told else f"{_BLIND}{seen.error.message}"
    if "asked" in check.needs and seen.facts is None and not seen.facts_error:
        return f"{_BLIND}the host was not asked"
    if "facts" in check.needs and seen.facts is None:
        told = seen.name in culprits.get("setup", {})
        return "because of setup" if told else f"{_BLIND}{seen.facts_error or 'the host was not asked'}"
    if "health" in check.needs and seen.health is None:
        return f"{_BLIND}{seen.health_error or 'the host was not asked'}"
    if "election" in check.needs and seen.elected is None:
        return "because of names" if seen.nameless else f"{_BLIND}{seen.elected_error or 'the host was not asked'}"
    if "runs" in check.needs and seen.runs_error:
        return f"{_BLIND}{seen.runs_error}"
    if {"gpu-health", "gpu-trial"} & set(check.needs) and seen.gpu_health is None:
        return f"{_BLIND}{seen.gpu_error or 'the host was not asked'}"
    return ""


def _not_judged(hosts: tuple[str, ...], why: str) -> Finding:
    return Finding(verdict="unknown" if why.startswith(_BLIND) else "skipped", hosts=hosts, message=why)


def _missing(evidence: Evidence, check: Check, culprits: Culprits) -> str:
    """Why a check cannot judge any host; empty if it can."""
    network = evidence.network
    if {"network", "dialled"} & set(check.needs) and network is None:
        return f"{_BLIND}nothing was dialled"
    if "dialled" in check.needs and network and network.error:
        return "because of network"
    if "runs" in check.needs and evidence.runs is None:
        return f"{_BLIND}no host told its runs"
    if "rehearsal" in check.needs and evidence.rehearsal is None:
        return f"{_BLIND}no host could take part"
    if {"pairs", "workers"} & set(check.needs) and (evidence.bench is None or evidence.bench.refused):
        return "because of idle" if culprits.get("idle") or evidence.bench else f"{_BLIND}nothing was measured"
    if "workers" in check.needs and evidence.bench and evidence.bench.together is None:
        return f"{_BLIND}no host could take part"
    return ""


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
            fix=(found.fix or check.fix) if found.verdict in _BAD else "",
        )
        for found, hosts in joined.items()
    ]
    return sorted(results, key=lambda result: WORST_FIRST.index(result.verdict))
