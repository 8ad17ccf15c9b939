"""Which stall guard a run has: by its own options, else by the inventory's ``clusterddp_stall``. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError
from clusterddp.remote.shared.run.unplaced_plan import torch_release
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterddp.inventory import HostEntry
    from clusterddp.launch.options import RunOptions

OLDEST_TORCH = (2, 8)  # whose workers say which collective operations they are in


def with_stall(options: RunOptions, hosts: Sequence[HostEntry]) -> RunOptions:
    """Return the options with the limit of these hosts, where none is given; raises UsageError for what cannot be."""
    if options.stall is None:
        options = replace(options, stall=_limit_of(hosts) or None)
    if not options.stall:
        if options.on_stall != "report":
            raise UsageError(
                f"--on-stall {options.on_stall}: no stall guard is asked for",
                remedy="give --stall D too, such as --stall 10m, or set clusterddp_stall",
            )
        return options
    blind = [entry.name for entry in hosts if not entry.comm_trace]
    if blind:
        raise UsageError(
            f"--stall: clusterddp_comm_trace of {blind[0]} is false, so nobody can tell whether its workers hang",
            remedy="remove that, or give --stall 0",
        )
    return options


def blind_notice(options: RunOptions, versions: Mapping[str, str]) -> str:
    """Return the notice that the guard cannot see the workers of some hosts; ``versions``: of torch, by host."""
    blind = [host for host, version in versions.items() if version and torch_release(version) < OLDEST_TORCH]
    if not options.stall or not blind:
        return ""
    found = ", ".join(sorted({versions[host] for host in blind}))
    needed = ".".join(map(str, OLDEST_TORCH))
    return f"the stall guard will find nothing: {folded_names(blind)} has torch {found}, and it needs {needed}"


def _limit_of(hosts: Sequence[HostEntry]) -> float:
    """Return the limit that all these hosts have; 0 for none."""
    first = hosts[0].stall if hosts else 0.0
    for entry in hosts:
        if entry.stall != first:
            raise UsageError(
                f"clusterddp_stall of {entry.name} is not that of {hosts[0].name}: a run has one stall guard",
                remedy="set it for all, below `vars:`, or give --stall D",
            )
    return first
