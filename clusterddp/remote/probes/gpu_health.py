"""The operation ``gpu_health``: the doctor's view of each NVIDIA GPU, from the driver, the kernel log and torch."""

import os
from typing import Any, Dict, List, Optional

from ..helper.request import Request
from ..system import nvidia_smi
from ..system.bounded_child import Child
from ..system.small_files import sorted_names, text_of
from . import nvidia_smi_xml
from .gpu_trial import try_gpus
from .xids import KernelLog

QUICK = 10.0  # seconds that systemctl may take
PCI = "/sys/bus/pci/devices"
_BRIDGE, _MELLANOX = 0x0680, 0x15B3
# NCCL looks at these to know whether a network card may reach a GPU's memory.
_PEER_MEMORY = (
    "/sys/module/nvidia_peermem/version",
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
)


def gpu_health(request: Request) -> Dict[str, Any]:
    """Operation: the health of this host's NVIDIA GPUs.

    Arguments: ``setup``, ``python``, ``workdir``, ``env`` as for ``facts``; ``devices``: how many GPUs torch is to try
    (0: none). Returns ``{cards (parse_cards), links (parse_links), links_error, error (of nvidia-smi), xids,
    xids_error, switches, fabric_manager, peer_memory, open_driver, mellanox, iommu, trial (try_gpus)}``.
    """
    session = dict(os.environ)
    program = nvidia_smi.find_program(session)
    cards = Child([program, "-q", "-x"], env=session, timeout=nvidia_smi.TIMEOUT) if program else None
    links = Child([program, "nvlink", "-s"], env=session, timeout=nvidia_smi.TIMEOUT) if program else None
    log = KernelLog(session)
    manager = _fabric_manager(session)
    found: Dict[str, Any] = {"trial": try_gpus(request.args, session)}
    found.update(_cards(cards))
    found.update(_links(links))
    found.update(log.xids())
    found["switches"] = switches()
    found["fabric_manager"] = _state(manager)
    found.update(direct_access())
    found["iommu"] = iommu([str(card["bus"]) for card in found["cards"]])
    return found


def _cards(asked: Optional[Child]) -> Dict[str, Any]:
    if asked is None:
        return {"cards": [], "error": "no nvidia-smi on this host"}
    answer = asked.answer()
    if answer.status != 0:
        return {"cards": [], "error": nvidia_smi.failure_reason(answer)}
    try:
        return {"cards": nvidia_smi_xml.parse_cards(answer.payload.decode("utf-8", "replace")), "error": None}
    except ValueError as error:
        return {"cards": [], "error": str(error)[:300]}


def _links(asked: Optional[Child]) -> Dict[str, Any]:
    """NVLink states; none where nvidia-smi fails, as it does for cards without NVLink."""
    if asked is None:
        return {"links": {}, "links_error": None}
    answer = asked.answer()
    links = nvidia_smi_xml.parse_links(answer.payload.decode("utf-8", "replace"))
    return {"links": links, "links_error": nvidia_smi.failure_reason(answer) if answer.status is None else None}


def _fabric_manager(env: Dict[str, str]) -> Optional[Child]:
    try:
        return Child(["systemctl", "is-active", "nvidia-fabricmanager"], env=env, timeout=QUICK)
    except OSError:  # no systemd on this host
        return None


def _state(asked: Optional[Child]) -> Optional[str]:
    """The systemd state of a service, such as ``active``; None without systemd."""
    state = asked.answer().payload.decode("utf-8", "replace").strip() if asked else ""
    return state[:40] or None


def switches(root: str = PCI) -> int:
    """How many NVSwitches are on the PCI bus."""
    own = [device for device in sorted_names(root) if nvidia_smi.read_hex(root, device, "vendor") == nvidia_smi.NVIDIA]
    return sum(nvidia_smi.read_hex(root, device, "class") >> 8 == _BRIDGE for device in own)


def direct_access(root: str = "/") -> Dict[str, Any]:
    """``{peer_memory, open_driver, mellanox}``: what lets InfiniBand reach a GPU's memory, and its adapters' names.

    With the open kernel modules, dma-buf replaces the peer memory module.
    """
    adapters = os.path.join(root, "sys/class/infiniband")
    named = [
        name for name in sorted_names(adapters) if nvidia_smi.read_hex(adapters, name, "device/vendor") == _MELLANOX
    ]
    return {
        "peer_memory": any(os.path.exists(os.path.join(root, path.lstrip("/"))) for path in _PEER_MEMORY),
        "open_driver": "Open Kernel Module" in text_of(os.path.join(root, "proc/driver/nvidia/version"), 4096),
        "mellanox": named[:64],
    }


def iommu(buses: List[str], root: str = PCI) -> Optional[str]:
    """The mode of the IOMMU for the first of these devices: ``identity``, ``DMA``, …; None without one."""
    for bus in buses[:1]:
        domain, _, rest = bus.lower().partition(":")  # nvidia-smi writes a domain with eight digits, sysfs with four
        return text_of(os.path.join(root, domain[-4:] + ":" + rest, "iommu_group/type"), 4096).strip()[:40] or None
    return None
