"""Checks of the GPUs' number, model and use, and of their driver."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from clusterddp.checks.catalog.software import equal
from clusterddp.checks.model import Check, Finding, fail, for_facts, missing_data, warn
from clusterddp.checks.needs import FACTS, HEALTH
from clusterddp.facts.gpu_assignment import FREE_MIB, check_gpus, with_taken_gpus
from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.folding import few

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from clusterddp.checks.evidence import Evidence, HostEvidence
    from clusterddp.facts.host import Facts, Gpu
    from clusterddp.inventory import HostEntry
    from clusterddp.remote.shared.probes.health_records import PortOwner

CATEGORY = "GPUs"
# The oldest driver for a major version of CUDA, within which minor versions are compatible.
_OLDEST_DRIVERS = {11: (450, 80), 12: (525, 60), 13: (580, 65)}
_FEWER_LISTED = "nothing in a container that was given no more; else look at the kernel log for GPUs that have failed"


def _gpu_counts(evidence: Evidence) -> Iterable[Finding]:
    for line in check_gpus(evidence.facts):
        host, _, text = line.partition(": ")
        message, _, fix = text.rpartition("; ")
        yield fail(host, message or text, fix=fix)
    for entry, facts in evidence.facts:
        if isinstance(entry.gpus, int) and len(facts.gpus) != entry.gpus and facts.devices != entry.gpus:
            yield fail(entry.name, f"{counted(facts.devices, 'GPU')}, clusterddp_gpus says {entry.gpus}")
        elif _are_all_meant(entry, facts) and 0 < len(facts.gpus) < facts.pci_nvidia:
            message = f"nvidia-smi lists {len(facts.gpus)} of {counted(facts.pci_nvidia, 'GPU')} on the PCI bus"
            yield warn(entry.name, message, fix=_FEWER_LISTED)


def _are_all_meant(entry: HostEntry, facts: Facts) -> bool:
    """Whether the host may use all its GPUs: neither the inventory nor CUDA_VISIBLE_DEVICES limits them."""
    return entry.gpus is None and entry.nproc is None and facts.visible_devices is None


def _driver(entry: HostEntry, facts: Facts) -> Finding | None:
    cuda = re.match(r"(\d+)\.", facts.torch.cuda or "") if facts.torch else None
    if not facts.torch or not cuda or not facts.gpus:
        return None
    if facts.torch.device_names and not facts.torch.device_error:
        return None  # torch has started them: a newer libcuda (cuda-compat) serves an older driver
    oldest = _OLDEST_DRIVERS.get(int(cuda[1]))
    version = tuple(int(part) for part in facts.gpus[0].driver.split(".")[:2] if part.isdecimal())
    if not oldest or not version or version + (0,) * (2 - len(version)) >= oldest:
        return None
    needed = ".".join(map(str, oldest))
    return fail(entry.name, f"driver {facts.gpus[0].driver}, and CUDA {cuda[1]} needs {needed} or newer")


def busy_gpus(evidence: Evidence) -> Iterable[Finding]:
    """GPUs for a run that some process uses, or may use: judged by nvidia-smi's processes and by used memory."""
    for report in evidence.hosts:
        if not report.facts:
            continue
        if report.facts.nvidia_error:
            yield missing_data(report.name, report.facts.nvidia_error)
        health = HEALTH.of(report)
        owners = health.owners if health else {}
        named = report.entry.gpus if isinstance(report.entry.gpus, tuple) else None
        for gpu in with_taken_gpus(report.facts, named).gpus:
            if gpu.processes:
                yield _busy_gpu(report, gpu, owners, shared=evidence.share_gpus)
            elif gpu.used_mib is not None and gpu.used_mib > FREE_MIB:
                yield warn(report.name, f"GPU {gpu.index}: {gpu.used_mib} MiB used by processes that cannot be seen")


def _busy_gpu(report: HostEvidence, gpu: Gpu, owners: Mapping[int, PortOwner], *, shared: bool) -> Finding:
    holders = [
        f"{owners[pid].user}'s {owners[pid].command} (pid {pid})" if pid in owners else f"pid {pid}"
        for pid in gpu.processes
    ]
    used = "" if gpu.used_mib is None else f", {gpu.used_mib} MiB used"
    message = f"GPU {gpu.index} is busy: {few(holders, 4)}{used}"
    user = report.facts.user if report.facts else ""
    own = all(pid in owners and owners[pid].user == user for pid in gpu.processes)
    return warn(report.name, message) if own or shared else fail(report.name, message)


def _models(facts: Facts) -> str:
    counts = Counter(f"{gpu.name} with {gpu.memory_mib or '?'} MiB" for gpu in facts.gpus)
    return ", ".join(f"{count}× {model}" for model, count in sorted(counts.items()))


CHECKS = (
    Check(
        name="gpus",
        category=CATEGORY,
        title="every host has the GPUs that it should",
        judge=_gpu_counts,
        needs=(FACTS,),
        after=("python", "torch"),
        symptom="invalid device ordinal, or No CUDA GPUs are available",
        fix="look at `nvidia-smi` there; correct clusterddp_gpus or clusterddp_nproc where it is meant",
    ),
    Check(
        name="driver",
        category=CATEGORY,
        title="the driver is new enough for torch",
        judge=for_facts(_driver),
        needs=(FACTS,),
        after=("python", "torch"),
        symptom="The NVIDIA driver on your system is too old",
        fix="install a newer driver, or a torch built for the CUDA version that `nvidia-smi` shows",
        playbook="nvidia.yml",
    ),
    Check(
        name="busy-gpus",
        category=CATEGORY,
        title="nobody computes on the GPUs",
        judge=busy_gpus,
        needs=(FACTS, HEALTH),
        after=("gpus",),
        symptom="CUDA out of memory, or half the speed",
        fix="end those processes; or `run --gpus free` takes other GPUs, `run --share-gpus` shares them",
    ),
    Check(
        name="gpus-equal",
        category=CATEGORY,
        title="the same GPUs everywhere",
        judge=equal("GPUs:", _models, "warn"),
        needs=(FACTS,),
        after=("gpus",),
        symptom="CUDA out of memory on some ranks only; all wait for the slowest",
        fix="group equal hosts in the inventory and run on one group: --limit",
    ),
)
