"""Checks of GPUs by a smoke test of each in torch: built for their architecture, started, copied between."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clusterddp.checks.catalog.gpu_health import CATEGORY
from clusterddp.checks.model import Check, Finding, fail, missing_data, skipped
from clusterddp.checks.needs import FACTS, GPU_HEALTH, GPU_SMOKE_TEST
from clusterddp.text.folding import few

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from clusterddp.checks.evidence import Evidence, HostEvidence
    from clusterddp.remote.shared.probes.gpu_records import GpuHealth, GpuSmokeTest

_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def for_tests(
    judge: Callable[[HostEvidence, GpuSmokeTest], Iterable[Finding]],
) -> Callable[[Evidence], Iterable[Finding]]:
    """Make a check of a function that judges one host's GPU smoke test; hosts whose GPUs were not tried are skipped."""

    def judged(evidence: Evidence) -> Iterable[Finding]:
        for report in evidence.hosts:
            health = GPU_HEALTH.of(report)
            if health and health.smoke_test and health.smoke_test.error:
                yield missing_data(report.name, health.smoke_test.error)
            elif health and health.smoke_test:
                yield from judge(report, health.smoke_test)
            elif health and not _device_error(report):
                yield skipped(report.name, _untested_reason(report, health))

    return judged


def _untested_reason(report: HostEvidence, health: GpuHealth) -> str:
    if health.reason:
        return health.reason
    return "its GPUs are in use" if report.facts and report.facts.devices else "torch sees no GPU there"


def _device_error(report: HostEvidence) -> str | None:
    return report.facts.torch.device_error if report.facts and report.facts.torch else None


def _architecture(report: HostEvidence, smoke_test: GpuSmokeTest) -> Iterable[Finding]:
    unsupported: dict[tuple[int, int], list[int]] = {}
    for start in smoke_test.starts:
        if start.capability and start.arches and not _built_for(start.arches, start.capability):
            unsupported.setdefault(start.capability, []).append(start.number)
    for (major, minor), indices in unsupported.items():
        arches = ", ".join(smoke_test.starts[0].arches)
        where = f"cuda:{', '.join(map(str, indices))}"
        yield fail(report.name, f"{where}: this torch is built for {arches}, not for sm_{major}{minor}")


def _built_for(arches: Iterable[str], capability: tuple[int, int]) -> bool:
    """Whether torch has code for one of these architectures that runs on a GPU of that compute capability.

    Binary code (``sm``) runs on the same major version from its minor version up, PTX (``compute``) on everything
    newer. The suffix ``a`` means exactly that version, ``f`` only within its major version.
    """
    for arch in arches:
        match = _ARCHITECTURE.fullmatch(arch)
        if not match:
            continue
        version = int(match[2]), int(match[3])
        family = version[0] == capability[0] and version <= capability
        portable = match[1] == "compute" and not match[4] and version <= capability
        if version == capability or (family and match[4] != "a") or portable:
            return True
    return False


def _gpu_starts(evidence: Evidence) -> Iterable[Finding]:
    for report in evidence.hosts:
        if error := _device_error(report):
            yield fail(report.name, error)
    yield from for_tests(_start_errors)(evidence)


def _start_errors(report: HostEvidence, smoke_test: GpuSmokeTest) -> Iterable[Finding]:
    for start in smoke_test.starts:
        if start.error:
            yield fail(report.name, f"cuda:{start.number}: {start.error}")


def _peer_copies(report: HostEvidence, smoke_test: GpuSmokeTest) -> Iterable[Finding]:
    peers = smoke_test.peers
    if peers is None:
        why = "it has one GPU" if len(smoke_test.starts) == 1 else "because of gpu-start"
        yield skipped(report.name, why)
        return
    health = GPU_HEALTH.of(report)
    iommu = health.iommu if health else None
    translates = iommu is not None and iommu != "identity"
    hint = "boot with iommu=pt (the IOMMU translates here)" if translates else "switch ACS off for the GPUs' bridges"
    fix = f"{hint}, or switch the IOMMU off in the firmware; until then clusterddp_env: {{NCCL_P2P_DISABLE: 1}}"
    if peers.hangs:
        yield fail(report.name, f"a copy from cuda:{peers.hangs[0]} to cuda:{peers.hangs[1]} hangs", fix=fix)
    if peers.wrong:
        pairs = few([f"{source} → {target}" for source, target in peers.wrong], 6)
        yield fail(report.name, f"what is copied between GPUs arrives changed: cuda:{pairs}", fix=fix)
    if peers.error:
        yield fail(report.name, f"copies between GPUs: {peers.error}", fix=fix)


CHECKS = (
    Check(
        name="architecture",
        category=CATEGORY,
        title="torch is built for the GPUs' generation",
        judge=for_tests(_architecture),
        needs=(FACTS, GPU_HEALTH, GPU_SMOKE_TEST),
        after=("python", "torch", "gpus", "driver"),
        symptom="no kernel image is available for execution on the device",
        fix="install a build of torch that lists the GPU's sm_XX in torch.cuda.get_arch_list()",
    ),
    Check(
        name="gpu-start",
        category=CATEGORY,
        title="torch can start the GPUs it sees",
        judge=_gpu_starts,
        needs=(FACTS, GPU_HEALTH, GPU_SMOKE_TEST),
        after=("python", "torch", "gpus", "driver", "nvidia-smi", "fabric-manager", "architecture"),
        symptom="CUDA error, or a hang in the first .cuda()",
        fix="reset the GPU or reboot; on machines with NVSwitch look at nvidia-fabricmanager",
    ),
    Check(
        name="peer-copies",
        category=CATEGORY,
        title="GPUs of one host copy to each other",
        judge=for_tests(_peer_copies),
        needs=(FACTS, GPU_HEALTH, GPU_SMOKE_TEST),
        after=("python", "torch", "gpus", "driver", "fabric-manager", "architecture", "gpu-start"),
        symptom="a hang at 100 % GPU use in the first collective, or a loss that becomes NaN",
        fix="clusterddp_env: {NCCL_P2P_DISABLE: 1}",
    ),
)
