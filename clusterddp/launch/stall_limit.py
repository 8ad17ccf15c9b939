"""Which stall guard a run has: by its own options, else by the inventory's ``clusterddp_stall``. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.inventory import HostEntry
    from clusterddp.launch.options import RunOptions


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
        return replace(options, stall=None)
    blind = [entry.name for entry in hosts if not entry.comm_trace]
    if blind:
        raise UsageError(
            f"--stall: clusterddp_comm_trace of {blind[0]} is false, so nobody can tell whether its workers hang",
            remedy="remove that, or give --stall 0",
        )
    return options


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
