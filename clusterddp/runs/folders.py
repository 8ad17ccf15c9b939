"""Where a run's workers work on each host, by its record, in words. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from clusterddp.remote.shared.run.run_record import RunRecord


def described(record: RunRecord) -> str:
    """``/home/alice/clusterddp/toy-4f1c``; where hosts differ, which have which. Empty where it is not known."""
    hosts: dict[str, list[str]] = {}
    for host, path in record.workdirs.items():
        hosts.setdefault(path, []).append(host)
    if len(hosts) < 2:
        return next(iter(hosts), "")
    return ", ".join(f"{path} on {folded_names(names)}" for path, names in hosts.items())


def beside(record: RunRecord) -> str:
    """What tells its folder from the project's own: ``@exp1``; empty for the project's own."""
    return f"@{record.workdir}" if record.workdir else ""
