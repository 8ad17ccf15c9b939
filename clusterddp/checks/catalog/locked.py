"""The check of Python environments that were built from a lock file."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from clusterddp.checks.model import Check, Finding, Need, fail, odd_ones
from clusterddp.facts.installed_versions import LockedFacts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterddp.checks.evidence import Evidence, Seen
    from clusterddp.checks.model import Culprits


CATEGORY = "Python and torch"


def _not_locked(_: Evidence, seen: Seen, __: Culprits) -> Finding | None:
    there = not seen.entry.environment or LOCKED.of(seen) is not None
    return None if there else LOCKED.unanswered(seen)


LOCKED: Need[LockedFacts] = Need(
    name="locked",
    operation="environment_proof",
    arguments=lambda asked: {"python": asked.entry.python or ""},
    read=LockedFacts.from_json,
    known=lambda asked: None if asked.entry.environment else LockedFacts(path="", there=False, built="", now=""),
    without_facts=True,
    lack=_not_locked,
)


def _locked(evidence: Evidence) -> Iterable[Finding]:
    """Fail hosts whose environment is missing, was changed since its build, or differs from others of the same lock."""
    answers = [(entry, one) for entry, one in LOCKED.each(evidence) if entry.environment]
    by_place: dict[str, dict[str, str]] = {}
    for entry, one in answers:
        if not one.there:
            yield fail(
                entry.name, f"the environment of {entry.environment} is not built", fix="`clusterddp up` builds it"
            )
        elif one.now != one.built:
            what = f"packages were changed in the environment of {entry.environment} since it was built"
            yield fail(entry.name, what, fix=_anew(one.path))
        else:
            by_place.setdefault(one.path.rpartition("/")[2], {})[entry.name] = one.now
    for digests in by_place.values():
        _, odd = odd_ones(digests)
        for host in odd:
            path = next(one.path for entry, one in answers if entry.name == host)
            yield fail(host, "its environment is not what the others have of the same lock", fix=_anew(path))


def _anew(path: str) -> str:
    return f"`rm -r {shlex.quote(path)}` on the host, then `clusterddp up` builds it anew"


CHECK = Check(
    name="locked-environment",
    category=CATEGORY,
    title="the environment of clusterddp_environment is built, unchanged and the same everywhere",
    judge=_locked,
    needs=(LOCKED,),
    after=("connection", "host-keys", "helper", "setup"),
    symptom="ModuleNotFoundError, or models and data that differ between the ranks",
)
