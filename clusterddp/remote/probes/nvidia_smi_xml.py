"""Parse the output of ``nvidia-smi -q -x`` and ``nvidia-smi nvlink -s``, without any input or output.

The XML form is used because there an element that a driver does not know is only missing, while one unknown field of
``--query-gpu`` loses all the others. Renamed elements are looked up by both names.
"""

import re
import xml.etree.ElementTree as ET
from typing import Dict, Iterator, List, Optional, Tuple

from ..shared.probes.gpu_records import Card
from ..shared.probes.usage_records import GpuProcess, GpuUsage

_SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
MAX_PROCESSES = 64  # of a GPU that are listed
_NO_VALUE = ("", "N/A", "None", "[N/A]", "Unknown Error")
_REPAIR_PENDING = (
    "remapped_rows/remapped_row_pending",
    "retired_pages/pending_retirement",
    "retired_pages/pending_blacklist",
    "ecc_errors/channel_repair_pending",
    "ecc_errors/tpc_repair_pending",
)
_REPAIR_FAILED = (
    "remapped_rows/remapped_row_failure",
    "ecc_errors/aggregate/sram_threshold_exceeded",
    "ecc_errors/unrepairable_memory",
)
_HEADER = re.compile(r"GPU \d+: .*\(UUID: (GPU-[^)\s]+)\)")
_LINK = re.compile(r"\s+Link \d+: (.+)")
_ALL_DOWN = "all links are inactive"  # in place of the lines of a GPU's links


def parse_cards(text: str) -> List[Card]:
    """Every GPU of ``nvidia-smi -q -x``, in its order; what a driver does not report is None, or False."""
    return [_card(number, gpu) for number, gpu in enumerate(_gpus(text))]


def parse_usage(text: str) -> List[GpuUsage]:
    """What every GPU of ``nvidia-smi -q -x`` does now, and the processes that compute on it."""
    return [_usage(number, gpu) for number, gpu in enumerate(_gpus(text))]


def _gpus(text: str) -> Iterator[ET.Element]:
    try:
        root = ET.fromstring(text)  # noqa: S314 - the driver's own program wrote it; nothing external is loaded
    except ET.ParseError as error:
        raise ValueError("nvidia-smi -q -x prints no XML: %s" % error) from error
    return root.iter("gpu")


def parse_links(text: str) -> Dict[str, Tuple[int, int]]:
    """Links that are up, and all links, by UUID from ``nvidia-smi nvlink -s``, for GPUs that have links.

    For a GPU whose links are all down both numbers are 0: nvidia-smi does not list them.
    """
    links: Dict[str, Tuple[int, int]] = {}
    uuid = ""
    for line in text.splitlines():
        header, link = _HEADER.match(line), _LINK.match(line)
        if header:
            uuid = header.group(1)
        elif uuid and _ALL_DOWN in line.lower():
            links[uuid] = 0, 0
        elif link and uuid:
            up, count = links.get(uuid, (0, 0))
            links[uuid] = up + ("inactive" not in link.group(1).lower()), count + 1
    return links


def _card(number: int, gpu: ET.Element) -> Card:
    recovery = _text(gpu, "gpu_recovery_action")
    if not recovery and _is_yes(gpu, "gpu_reset_status/reset_required"):
        recovery = "Reset"
    return Card(
        number=number,
        uuid=_text(gpu, "uuid") or "",
        bus=_text(gpu, "pci/pci_bus_id") or gpu.get("id") or "",
        mig=_text(gpu, "mig_mode/current_mig") == "Enabled",
        instances=len(gpu.findall("mig_devices/mig_device")),
        uncorrectable=_uncorrectable(gpu),
        repair_pending=any(_is_yes(gpu, path) for path in _REPAIR_PENDING),
        repair_failed=any(_is_yes(gpu, path) for path in _REPAIR_FAILED),
        recovery=recovery,
        slowdowns=tuple(name for name in _SLOWDOWNS if _is_slowed(gpu, name)),
        celsius=_number(gpu, "temperature/gpu_temp"),
        power_watts=_number(gpu, "gpu_power_readings/current_power_limit", "power_readings/power_limit"),
        default_watts=_number(gpu, "gpu_power_readings/default_power_limit", "power_readings/default_power_limit"),
        width=_number(gpu, "pci/pci_gpu_link_info/link_widths/current_link_width"),
        most_width=_number(gpu, "pci/pci_gpu_link_info/link_widths/max_link_width"),
        fabric_state=_text(gpu, "fabric/state"),
        fabric_status=_text(gpu, "fabric/status"),
    )


def _usage(number: int, gpu: ET.Element) -> GpuUsage:
    draws = ("power_draw", "instant_power_draw", "average_power_draw")  # the first has two successors since driver 580
    return GpuUsage(
        number=number,
        uuid=_text(gpu, "uuid") or "",
        name=_text(gpu, "product_name") or "",
        bus=_text(gpu, "pci/pci_bus_id") or gpu.get("id") or "",
        busy_percent=_number(gpu, "utilization/gpu_util"),
        used_mib=_number(gpu, "fb_memory_usage/used"),
        memory_mib=_number(gpu, "fb_memory_usage/total"),
        watts=_number(gpu, *(f + draw for f in ("gpu_power_readings/", "power_readings/") for draw in draws)),
        celsius=_number(gpu, "temperature/gpu_temp"),
        processes=tuple(_processes(gpu)),
    )


def _processes(gpu: ET.Element) -> Iterator[GpuProcess]:
    """Those that compute; the others draw on a screen."""
    for found in gpu.findall("processes/process_info")[:MAX_PROCESSES]:
        pid = _number(found, "pid")
        if pid is not None and "C" in (_text(found, "type") or "C"):
            command = _text(found, "process_name") or ""
            yield GpuProcess(pid=pid, command=command, memory_mib=_number(found, "used_memory"))


def _uncorrectable(gpu: ET.Element) -> Optional[int]:
    """Uncorrectable memory errors since the driver was loaded; None where they are not counted."""
    found = list(_error_counts(gpu))
    return sum(found) if found else None


def _error_counts(gpu: ET.Element) -> Iterator[int]:
    """Each counter of uncorrectable errors."""
    for element in gpu.findall("ecc_errors/volatile/*"):
        # Before Ampere: <double_bit><total>; since: <sram_uncorrectable…> and <dram_uncorrectable>.
        text = (element.findtext("total") if element.tag == "double_bit" else element.text) or ""
        if (element.tag == "double_bit" or "uncorrectable" in element.tag) and text.strip().isdigit():
            yield int(text)


def _is_slowed(gpu: ET.Element, name: str) -> bool:
    old = "clocks_throttle_reasons/clocks_throttle_reason_" + name  # so called by drivers before 535
    return "Active" in (_text(gpu, "clocks_event_reasons/clocks_event_reason_" + name), _text(gpu, old))


def _text(gpu: ET.Element, path: str) -> Optional[str]:
    """The text of an element; None if it is missing or says that there is no value."""
    text = (gpu.findtext(path) or "").strip()
    return None if text in _NO_VALUE else text[:200]


def _is_yes(gpu: ET.Element, path: str) -> bool:
    return _text(gpu, path) == "Yes"


def _number(gpu: ET.Element, *paths: str) -> Optional[int]:
    """The integer part of the first path's text that begins with a number, such as ``500.00 W`` or ``16x``."""
    for path in paths:
        found = re.match(r"\d+", _text(gpu, path) or "")
        if found:
            return int(found.group())
    return None
