"""Runs the checks: selects them, collects each one's findings, and marks the hosts that could not be judged.

A host that a check cannot judge never passes: it is skipped if an earlier failure explains that, else unknown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.checks.catalog import TABLE
from clusterddp.checks.catalog.connectivity import CATEGORY
from clusterddp.checks.model import WORST_FIRST, Check, CheckResult, Finding, blind, internal_error, skipped
from clusterddp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from clusterddp.checks.evidence import Evidence, Seen

    Culprits = Mapping[str, Mapping[str, str]]  # check → host → why it failed there

_ROOTS = ("connection", "host-keys", "helper")  # the checks that report why a host was not reached
_BAD = ("fail", "warn")


def select(
    only: Iterable[str] = (), skip: Iterable[str] = (), *, bench: bool = False, launchers: Container[str] = ()
) -> list[Check]:
    """Choose the checks to run by names of checks or categories; an empty ``only`` means all.

    Checks whose failure could explain a failure of the selected ones are added. Checks that measure need ``bench``,
    those of a launcher's own hosts its name in ``launchers``. Raises ``UsageError`` for an unknown name, or one that
    needs an option that is not given.
    """
    only, skip = named(only), named(skip)
    known = {name for check in TABLE for name in (check.name, check.category)}
    wrong = next((name for name in (*only, *skip) if name not in known), None)
    if wrong is not None:
        raise UsageError(f"{wrong!r} is no check", remedy="`clusterddp doctor --list` shows them")
    left = [check for check in TABLE if not {check.name, check.category} & set(skip)]
    of_launchers = {need.launcher: need.elsewhere for check in TABLE for need in check.needs if need.launcher}
    for given, of_it, how in (
        (bench, _measures, "measured with `doctor --bench`"),
        *((name in launchers, _of(name), elsewhere) for name, elsewhere in of_launchers.items()),
    ):
        barred = {name for check in TABLE if of_it(check) for name in (check.name, check.category)}
        if not given and barred & set(only):
            raise UsageError(f"{min(barred & set(only))} is {how} only")
        left = [check for check in left if given or not of_it(check)]
    if not only:
        return left
    wanted = {check.name for check in left if {check.name, check.category} & set(only)}
    for check in reversed(TABLE):  # a check that explains another's failure stands above it in the table
        if check.name in wanted:
            wanted |= {*_ROOTS, *check.after, *(["setup"] if check.needs else [])}
    return [check for check in left if check.name in wanted]


def named(names: Iterable[str]) -> list[str]:
    """Names of checks and categories in the table's spelling, whatever their case; unknown ones are left as is."""
    known = {name.lower(): name for check in TABLE for name in (check.name, check.category)}
    return [known.get(name.lower(), name) for name in names]


def judge(
    evidence: Evidence, checks: Sequence[Check], crashed: Callable[[Exception, str], object] = lambda *_: None
) -> list[CheckResult]:
    """Run the checks in the table's order; each check's worst verdict comes first, equal findings are merged.

    A check that raises is reported as unknown on all hosts and does not affect the others; ``crashed`` is called with
    the exception and what was being done.
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
    """Whether a check needs ``--bench``."""
    return any(need.bench for need in check.needs)


def _of(launcher: str) -> Callable[[Check], bool]:
    """Whether a check needs the hosts of this launcher."""
    return lambda check: any(need.launcher == launcher for need in check.needs)


def asks_manager(check: Check) -> bool:
    """Whether a check judges what a workload manager reports, not hosts."""
    return any(need.of_manager for need in check.needs)


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
    """Why a check cannot judge a host; None if it can."""
    cause = next((name for name in check.after if seen.name in culprits.get(name, {})), None)
    if cause:
        return skipped(seen.name, f"because of {cause}")
    if seen.error and (check.needs or check.category != CATEGORY):
        reported = any(seen.name in culprits.get(name, {}) for name in _ROOTS)
        return (
            skipped(seen.name, "because the host was not reached") if reported else blind(seen.name, seen.error.message)
        )
    return next((found for need in check.needs if (found := need.missing(evidence, seen, culprits))), None)


def _fix(check: Check, found: Finding) -> str:
    """The remedy for a finding, with the playbook of ours that applies it, if there is one."""
    fix = found.fix or check.fix
    return f"{fix}; {playbook} does it (`clusterddp doctor --fix`)" if (playbook := _playbook(check, found)) else fix


def _playbook(check: Check, found: Finding) -> str:
    """The name of our playbook that repairs a finding; empty if none does."""
    return "" if found.by_hand else check.playbook


def _results(check: Check, findings: Iterable[Finding]) -> list[CheckResult]:
    """Merge equal findings of a check into one result with all their hosts."""
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
