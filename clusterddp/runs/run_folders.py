"""Describe in words in which folder a run's workers work on each host, from the run's record. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from clusterddp.remote.shared.run.run_record import RunRecord


def describe_workdirs(record: RunRecord) -> str:
    """Return the folder, such as ``/home/alice/clusterddp/toy-4f1c``; if hosts differ, each with its hosts.

    Empty if it is not known.
    """
    hosts: dict[str, list[str]] = {}
    for host, path in record.workdirs.items():
        hosts.setdefault(path, []).append(host)
    if len(hosts) < 2:
        return next(iter(hosts), "")
    return ", ".join(f"{path} on {folded_names(names)}" for path, names in hosts.items())


def workdir_label(record: RunRecord) -> str:
    """Return what distinguishes the run's folder from the project's own: ``@exp1``; empty for the project's own."""
    return f"@{record.workdir}" if record.workdir else ""
