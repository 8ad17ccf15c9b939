"""The host's GPUs without torch, as ``nvidia-smi`` and the PCI bus list them."""

import os
import shutil
from typing import Any, Dict, List, NamedTuple, Optional

from .bounded_child import Child, ChildResult
from .small_files import sorted_names

TIMEOUT = 30.0  # seconds; without persistence mode each call loads the driver, some seconds on 8 GPUs
_FIELDS = ("index", "uuid", "name", "memory.total", "memory.used", "driver_version", "mig.mode.current", "pci.bus_id")
_APP_FIELDS = ("gpu_uuid", "pid", "used_memory")
_USUAL_PATHS = ("/usr/bin/nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi", "/opt/bin/nvidia-smi")
NVIDIA, _AMD = 0x10DE, 0x1002
_DISPLAY, _ACCELERATOR = 0x03, 0x12
_VGA = 0x0300


class Query(NamedTuple):
    """Two running ``nvidia-smi`` processes: one lists the GPUs, one the processes that compute on them."""

    gpus: Optional[Child]
    apps: Optional[Child]


def start_query(env: Dict[str, str]) -> Query:
    """Start ``nvidia-smi`` without waiting; ``read_query`` waits for the answer."""
    program = find_program(env)
    if program is None:
        return Query(None, None)
    shape = "--format=csv,noheader,nounits"
    gpus = Child([program, "--query-gpu=" + ",".join(_FIELDS), shape], env=env, timeout=TIMEOUT)
    apps = Child([program, "--query-compute-apps=" + ",".join(_APP_FIELDS), shape], env=env, timeout=TIMEOUT)
    return Query(gpus, apps)


def read_query(query: Query) -> Dict[str, Any]:
    """``{gpus, nvidia_error}``: every GPU that nvidia-smi lists, and one line where it fails (else null).

    A GPU is ``{index, uuid, name, memory_mib, used_mib, driver, mig, bus, processes}``; ``processes`` are the pids that
    compute on it, of any user.
    """
    if query.gpus is None or query.apps is None:
        return {"gpus": [], "nvidia_error": None}
    answers = query.gpus.answer(), query.apps.answer()
    for answer in answers:
        if answer.status != 0:
            return {"gpus": [], "nvidia_error": failure_reason(answer)}
    try:
        gpus = parse_gpus(_text(answers[0]))
    except ValueError as error:
        return {"gpus": [], "nvidia_error": str(error)}
    running = parse_apps(_text(answers[1]))
    for gpu in gpus:
        gpu["processes"] = running.get(gpu["uuid"], [])
    return {"gpus": gpus, "nvidia_error": None}


def parse_gpus(text: str) -> List[Dict[str, Any]]:
    """The rows of ``--query-gpu`` as objects with our field names; raises ValueError."""
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if not line.strip():
            continue
        if len(cells) != len(_FIELDS) or not cells[0].isdigit() or not cells[1].startswith("GPU-"):
            raise ValueError("nvidia-smi says: " + line.strip()[:200])
        index, uuid, name, total, used, driver, mig, bus = cells
        gpus.append(
            {
                "index": int(index),
                "uuid": uuid,
                "name": name,
                "memory_mib": _number(total),
                "used_mib": _number(used),
                "driver": driver,
                "mig": mig == "Enabled",
                "bus": bus,
                "processes": [],
            }
        )
    return gpus


def parse_apps(text: str) -> Dict[str, List[int]]:
    """Pids by GPU UUID, from the rows of ``--query-compute-apps``; malformed rows are skipped."""
    running: Dict[str, List[int]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(_APP_FIELDS) and cells[1].isdigit():
            running.setdefault(cells[0], []).append(int(cells[1]))
    return running


def pci_gpus(root: str = "/sys/bus/pci/devices") -> Dict[str, int]:
    """How many GPUs of each vendor are on the PCI bus: ``{nvidia, amd}``.

    An AMD VGA controller is not counted: nearly always it is integrated graphics or a console.
    """
    counts = {"nvidia": 0, "amd": 0}
    for device in sorted_names(root):
        vendor, kind = read_hex(root, device, "vendor"), read_hex(root, device, "class") >> 8
        if vendor == NVIDIA and kind >> 8 == _DISPLAY:
            counts["nvidia"] += 1
        elif vendor == _AMD and kind >> 8 in (_DISPLAY, _ACCELERATOR) and kind != _VGA:
            counts["amd"] += 1
    return counts


def find_program(env: Dict[str, str]) -> Optional[str]:
    """The path of nvidia-smi; None where it is not installed."""
    found = shutil.which("nvidia-smi", path=env.get("PATH", os.defpath))
    return found or next((path for path in _USUAL_PATHS if os.access(path, os.X_OK)), None)


def failure_reason(answer: ChildResult) -> str:
    """Why an nvidia-smi failed: its status and first line of output, or that it timed out."""
    if answer.status is None:
        return "nvidia-smi did not answer within %d s" % TIMEOUT
    # It prints most of its failures on stdout.
    lines = [line.strip() for line in (answer.output + "\n" + _text(answer)).splitlines() if line.strip()]
    return "nvidia-smi failed with status %d%s" % (answer.status, ": " + lines[0][:300] if lines else "")


def _text(answer: ChildResult) -> str:
    return answer.payload.decode("utf-8", "replace")


def _number(cell: str) -> Optional[int]:
    return int(cell) if cell.isdigit() else None  # `[N/A]`, `[Not Supported]`


def read_hex(*path: str) -> int:
    """The hexadecimal number in a file of /sys, by the parts of its path; 0 where there is none."""
    try:
        with open(os.path.join(*path), encoding="ascii") as file:
            return int(file.read().strip(), 16)
    except (OSError, ValueError):
        return 0
