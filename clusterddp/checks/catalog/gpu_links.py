"""Checks of how NVIDIA GPUs are connected: NVLink and its fabric, PCIe lanes, InfiniBand access to GPU memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.checks.catalog.gpu_health import AFTER, CATEGORY, by_text, for_each_card, for_gpus, gpu_health
from clusterddp.checks.model import Check, Finding, fail, missing_data, warn
from clusterddp.checks.needs import FACTS, GPU_HEALTH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from clusterddp.checks.evidence import Evidence, HostEvidence
    from clusterddp.remote.shared.probes.gpu_records import Card, GpuHealth


def _missing_nvlinks(evidence: Evidence) -> Iterable[Finding]:
    yield from for_gpus(_links_error)(evidence)

    def links_up(health: GpuHealth, card: Card) -> int | None:
        return health.links[card.uuid][0] if card.uuid in health.links else None

    yield from _warn_by_card(
        (report, card, f"{_links_text(*health.links[card.uuid])}{_best_of_model(best)}")
        for report, health, card, up, best in _with_best_of_model(evidence, links_up)
        if up < best  # some models have unwired links: only a comparison within the model shows a fault
    )


def _links_text(up: int, count: int) -> str:
    return f"{up} of {count} NVLinks are up" if count else "all NVLinks are down"


def _links_error(report: HostEvidence, health: GpuHealth) -> Iterable[Finding]:
    if health.links_error:
        yield missing_data(report.name, health.links_error)


def _missing_pcie_lanes(evidence: Evidence) -> Iterable[Finding]:
    yield from for_gpus(lambda _seen, _health: ())(evidence)
    yield from _warn_by_card(
        (report, card, f"{width} PCIe lanes of {card.most_width}{_best_of_model(best) if width < best else ''}")
        for report, _health, card, width, best in _with_best_of_model(evidence, lambda _health, card: card.width)
        # Virtual machines and boards give healthy cards half of their lanes; then others of the kind have no more.
        if card.most_width and width < card.most_width and (width < best or width < card.most_width // 2)
    )


def _best_of_model(best: int) -> str:
    return f", {best} on others of its kind"


def _warn_by_card(found: Iterable[tuple[HostEvidence, Card, str]]) -> Iterable[Finding]:
    """Warnings about single GPUs, grouped by host; GPUs with the same text share one finding."""
    texts: dict[str, dict[int, str]] = {}
    for report, card, text in found:
        texts.setdefault(report.name, {})[card.number] = text
    for host, by_index in texts.items():
        yield from by_text(host, by_index, warn)


def _with_best_of_model(
    evidence: Evidence, value: Callable[[GpuHealth, Card], int | None]
) -> list[tuple[HostEvidence, GpuHealth, Card, int, int]]:
    """Each GPU for which ``value`` is known, with it and the largest one among GPUs of its model on all hosts."""
    found = [
        (report, health, card, own)
        for report in evidence.hosts
        if (health := gpu_health(report))
        for card in health.cards
        if (own := value(health, card)) is not None
    ]
    best: dict[str, int] = {}
    for report, _, card, own in found:
        model = _model(report, card)
        best[model] = max(best.get(model, 0), own)
    return [(report, health, card, own, best[_model(report, card)]) for report, health, card, own in found]


def _model(report: HostEvidence, card: Card) -> str:
    return next((gpu.name for gpu in report.facts.gpus if gpu.uuid == card.uuid), "") if report.facts else ""


def _nvswitch_fabric(report: HostEvidence, health: GpuHealth) -> Iterable[Finding]:
    started = health.smoke_test is not None and all(not start.error for start in health.smoke_test.starts)
    # A single GPU of a board that is passed to a virtual machine may be outside the fabric, and does not need it.
    wrong = list(for_each_card(report.name, health.cards, _outside_fabric, warn if started else fail))
    yield from wrong
    if wrong or not health.switches or any(card.fabric_state for card in health.cards):
        return
    if health.fabric_manager not in (None, "active") and not started:
        yield fail(
            report.name, f"there are {health.switches} NVSwitches, and nvidia-fabricmanager is {health.fabric_manager}"
        )
    elif health.fabric_manager is None and not started:
        yield missing_data(report.name, "no systemd here that tells of nvidia-fabricmanager")


def _outside_fabric(card: Card) -> str:
    """Why a GPU is not part of its NVSwitch fabric; empty if it is, or needs none."""
    if card.fabric_state not in (None, "Completed"):
        return f"its place in the NVLink fabric: {card.fabric_state}"
    return f"NVLink fabric: {card.fabric_status}" if card.fabric_status not in (None, "Success") else ""


def _gpu_direct(report: HostEvidence, health: GpuHealth) -> Iterable[Finding]:
    if health.mellanox and not health.peer_memory and not health.open_driver:
        yield warn(report.name, f"{', '.join(health.mellanox[:4])} cannot reach the GPUs' memory: no nvidia_peermem")


CHECKS = (
    Check(
        name="nvlink",
        category=CATEGORY,
        title="as many NVLinks are up on GPUs of one kind",
        judge=_missing_nvlinks,
        needs=(FACTS, GPU_HEALTH),
        after=AFTER,
        symptom="collectives at a fraction of their bandwidth",
        fix="reset the GPUs of that machine together, or reboot; reseat bridges, have the board looked at",
    ),
    Check(
        name="pcie-width",
        category=CATEGORY,
        title="the GPUs have all their PCIe lanes",
        judge=_missing_pcie_lanes,
        needs=(FACTS, GPU_HEALTH),
        after=AFTER,
        symptom="one rank loads its batches slower, all wait for it",
        fix="reseat the card or its riser",
    ),
    Check(
        name="gpu-direct",
        category=CATEGORY,
        title="InfiniBand reaches the GPUs' memory",
        judge=for_gpus(_gpu_direct),
        needs=(FACTS, GPU_HEALTH),
        after=AFTER,
        symptom="collectives between hosts at a third of their bandwidth",
        fix="sudo modprobe nvidia_peermem, or use the driver's open kernel modules",
    ),
    Check(
        name="fabric-manager",
        category=CATEGORY,
        title="the NVSwitches are set up by their fabric manager",
        judge=for_gpus(_nvswitch_fabric),
        needs=(FACTS, GPU_HEALTH),
        after=AFTER,
        symptom="Error 802: system not yet initialized",
        fix="`sudo systemctl enable --now nvidia-fabricmanager`, of exactly the driver's version",
        playbook="nvidia.yml",
    ),
)
