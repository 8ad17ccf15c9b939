"""The paths that a job's environment variables name on a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterddp.facts.host import Facts
    from clusterddp.inventory import HostEntry

MAX_PATHS, MAX_PATH_LENGTH = 64, 1000  # characters


def job_paths(entry: HostEntry, facts: Facts) -> dict[str, str]:
    """The paths in ``clusterddp_env`` and in variables for cache folders, each with the name of its variable.

    A value counts as paths if each of its colon-separated parts begins with ``/`` or ``~/``.
    """
    found: dict[str, str] = {}
    for name, value in {**facts.folder_variables, **entry.env}.items():
        parts = [part for part in value.split(":") if part]
        if all(part.startswith(("/", "~/")) and len(part) < MAX_PATH_LENGTH and part.isprintable() for part in parts):
            for part in parts:
                found.setdefault(part, name)
    return dict(list(found.items())[:MAX_PATHS])
