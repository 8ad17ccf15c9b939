"""The options and inventory variables that are refused where Slurm chooses the machines. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.inventory import HostEntry, Inventory
    from clusterddp.launch.options import RunOptions

_UNCHECKED = "leave it out; `clusterddp doctor --launcher slurm` looks at nodes in a short job"
# Options of a run that mean nothing there: why, and what helps.
REFUSED = {
    "gpus": ("Slurm gives a job its GPUs", "set clusterddp_gpus to their number a node"),
    "share_gpus": (
        "Slurm gives a job its GPUs",
        "leave it out; clusterddp_slurm_lines may ask for nodes that are shared",
    ),
    "no_doctor": ("no node is checked before Slurm has chosen it", _UNCHECKED),
    "skip": ("no node is checked before Slurm has chosen it", _UNCHECKED),
}
# Variables that hold for all nodes of a job, by their fields: they are read of the first node that is named ...
OF_THE_NODES = (
    "setup", "python", "nproc", "gpus", "environment", "env", "secrets", "interface", "ports", "fork_server", "preload",
    "slurm",
)  # fmt: skip
# ... and of the login host, whose folders the nodes share.
OF_THE_LOGIN = ("workdir", "links", "state")


def refuse_ignored(options: RunOptions, inventory: Inventory, named: Sequence[HostEntry]) -> None:
    """Refuse what a Slurm job would ignore.

    Args:
        options: The run's.
        inventory: The hosts.
        named: The compute nodes that it names.

    Raises:
        UsageError: Names the option or variable, and what helps.
    """
    for name, (why, remedy) in REFUSED.items():
        if getattr(options, name):
            raise UsageError(f"--{name.replace('_', '-')}: {why}", remedy=remedy)
    if options.relaunch and inventory.spares:
        spare = inventory.spares[0].name
        raise UsageError(f"{spare}: a job of Slurm's has no spares", remedy="ask for more nodes: --nnodes MIN:MAX")
    holding = [*named, *inventory.logins]
    first = holding[0] if holding else None  # Slurm here, and nodes of which nothing is said
    if first is None:
        return
    if isinstance(first.gpus, tuple):
        raise UsageError(
            f"{first.name}: clusterddp_gpus: {', '.join(first.gpus)}: Slurm gives a job its GPUs",
            remedy="write how many a node",
        )
    addressed = next((entry for entry in named or holding if entry.data_address), None)
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
    for other in others:
        if getattr(other, field) != getattr(first, field):
            raise UsageError(
                f"clusterddp_{field} of {other.name} is not that of {first.name}: a job's nodes have one",
                remedy="set it for both, below `vars:`",
            )
