"""Which GPUs each node of a run uses: ``--gpus``, ``clusterddp_gpus``, and nodes that share one machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterddp.errors import PlanError, UsageError
from clusterddp.remote.shared.text.counted import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.facts.host import Facts, Gpu
    from clusterddp.inventory import HostEntry

    Nodes = Sequence[tuple[HostEntry, Facts]]

MAX_DEVICES = 1024  # of a host: no machine has more, whatever a host says
FREE_MIB = 500  # a GPU with less memory in use counts as free: the driver and a display take a little


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuPolicy:
    """The parsed value of ``--gpus``."""

    given: bool = False  # else the inventory decides
    bare: bool = False  # a single number, which may mean an index or a count
    free: bool = False  # only GPUs that nobody uses
    count: int | None = None  # how many of them; None: all
    names: tuple[str, ...] = ()  # indices or UUIDs; empty: all

    @classmethod
    def parse(cls, text: str | None) -> GpuPolicy:
        """Parse ``all``, ``free``, ``free:N``, or indices and UUIDs with commas; ``UsageError`` for anything else."""
        if text is None or text == "all":
            return cls(given=text is not None)
        if text == "free" or text.startswith("free:"):
            count = text.partition(":")[2]
            if text != "free" and not (count.isdecimal() and int(count)):
                raise UsageError(f"--gpus {text}: not a number of GPUs", remedy="for example free:2")
            return cls(given=True, free=True, count=int(count) if count else None)
        bare = text.strip().isdecimal() and int(text) > 0
        names = tuple(name.strip() for name in text.removesuffix(",").split(","))
        if not all(name.isdecimal() or name.startswith(("GPU-", "MIG-")) for name in names):
            raise UsageError(f"--gpus {text}: not a choice of GPUs", remedy="use all, free, free:2 or 0,3")
        return cls(given=True, bare=bare, names=names)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Device:
    """A GPU: ``key`` identifies it among all machines, ``name`` is its name in CUDA_VISIBLE_DEVICES."""

    key: str
    name: str
    index: int | None
    free: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class _NodeGpus:
    """The GPUs that a node sees, and those it may use."""

    name: str  # the node's
    visible: tuple[_Device, ...]
    pool: tuple[_Device, ...]  # those it may use
    fixed: bool  # it uses all of the pool, which the inventory lists
    count: int | None  # so many of the pool; None: an even share with the other nodes of its machine

    def names(self, taken: Sequence[_Device]) -> tuple[str, ...] | None:
        """CUDA_VISIBLE_DEVICES for the taken GPUs; None where these are all that are visible."""
        return None if tuple(taken) == self.visible else tuple(device.name for device in taken)


def assign_gpus(
    nodes: Sequence[tuple[HostEntry, Facts]], policy: str | None = None, *, share: bool = False
) -> dict[str, tuple[str, ...] | None]:
    """Choose the CUDA_VISIBLE_DEVICES of each node: a tuple of UUIDs or indices, or None to leave the host's own.

    Nodes that report the same GPU divide the machine's GPUs among them in inventory order, unless ``share`` is set.
    Raises ``UsageError`` for an invalid policy, ``PlanError`` if a GPU does not exist, is claimed twice, or too few are
    left.
    """
    option = GpuPolicy.parse(policy)
    if option.bare:
        _refuse_ambiguous(option, nodes)
    choices = [_node_gpus(entry, facts, option) for entry, facts in nodes]
    taken: dict[str, tuple[_Device, ...]] = {}
    for group in [[choice] for choice in choices] if share else _by_machine(choices):
        taken.update(_divide(group, free=option.free))
    return {choice.name: choice.names(taken[choice.name]) for choice in choices}


def _refuse_ambiguous(option: GpuPolicy, nodes: Nodes) -> None:
    """Refuse a number that could be an index or a count, with a message that shows both spellings."""
    count = int(option.names[0])
    name = next((entry.name for entry, facts in nodes if len(_visible(facts)) > count), None)
    if name:
        first = ",".join(map(str, range(count))) + ("," if count == 1 else "")
        raise UsageError(
            f"--gpus {count}: the GPU of index {count}, or so many? {name} has more",
            remedy=f"for the index write --gpus {count}, with its comma; for a number --gpus {first} or free:{count}",
        )


def one_free_gpu_each(nodes: Sequence[tuple[HostEntry, Facts]]) -> dict[str, tuple[str, ...]]:
    """For each node one free GPU of those that the inventory allows it, for the doctor's rehearsal; empty if none."""
    found: dict[str, tuple[str, ...]] = {}
    taken: set[str] = set()
    for choice in [_node_gpus(entry, facts, GpuPolicy()) for entry, facts in nodes]:
        free = [device for device in choice.pool if device.free and device.key not in taken][:1]
        taken |= {device.key for device in free}
        found[choice.name] = tuple(device.name for device in free)
    return found


