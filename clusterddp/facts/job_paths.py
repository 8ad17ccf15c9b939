"""The paths that a job's environment names on a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterddp.facts.host import Facts
    from clusterddp.inventory import HostEntry

MOST, LONGEST = 64, 1000


def job_paths(entry: HostEntry, facts: Facts) -> dict[str, str]:
    """The variable that names it by each path, of ``clusterddp_env`` and of those that name folders of caches.

    A value is taken for paths where each part of it, between colons, begins at the root or in the home.
    """
    found: dict[str, str] = {}
    for name, value in {**facts.places, **entry.env}.items():
        parts = [part for part in value.split(":") if part]
        if all(part.startswith(("/", "~/")) and len(part) < LONGEST and part.isprintable() for part in parts):
            for part in parts:
                found.setdefault(part, name)
    return dict(list(found.items())[:MOST])
