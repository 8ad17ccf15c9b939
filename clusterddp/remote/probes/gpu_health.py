"""The operation ``gpu_health``: the doctor's view of each NVIDIA GPU, from the driver, the kernel log and torch."""

import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ..helper.request import Request
from ..shared.probes.gpu_records import Card, GpuHealth, GpuHealthRequest
from ..shared.schema.record import to_fields
from ..system import nvidia_smi
from ..system.bounded_child import Child
from ..system.small_files import sorted_names, text_of
from . import nvidia_smi_xml
from .torch_gpus import try_gpus
from .xids import KernelLog

SYSTEMCTL_TIMEOUT = 10.0  # seconds that systemctl may take
PCI = "/sys/bus/pci/devices"
_BRIDGE, _MELLANOX = 0x0680, 0x15B3
# NCCL looks at these to know whether a network adapter may reach a GPU's memory.
_PEER_MEMORY = (
    "/sys/module/nvidia_peermem/version",
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
)


def gpu_health(request: Request) -> Dict[str, Any]:
    """Operation: the health of this host's NVIDIA GPUs.

    Takes a ``GpuHealthRequest``, returns a ``GpuHealth`` (shared/probes/gpu_records.py).
    """
    asked = request.read_args(GpuHealthRequest)
    session = dict(os.environ)
    program = nvidia_smi.find_program(session)
    cards = Child([program, "-q", "-x"], env=session, timeout=nvidia_smi.TIMEOUT) if program else None
    links = Child([program, "nvlink", "-s"], env=session, timeout=nvidia_smi.TIMEOUT) if program else None
    log = KernelLog(session)
    manager = _fabric_manager(session)
    smoke_test = try_gpus(asked, session)
    listed, error = _cards(cards)
    states, links_error = _links(links)
    kernel_xids = log.xids()
    direct = direct_access()
    return to_fields(
        GpuHealth(
            cards=tuple(listed),
            error=error,
            links=states,
            links_error=links_error,
            xids=kernel_xids.xids,
            xids_error=kernel_xids.error,
            switches=switches(),
            fabric_manager=_service_state(manager),
            peer_memory=direct.peer_memory,
            open_driver=direct.open_driver,
            mellanox=direct.mellanox,
            iommu=iommu([card.bus for card in listed]),
            smoke_test=smoke_test,
        )
    )


def _cards(child: Optional[Child]) -> Tuple[List[Card], Optional[str]]:
    """The GPUs, and why nvidia-smi reports none."""
    if child is None:
        return [], "no nvidia-smi on this host"
    answer = child.answer()
    if answer.status != 0:
        return [], nvidia_smi.failure_reason(answer)
    try:
        return nvidia_smi_xml.parse_cards(answer.text), None
    except ValueError as error:
        return [], str(error)[:300]


def _links(child: Optional[Child]) -> Tuple[Dict[str, Tuple[int, int]], Optional[str]]:
    """NVLink states, and why they are unknown; none where nvidia-smi fails, as it does for cards without NVLink."""
    if child is None:
        return {}, None
    answer = child.answer()
    links = nvidia_smi_xml.parse_links(answer.text)
    return links, nvidia_smi.failure_reason(answer) if answer.status is None else None


def _fabric_manager(env: Dict[str, str]) -> Optional[Child]:
    try:
        return Child(["systemctl", "is-active", "nvidia-fabricmanager"], env=env, timeout=SYSTEMCTL_TIMEOUT)
    except OSError:  # no systemd on this host
        return None


def _service_state(child: Optional[Child]) -> Optional[str]:
    """The systemd state of a service, such as ``active``; None without systemd."""
    state = child.answer().text.strip() if child else ""
    return state[:40] or None


def switches(root: str = PCI) -> int:
    """How many NVSwitches are on the PCI bus."""
    vendors = {device: nvidia_smi.read_hex(root, device, "vendor") for device in sorted_names(root)}
    nvidia = [device for device, vendor in vendors.items() if vendor == nvidia_smi.NVIDIA]
    return sum(nvidia_smi.read_hex(root, device, "class") >> 8 == _BRIDGE for device in nvidia)


class DirectAccess(NamedTuple):
    """What lets InfiniBand reach a GPU's memory; with the open kernel modules, dma-buf replaces the peer memory module.

    ``mellanox`` are the names of adapters that can.
    """

    peer_memory: bool
    open_driver: bool
    mellanox: Tuple[str, ...]


def direct_access(root: str = "/") -> DirectAccess:
    """Look for what lets InfiniBand reach a GPU's memory."""
    adapters = os.path.join(root, "sys/class/infiniband")
    named = [
        name for name in sorted_names(adapters) if nvidia_smi.read_hex(adapters, name, "device/vendor") == _MELLANOX
    ]
    return DirectAccess(
        any(os.path.exists(os.path.join(root, path.lstrip("/"))) for path in _PEER_MEMORY),
        "Open Kernel Module" in text_of(os.path.join(root, "proc/driver/nvidia/version"), 4096),
        tuple(named[:64]),
    )


def iommu(buses: List[str], root: str = PCI) -> Optional[str]:
    """The mode of the IOMMU for the first of these devices: ``identity``, ``DMA``, …; None without one."""
    for bus in buses[:1]:
        domain, _, rest = bus.lower().partition(":")  # nvidia-smi writes a domain with eight digits, sysfs with four
        return text_of(os.path.join(root, domain[-4:] + ":" + rest, "iommu_group/type"), 4096).strip()[:40] or None
    return None
