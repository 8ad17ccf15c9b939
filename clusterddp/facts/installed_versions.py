"""What a host tells of the environment that it has of a lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clusterddp.facts.read_facts import facts_of, read_as


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedFacts:
    """The environment on a host. Without ``there`` the digests are empty."""

    path: str
    there: bool  # whole
    built: str  # digest over what was installed when it was built
    now: str  # over what is installed

    @classmethod
    def from_json(cls, host: str, data: Any) -> LockedFacts:
        """From the result of a host's ``environment_proof`` operation.

        Raises:
            HelperError: a field is missing or no value of its kind.
        """
        return read_as(cls, facts_of(host, data))
