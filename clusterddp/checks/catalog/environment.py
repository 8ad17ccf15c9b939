"""Checks of the software around torch: packages, the NCCL library loaded, variables, stale build locks, paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.checks.catalog.software import CATEGORY, STEERING_PREFIXES
from clusterddp.checks.model import Check, Finding, for_each, for_facts, missing_data, odd_ones, warn
from clusterddp.checks.needs import FACTS, HEALTH
from clusterddp.facts.job_paths import job_paths
from clusterddp.text.folding import few

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from clusterddp.checks.evidence import Evidence
    from clusterddp.facts.host import Facts
    from clusterddp.inventory import HostEntry
    from clusterddp.remote.shared.probes.health_records import Health

_HOST_SUFFIXES = ("IFNAME", "HCA", "GID_INDEX", "TOPO", "FILE", "HOSTID")  # such variables may differ from host to host
_MAX_LISTED = 6  # differences listed for one host
_STALE_LOCK_AGE = 600  # seconds; few extensions take longer to build


def differences(
    by_host: Mapping[str, Mapping[str, str]], render: Callable[[str, str], str], absent: str
) -> Iterable[tuple[str, str]]:
    """Compare key-value pairs over hosts: each host that differs from the majority, and its differences as one text."""
    differing: dict[str, list[str]] = {}
    for key in sorted({key for values in by_host.values() for key in values}):
        values_of_key = {host: render(key, values[key]) if key in values else "" for host, values in by_host.items()}
        usual, odd = odd_ones(values_of_key)
        other = next(host for host, value in values_of_key.items() if value == usual)
        for host, value in odd.items():
            differing.setdefault(host, []).append(f"{value or f'{key} {absent}'} ({usual or absent} on {other})")
    for host, texts in differing.items():
        yield host, few(texts, _MAX_LISTED)


def _differing_settings(evidence: Evidence) -> Iterable[Finding]:
    by_host = {}
    for entry, facts in evidence.facts:
        steering = {name: value for name, value in facts.environment.items() if name.startswith(STEERING_PREFIXES)}
        every = {**facts.settings, **steering}
        by_host[entry.name] = {name: value for name, value in every.items() if not name.endswith(_HOST_SUFFIXES)}
    for host, text in differences(by_host, lambda name, value: f"{name}={value[:80]}", "unset"):
        yield warn(host, text)


def _differing_packages(evidence: Evidence) -> Iterable[Finding]:
    by_host = {
        entry.name: {name: version for name, version in facts.packages.items() if name != "torch"}
        for entry, facts in evidence.facts
        if facts.packages is not None
    }
    for host, text in differences(by_host, lambda name, version: f"{name} {version}", "not there"):
        yield warn(host, text)
    for entry, facts in evidence.facts:
        if facts.packages is None:
            yield missing_data(entry.name, "no packages were told")


def _nccl_loaded(entry: HostEntry, facts: Facts) -> Finding | None:
    torch = facts.torch
    if torch is None or not torch.nccl or not torch.nccl_loaded or torch.nccl == torch.nccl_loaded:
        return None
    where = f" ({torch.nccl_library})" if torch.nccl_library else ""
    return warn(entry.name, f"torch was built with NCCL {torch.nccl}, and loads {torch.nccl_loaded}{where}")


def _stale_locks(entry: HostEntry, health: Health) -> Finding | None:
    old = [f"{path} is {age // 60} min old" for path, age in sorted(health.locks.items()) if age >= _STALE_LOCK_AGE]
    return warn(entry.name, ", ".join(old[:3]), fix="unless one is being built: rm it") if old else None


def _missing_paths(evidence: Evidence) -> Iterable[Finding]:
    """Warn of a path that one host lacks if another host has the path of the same variable.

    A path that no host has is not reported, since the job may create it.
    """
    host_with: dict[str, str] = {}
    lacking: list[tuple[str, str, str]] = []
    for report in evidence.hosts:
        health = HEALTH.of(report)
        if not report.facts or not health:
            continue
        for path, name in job_paths(report.entry, report.facts).items():
            if health.paths.get(path):
                host_with.setdefault(name, report.name)
            elif path in health.paths:
                lacking.append((report.name, name, path))
    for host, name, path in lacking:
        if name in host_with:
            yield warn(host, f"{name}={path} is not there, on {host_with[name]} it is")


CHECKS = (
    Check(
        name="nccl-loaded",
        category=CATEGORY,
        title="the NCCL that is loaded is the one torch was built with",
        judge=for_facts(_nccl_loaded),
        needs=(FACTS,),
        after=("python", "torch", "nccl-equal"),
        symptom="undefined symbol, or NCCL features that torch expects and does not find",
        fix="clear LD_LIBRARY_PATH and LD_PRELOAD of another NCCL, in clusterddp_setup and the login's rc files",
    ),
    Check(
        name="packages",
        category=CATEGORY,
        title="the same packages in the same versions",
        judge=_differing_packages,
        needs=(FACTS,),
        after=("python", "torch", "torch-equal"),
        symptom="ModuleNotFoundError, or models and data that differ between the ranks",
        fix="install from one lock file on all hosts (`pip freeze` on one, `pip install -r` on the others)",
    ),
    Check(
        name="settings-equal",
        category=CATEGORY,
        title="NCCL, gloo and proxies are set alike",
        judge=_differing_settings,
        needs=(FACTS,),
        symptom="Message truncated: received 524288 bytes instead of 65536, or a hang in the first collective",
        fix="set them in clusterddp_env of all hosts, not in one host's rc files, ~/.nccl.conf or /etc/nccl.conf",
    ),
    Check(
        name="extension-locks",
        category=CATEGORY,
        title="no old lock of an extension's build",
        judge=for_each(HEALTH, _stale_locks),
        needs=(HEALTH,),
        symptom="the first import of an extension never ends: it waits for a build that was killed",
    ),
    Check(
        name="paths",
        category=CATEGORY,
        title="what the environment names is on every host or on none",
        judge=_missing_paths,
        needs=(FACTS, HEALTH),
        symptom="FileNotFoundError: No such file or directory",
        fix="mount or copy it there, or set that host's own path in its clusterddp_env",
    ),
)
