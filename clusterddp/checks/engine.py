"""Runs the checks: selects them, collects each one's findings, and marks the hosts that could not be judged.

A host that a check cannot judge never passes: it is skipped if an earlier failure explains that, else unknown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.checks.catalog import TABLE
from clusterddp.checks.catalog.connectivity import CATEGORY
from clusterddp.checks.model import WORST_FIRST, Check, CheckResult, Finding, internal_error, missing_data, skipped
from clusterddp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from clusterddp.checks.evidence import Evidence, HostEvidence

    Culprits = Mapping[str, Mapping[str, str]]  # check → host → why it failed there

_CONNECTION_CHECKS = ("connection", "host-keys", "helper")  # the checks that report why a host was not reached
_BAD_VERDICTS = ("fail", "warn")


def select(
    only: Iterable[str] = (), skip: Iterable[str] = (), *, bench: bool = False, launchers: Container[str] = ()
) -> list[Check]:
    """Choose the checks to run by names of checks or categories; an empty ``only`` means all.

    Checks whose failure could explain a failure of the selected ones are added. Checks that measure need ``bench``,
    those of a launcher's own hosts its name in ``launchers``. Raises ``UsageError`` for an unknown name, or one that
    needs an option that is not given.
    """
    only, skip = canonical_names(only), canonical_names(skip)
    names = {name for check in TABLE for name in (check.name, check.category)}
    unknown_name = next((name for name in (*only, *skip) if name not in names), None)
    if unknown_name is not None:
        raise UsageError(f"{unknown_name!r} is no check", remedy="`clusterddp doctor --list` shows them")
    available = [check for check in TABLE if not {check.name, check.category} & set(skip)]
    launcher_hints = {need.launcher: need.hint for check in TABLE for need in check.needs if need.launcher}
    for enabled, concerns, hint in (
        (bench, _needs_bench, "measured with `doctor --bench`"),
        *((name in launchers, _needs_launcher(name), hint) for name, hint in launcher_hints.items()),
    ):
        excluded = {name for check in TABLE if concerns(check) for name in (check.name, check.category)}
        if not enabled and excluded & set(only):
            raise UsageError(f"{min(excluded & set(only))} is {hint} only")
        available = [check for check in available if enabled or not concerns(check)]
    if not only:
        return available
    required = {check.name for check in available if {check.name, check.category} & set(only)}
    for check in reversed(TABLE):  # a check that explains another's failure stands above it in the table
        if check.name in required:
            required |= {*_CONNECTION_CHECKS, *check.after, *(["setup"] if check.needs else [])}
    return [check for check in available if check.name in required]


def canonical_names(names: Iterable[str]) -> list[str]:
    """Names of checks and categories in the table's spelling, whatever their case; unknown ones are left as is."""
    spellings = {name.lower(): name for check in TABLE for name in (check.name, check.category)}
    return [spellings.get(name.lower(), name) for name in names]


def judge(evidence: Evidence, checks: Sequence[Check]) -> list[CheckResult]:
    """Run the checks in the table's order; each check's worst verdict comes first, equal findings are merged.

    A check that raises is reported as unknown on all hosts, and its result has the exception; the others stand.
    """
    culprits: dict[str, dict[str, str]] = {}
    results: list[CheckResult] = []
    for check in checks:
        bug: Exception | None = None
        try:
            findings = _run_check(evidence, check, culprits)
        except Exception as error:  # noqa: BLE001 - a bug of one check, whatever it is
            bug = error
            findings = [Finding(verdict="unknown", hosts=evidence.names, message=internal_error(check.name))]
        culprits[check.name] = {
            host: finding.message for finding in findings if finding.verdict == "fail" for host in finding.hosts
        }
        results += _merge_findings(check, findings, bug)
    return results


def _needs_bench(check: Check) -> bool:
    """Whether a check needs ``--bench``."""
    return any(need.bench for need in check.needs)


def _needs_launcher(launcher: str) -> Callable[[Check], bool]:
    """A function that tells whether a check needs the hosts of this launcher."""
    return lambda check: any(need.launcher == launcher for need in check.needs)


def judges_manager(check: Check) -> bool:
    """Whether a check judges what a workload manager reports, not hosts."""
    return any(need.reported_by_manager for need in check.needs)


def _run_check(evidence: Evidence, check: Check, culprits: Culprits) -> list[Finding]:
    """Apply one check to the hosts that it can judge; hosts that it does not name pass."""
    lacking = {report.name: _explain_missing(evidence, report, check, culprits) for report in evidence.hosts}
    findings = [found for found in lacking.values() if found]
    judged = tuple(report for report in evidence.hosts if not lacking[report.name])
    if not judged:
        return findings
    found = list(check.judge(replace(evidence, hosts=judged)))
    named = {host for one in found for host in one.hosts}
    well = tuple(report.name for report in judged if report.name not in named)
    if well:
        found.append(Finding(verdict="pass", hosts=well, message=check.title))
    return findings + found


def _explain_missing(evidence: Evidence, report: HostEvidence, check: Check, culprits: Culprits) -> Finding | None:
    """Why a check cannot judge a host; None if it can."""
    cause = next((name for name in check.after if report.name in culprits.get(name, {})), None)
    if cause:
        return skipped(report.name, f"because of {cause}")
    if report.error and (check.needs or check.category != CATEGORY):
        reported = any(report.name in culprits.get(name, {}) for name in _CONNECTION_CHECKS)
        return (
            skipped(report.name, "because the host was not reached")
            if reported
            else missing_data(report.name, report.error.message)
        )
    return next((finding for need in check.needs if (finding := need.missing(evidence, report, culprits))), None)


def _fix(check: Check, finding: Finding) -> str:
    """The remedy for a finding, with the playbook of ours that applies it, if there is one."""
    fix, playbook = finding.fix or check.fix, _playbook(check, finding)
    return f"{fix}; {playbook} does it (`clusterddp doctor --fix`)" if playbook else fix


def _playbook(check: Check, finding: Finding) -> str:
    """The name of our playbook that repairs a finding; empty if none does."""
    return "" if finding.by_hand else check.playbook


def _merge_findings(check: Check, findings: Iterable[Finding], bug: Exception | None) -> list[CheckResult]:
    """Merge equal findings of a check into one result with all their hosts."""
    hosts_of: dict[Finding, dict[str, None]] = {}  # finding → its hosts, as an ordered set
    for finding in findings:
        hosts_of.setdefault(replace(finding, hosts=()), {}).update(dict.fromkeys(finding.hosts))
    results = [
        CheckResult(
            name=check.name,
            category=check.category,
            verdict=finding.verdict,
            hosts=tuple(hosts),
            message=finding.message,
            symptom=(finding.symptom or check.symptom) if finding.verdict in _BAD_VERDICTS else "",
            fix=_fix(check, finding) if finding.verdict in _BAD_VERDICTS else "",
            playbook=_playbook(check, finding) if finding.verdict in _BAD_VERDICTS else "",
            final=finding.final,
            bug=bug,
        )
        for finding, hosts in hosts_of.items()
    ]
    return sorted(results, key=lambda result: WORST_FIRST.index(result.verdict))
