"""Where a run's workers work on each host, by its record, in words. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterddp.remote.shared.workdirs import ending
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Mapping


def workdirs(record: Mapping[str, Any]) -> dict[str, str]:
    """The run's folder on each host; empty for a run of an earlier version."""
    return {str(host): str(path) for host, path in (record.get("workdirs") or {}).items()}


def described(record: Mapping[str, Any]) -> str:
    """``/home/alice/clusterddp/toy-4f1c``; where hosts differ, which have which. Empty where it is not known."""
    hosts: dict[str, list[str]] = {}
    for host, path in workdirs(record).items():
        hosts.setdefault(path, []).append(host)
    if len(hosts) < 2:
        return next(iter(hosts), "")
    return ", ".join(f"{path} on {folded_names(names)}" for path, names in hosts.items())


def beside(record: Mapping[str, Any]) -> str:
    """What tells its folder from the project's own: ``@exp1``, ``~4f1c02a9be11``; empty for the project's own."""
    name = str(record.get("workdir") or "")
    endings = dict.fromkeys(ending(path, name) for path in workdirs(record).values())
    return ",".join(filter(None, endings))
