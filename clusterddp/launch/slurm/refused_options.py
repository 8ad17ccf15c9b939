"""Refuses options and inventory variables that make no sense if Slurm chooses the machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.errors import UsageError
from clusterddp.inventory.variables.variable_table import VARIABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.inventory import HostEntry, Inventory
    from clusterddp.launch.options import RunOptions

_UNCHECKED = "leave it out; `clusterddp doctor --launcher slurm` looks at nodes in a short job"
# Option of a run → why it is refused, and the remedy.
REFUSED = {
    "gpus": ("Slurm gives a job its GPUs", "set clusterddp_gpus to their number a node"),
    "share_gpus": (
        "Slurm gives a job its GPUs",
        "leave it out; clusterddp_slurm_lines may ask for nodes that are shared",
    ),
    "no_doctor": ("no node is checked before Slurm has chosen it", _UNCHECKED),
    "skip": ("no node is checked before Slurm has chosen it", _UNCHECKED),
}
# Fields of inventory variables that are the same for all nodes of a job. These are read from the first named node,
OF_THE_NODES = tuple(name for name, declared in VARIABLES.items() if declared.of_job == "nodes")
# and these from the login host, whose folders the nodes share.
OF_THE_LOGIN = tuple(name for name, declared in VARIABLES.items() if declared.of_job == "login")


def refuse_ignored(options: RunOptions, inventory: Inventory, named: Sequence[HostEntry]) -> None:
    """Raise ``UsageError`` for an option or variable that a Slurm job would ignore; ``named`` are its compute nodes."""
    for name, (why, remedy) in REFUSED.items():
        if getattr(options, name):
            raise UsageError(f"--{name.replace('_', '-')}: {why}", remedy=remedy)
    if options.array and options.on_disconnect == "stop":
        raise UsageError("--on-disconnect stop: nobody follows the runs of an array", remedy="leave it out")
    if options.relaunch and inventory.spares:
        spare = inventory.spares[0].name
        raise UsageError(f"{spare}: a job of Slurm's has no spares", remedy="ask for more nodes: --nnodes MIN:MAX")
    entries = [*named, *inventory.logins]
    first = entries[0] if entries else None  # None: this machine submits, and the inventory names no nodes
    if first is None:
        return
    if isinstance(first.gpus, tuple):
        raise UsageError(
            f"{first.name}: clusterddp_gpus: {', '.join(first.gpus)}: Slurm gives a job its GPUs",
            remedy="write how many a node",
        )
    addressed = next((entry for entry in named or entries if entry.data_address), None)
    if addressed:
        raise UsageError(
            f"{addressed.name}: clusterddp_address: Slurm chooses the nodes", remedy="set clusterddp_interface for all"
        )
    for field in OF_THE_NODES:
        _refuse_difference(field, first, named)
    for login in inventory.logins:
        for field in OF_THE_LOGIN:
            _refuse_difference(field, login, named)


def _refuse_difference(field: str, first: HostEntry, others: Sequence[HostEntry]) -> None:
    """Raise ``UsageError`` if a variable of another host differs from that of the first."""
    for other in others:
        if getattr(other, field) != getattr(first, field):
            raise UsageError(
                f"clusterddp_{field} of {other.name} is not that of {first.name}: a job's nodes have one",
                remedy="set it for both, below `vars:`",
            )