def _node_gpus(entry: HostEntry, facts: Facts, option: GpuPolicy) -> _NodeGpus:
    """Combine ``--gpus`` with the inventory's ``clusterddp_gpus`` of one node; the option wins."""
    visible = _visible(facts)
    from_inventory = None if option.given else entry.gpus
    names = option.names or (from_inventory if isinstance(from_inventory, tuple) else ())
    source = "--gpus" if option.names else "clusterddp_gpus"
    pool = tuple(_find_device(entry.name, visible, name, source) for name in names) if names else visible
    return _NodeGpus(
        name=entry.name,
        visible=visible,
        pool=tuple(device for device in pool if device.free) if option.free else pool,
        fixed=isinstance(from_inventory, tuple),
        count=from_inventory if isinstance(from_inventory, int) else option.count,
    )


def _visible(facts: Facts) -> tuple[_Device, ...]:
    """The GPUs visible in the host's environment: those of its CUDA_VISIBLE_DEVICES if set, else all."""
    if facts.visible_devices is not None:
        names = [name.strip() for name in facts.visible_devices.split(",")]
        return tuple(_device_named(name, facts) for name in names if name and name != "-1")
    if facts.gpus and not any(gpu.mig for gpu in facts.gpus):
        return tuple(_device(gpu, gpu.uuid) for gpu in facts.gpus)
    return tuple(_device_named(str(index), facts) for index in range(min(facts.devices, MAX_DEVICES)))


def _device(gpu: Gpu, name: str) -> _Device:
    free = not gpu.processes and (gpu.used_mib or 0) < FREE_MIB
    return _Device(key=gpu.uuid, name=name, index=gpu.index, free=free)


def _device_named(name: str, facts: Facts) -> _Device:
    """The GPU with a name from CUDA_VISIBLE_DEVICES: an index, or (the beginning of) a UUID."""
    for gpu in facts.gpus:
        matches = name == str(gpu.index) or (name.startswith("GPU-") and gpu.uuid.startswith(name))
        if matches and not gpu.mig:
            return _device(gpu, name)
    index = int(name) if name.isascii() and name.isdecimal() and len(name) < 6 else None
    return _Device(key=f"{facts.boot}#{name}", name=name, index=index, free=True)  # ROCm, MIG: only the name is known


def _find_device(host: str, visible: Sequence[_Device], name: str, source: str) -> _Device:
    for device in visible:
        by_uuid = name.startswith("GPU-") and (device.name.startswith(name) or device.key.startswith(name))
        if name in (str(device.index), device.name) or by_uuid:
            return device
    if name.startswith("MIG-"):
        return _Device(key=name, name=name, index=None, free=True)
    if not visible:
        raise PlanError(f"{host}: {source} names GPU {name}, but the host has no GPU", remedy=f"leave {source} out")
    existing = ", ".join(device.name if device.index is None else str(device.index) for device in visible)
    raise PlanError(f"{host}: {source} names GPU {name}, but the host has: {existing}", remedy=f"correct {source}")


def _by_machine(choices: Sequence[_NodeGpus]) -> list[list[_NodeGpus]]:
    """Group the nodes by machine: those that see a common GPU."""
    groups: dict[int, list[_NodeGpus]] = {}  # by the number of its last node
    group_of: dict[str, int] = {}  # key of a GPU → group
    for number, choice in enumerate(choices):
        keys = {device.key for device in (*choice.visible, *choice.pool)}
        common = sorted({group_of[key] for key in keys & group_of.keys()})
        groups[number] = [*(node for group in common for node in groups.pop(group)), choice]
        for node in groups[number]:
            group_of.update((device.key, number) for device in (*node.visible, *node.pool))
    return list(groups.values())


