"""The host's GPUs without torch, as ``nvidia-smi`` and the PCI bus list them."""

import os
from typing import Dict, List, NamedTuple, Optional, Tuple

from . import programs
from .bounded_child import Child, ChildResult
from .small_files import sorted_names

TIMEOUT = 30.0  # seconds; without persistence mode each call loads the driver, some seconds on 8 GPUs
_FIELDS = ("index", "uuid", "name", "memory.total", "memory.used", "driver_version", "mig.mode.current", "pci.bus_id")
_APP_FIELDS = ("gpu_uuid", "pid", "used_memory")
_DEFAULT_PATHS = ("/usr/bin/nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi", "/opt/bin/nvidia-smi")
NVIDIA, _AMD = 0x10DE, 0x1002
_DISPLAY, _ACCELERATOR = 0x03, 0x12
_VGA = 0x0300


class Query(NamedTuple):
    """Two running ``nvidia-smi`` processes: one lists the GPUs, one the processes that compute on them."""

    gpus: Optional[Child]
    apps: Optional[Child]
    error: Optional[str] = None  # why there are none, though the PCI bus has NVIDIA's GPUs


class ListedGpu(NamedTuple):
    """One GPU as ``nvidia-smi`` lists it."""

    index: int  # type: ignore[assignment] # of a tuple
    uuid: str
    name: str
    memory_mib: Optional[int]
    used_mib: Optional[int]
    driver: str
    mig: bool
    bus: str
    processes: Tuple[int, ...] = ()  # pids of those that compute on it, of any user


class GpuListing(NamedTuple):
    """Every GPU that nvidia-smi lists, and one line where it fails (else None)."""

    gpus: List[ListedGpu]
    error: Optional[str] = None


def start_query(env: Dict[str, str]) -> Query:
    """Start ``nvidia-smi`` without waiting; ``read_query`` waits for the answer."""
    program = find_program(env)
    if program is None:
        return Query(None, None)
    csv_format = "--format=csv,noheader,nounits"
    try:
        gpus = Child([program, "--query-gpu=" + ",".join(_FIELDS), csv_format], env=env, timeout=TIMEOUT)
        apps = Child([program, "--query-compute-apps=" + ",".join(_APP_FIELDS), csv_format], env=env, timeout=TIMEOUT)
    except OSError as error:  # an image of a container that once had GPUs keeps an empty file of this name
        return Query(None, None, "%s does not start: %s" % (program, error.strerror) if pci_gpus()["nvidia"] else None)
    return Query(gpus, apps)


def read_query(query: Query) -> GpuListing:
    """Wait for the answer; without nvidia-smi there is no GPU."""
    if query.gpus is None or query.apps is None:
        return GpuListing([], query.error)
    answers = query.gpus.answer(), query.apps.answer()
    for answer in answers:
        if answer.status != 0:
            return GpuListing([], failure_reason(answer))
    try:
        gpus = parse_gpus(answers[0].text)
    except ValueError as error:
        return GpuListing([], str(error))
    running = parse_apps(answers[1].text)
    return GpuListing([gpu._replace(processes=tuple(running.get(gpu.uuid, ()))) for gpu in gpus])


def parse_gpus(text: str) -> List[ListedGpu]:
    """The rows of ``--query-gpu``; raises ValueError."""
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if not line.strip():
            continue
        if len(cells) != len(_FIELDS) or not cells[0].isdigit() or not cells[1].startswith("GPU-"):
            raise ValueError("nvidia-smi says: " + line.strip()[:200])
        index, uuid, name, total, used, driver, mig, bus = cells
        sizes = _parse_mib(total), _parse_mib(used)
        gpus.append(ListedGpu(int(index), uuid, name, *sizes, driver, mig == "Enabled", bus))
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
    nvidia = amd = 0
    for device in sorted_names(root):
        vendor, kind = read_hex(root, device, "vendor"), read_hex(root, device, "class") >> 8
        if vendor == NVIDIA and kind >> 8 == _DISPLAY:
            nvidia += 1
        elif vendor == _AMD and kind >> 8 in (_DISPLAY, _ACCELERATOR) and kind != _VGA:
            amd += 1
    return {"nvidia": nvidia, "amd": amd}


def find_program(env: Dict[str, str]) -> Optional[str]:
    """The path of nvidia-smi; None where it is not installed."""
    found = programs.find_program("nvidia-smi", env)
    return found or next((path for path in _DEFAULT_PATHS if os.access(path, os.X_OK)), None)


def failure_reason(answer: ChildResult) -> str:
    """Why an nvidia-smi failed: its status and first line of output, or that it timed out."""
    if answer.status is None:
        return "nvidia-smi did not answer within %d s" % TIMEOUT
    # It prints most of its failures on stdout.
    lines = [line.strip() for line in (answer.output + "\n" + answer.text).splitlines() if line.strip()]
    return "nvidia-smi failed with status %d%s" % (answer.status, ": " + lines[0][:300] if lines else "")


def _parse_mib(cell: str) -> Optional[int]:
    return int(cell) if cell.isdigit() else None  # `[N/A]`, `[Not Supported]`


def read_hex(*path: str) -> int:
    """The hexadecimal number in a file of /sys, by the parts of its path; 0 where there is none."""
    try:
        with open(os.path.join(*path), encoding="ascii") as file:
            return int(file.read().strip(), 16)
    except (OSError, ValueError):
        return 0
