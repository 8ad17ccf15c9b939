"""How many workers a node runs, and what is wrong with its GPUs.

Pure over inventory entries and facts. A node without any GPU is a CPU node with one worker; a node that has lost its
GPUs is an error, unless a number in the inventory states that it is meant.
Not here: which GPUs a node takes (facts/gpu_assignment.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.facts.host import Facts
    from clusterddp.inventory import HostEntry

    Nodes = Sequence[tuple[HostEntry, Facts]]


def workers(entry: HostEntry, facts: Facts, devices: Sequence[str] | None = None) -> int:
    """How many workers a node runs: the inventory's number, else one a GPU, else one.

    Args:
        entry: The node.
        facts: Its facts.
        devices: What `assign_gpus` gave it; None means all that torch sees.
    """
    if entry.nproc is not None:
        return entry.nproc
    return max(1, facts.devices if devices is None else len(devices))


def check_gpus(nodes: Nodes) -> list[str]:
    """One line for each node whose GPUs are not what they seem, with the remedy."""
    judged = [(entry, facts) for entry, facts in nodes if not _stated(entry)]
    lines = [f"{entry.name}: {wrong}" for entry, facts in judged if (wrong := _wrong_gpus(facts))]
    named = {line.split(":")[0] for line in lines}
    with_gpus = [entry.name for entry, facts in nodes if facts.devices]
    without = [entry.name for entry, facts in judged if not facts.devices and entry.name not in named]
    if with_gpus and without:
        lines += [
            f"{name}: torch sees no GPU here, but some on {with_gpus[0]}; set clusterddp_nproc here if that is meant"
            for name in without
        ]
    return lines


def _stated(entry: HostEntry) -> bool:
    return entry.nproc is not None or isinstance(entry.gpus, int)


def _wrong_gpus(facts: Facts) -> str | None:
    if facts.nvidia_error:
        return f"{facts.nvidia_error}; repair the driver, or set clusterddp_nproc to go on without"
    torch = facts.torch
    if torch is None or torch.import_error:
        return None  # the check `torch` says it
    on_bus = facts.pci_nvidia + facts.pci_amd
    restricted = facts.visible_devices is not None or any(gpu.mig for gpu in facts.gpus)
    if torch.device_count < on_bus and not restricted:
        build = "is built for CPUs only" if torch.cuda is None and torch.hip is None else "does not see all"
        return (
            f"torch {torch.version} {build}: {torch.device_count} of {on_bus} GPUs on the PCI bus; "
            "install a build for them, look at the driver, or set clusterddp_nproc to state what is meant"
        )
    if torch.device_error:
        return f"torch sees {torch.device_count} GPUs but cannot start them: {torch.device_error}; repair the driver"
    return None