def _divide(group: Sequence[_NodeGpus], *, free: bool) -> dict[str, tuple[_Device, ...]]:
    """Divide one machine's GPUs among its nodes: named GPUs first, then counts, then the rest in even shares."""
    taken: dict[str, tuple[_Device, ...]] = {}
    owner: dict[str, str] = {}
    sharers = sum(1 for choice in group if not choice.fixed and choice.count is None)
    for choice in sorted(group, key=lambda choice: (not choice.fixed, choice.count is None)):
        left = tuple(device for device in choice.pool if device.key not in owner)
        if choice.fixed:
            _refuse_claimed(choice, owner)
            devices = choice.pool
        elif choice.count is not None:
            devices = _take_count(choice, left, free=free)
        else:
            devices = left[: -(-len(left) // sharers)]
            sharers -= 1
            _refuse_empty(choice, devices, free=free)
        taken[choice.name] = devices
        owner.update((device.key, choice.name) for device in devices)
    return taken


def _refuse_claimed(choice: _NodeGpus, owner: dict[str, str]) -> None:
    """Raise if a GPU that the inventory gives this node is another's already; ``owner``: GPU key → node."""
    for device in choice.pool:
        if device.key in owner:
            raise PlanError(
                f"{choice.name} and {owner[device.key]} both claim GPU {device.name} of one machine",
                remedy=_ASSIGN_REMEDY,
            )


def _take_count(choice: _NodeGpus, left: tuple[_Device, ...], *, free: bool) -> tuple[_Device, ...]:
    """The first of the GPUs left, as many as the node needs; ``PlanError`` if there are too few."""
    count = choice.count or 0
    if len(left) >= count:
        return left[:count]
    if free and not choice.visible:
        raise PlanError(f"{choice.name}: --gpus free:{count}, but the host has no GPU", remedy="leave --gpus out")
    if free:
        raise PlanError(
            f"{choice.name}: --gpus free:{count}, but only {len(left)} of its GPUs are free", remedy=_WAIT_REMEDY
        )
    raise PlanError(
        f"{choice.name}: clusterddp_gpus expects {counted(count, 'GPU')}, but {len(left)} are there for it",
        remedy="look at nvidia-smi on the host, or correct clusterddp_gpus",
    )


def _refuse_empty(choice: _NodeGpus, devices: tuple[_Device, ...], *, free: bool) -> None:
    """Raise if a node that has GPUs would get none."""
    if choice.visible and not devices:
        if free:
            raise PlanError(f"{choice.name}: none of its GPUs is free", remedy=_WAIT_REMEDY)
        raise PlanError(f"{choice.name}: no GPU of its machine is left for it", remedy=_ASSIGN_REMEDY)


_WAIT_REMEDY = "wait, share them by `run --share-gpus` without --gpus, or leave the host out by --limit"
_ASSIGN_REMEDY = "give each its own in clusterddp_gpus, or share them: `run --share-gpus`"


def with_taken_gpus(facts: Facts, devices: Sequence[str] | None) -> Facts:
    """Return the facts with only those GPUs in use that a run would take (UUIDs or indices; None: all visible ones)."""
    if devices is None:
        if facts.visible_devices is None or "MIG-" in facts.visible_devices:  # whose GPU is not known
            return facts
        devices = [name.strip() for name in facts.visible_devices.split(",")]
    gpus = tuple(
        gpu if is_named(devices, gpu.index, gpu.uuid) else replace(gpu, processes=(), used_mib=None)
        for gpu in facts.gpus
    )
    return replace(facts, gpus=gpus)


def is_named(names: Sequence[str], index: int, uuid: str) -> bool:
    """Whether one of the names is a GPU's: its index, or its UUID or the beginning of it."""
    return str(index) in names or any(uuid.startswith(name) for name in names if name.startswith("GPU-"))


def worker_count(entry: HostEntry, facts: Facts, devices: Sequence[str] | None = None) -> int:
    """The number of workers of a node: the inventory's number, else one per GPU, else one."""
    if entry.nproc is not None:
        return entry.nproc
    return max(1, facts.devices if devices is None else len(devices))


def check_gpus(nodes: Nodes) -> list[str]:
    """Describe, with the remedy, each node on which torch does not see the GPUs that should be there, or are named."""
    judged = [(entry, facts) for entry, facts in nodes if entry.nproc is None and not isinstance(entry.gpus, int)]
    named = {entry.name: wrong for entry, facts in judged if (wrong := _wrong_gpus(facts))}
    lines = [f"{name}: {wrong}" for name, wrong in named.items()]
    lines += [wrong for entry, facts in nodes if entry.name not in named and (wrong := _wrong_names(entry, facts))]
    with_gpus = [entry.name for entry, facts in nodes if facts.devices]
    without = [entry.name for entry, facts in judged if not facts.devices and entry.name not in named]
    if with_gpus and without:
        lines += [
            f"{name}: torch sees no GPU here, but some on {with_gpus[0]}; set clusterddp_nproc here if that is meant"
            for name in without
        ]
    return lines


def _wrong_names(entry: HostEntry, facts: Facts) -> str:
    """Which GPU of ``clusterddp_gpus`` a host does not have, with the remedy; empty if it has all."""
    if not isinstance(entry.gpus, tuple):
        return ""
    try:
        _node_gpus(entry, facts, GpuPolicy())
    except PlanError as error:
        return str(error)
    return ""


def _wrong_gpus(facts: Facts) -> str | None:
    """Why torch does not see a host's GPUs, with the remedy; None if it sees all."""
    if facts.nvidia_error:
        return f"{facts.nvidia_error}; repair the driver, or set clusterddp_nproc to go on without"
    torch = facts.torch
    if torch is None or torch.import_error:
        return None  # the check `torch` reports it
    # A container shows the PCI bus of its machine, and nvidia-smi lists the GPUs that it was given.
    there = (len(facts.gpus) or facts.pci_nvidia) + facts.pci_amd
    restricted = facts.visible_devices is not None or any(gpu.mig for gpu in facts.gpus)
    if torch.device_count < there and not restricted:
        build = "is built for CPUs only" if torch.cuda is None and torch.hip is None else "does not see all"
        return (
            f"torch {torch.version} {build}: {torch.device_count} of {counted(there, 'GPU')} there; "
            "install a build for them, look at the driver, or set clusterddp_nproc to state what is meant"
        )
    if torch.device_error:
        seen = counted(torch.device_count, "GPU")
        return f"torch sees {seen} but cannot start them: {torch.device_error}; repair the driver"
    return None
