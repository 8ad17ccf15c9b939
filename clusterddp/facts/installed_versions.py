"""A host's report on the Python environment that was built there from a lock file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clusterddp.facts.read_facts import facts_of, read_as


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedFacts:
    """The environment of a lock file on a host; the digests are empty unless it is ``there``."""

    path: str
    there: bool  # built completely
    built: str  # digest of what was installed when it was built
    now: str  # digest of what is installed now

    @classmethod
    def from_json(cls, host: str, data: Any) -> LockedFacts:
        """Read the result of a host's ``environment_proof`` operation; ``HelperError`` if it is damaged."""
        return read_as(cls, facts_of(host, data))
