"""Which processes of a run still hold NVIDIA GPUs, as nvidia-smi lists them.

/proc is searched first; then this asks the driver, which lists a process until its GPU memory is released. Without an
NVIDIA device it neither asks nor claims anything.
"""

import os
import re
import time
from typing import Iterable, List, NamedTuple, Optional, Tuple

from ..shared.run.spool_records import LeftProcess
from ..system import nvidia_smi, procfs

RELEASE_TIMEOUT = 5.0  # seconds for the driver to let go of a killed process
POLL_INTERVAL = 0.2  # seconds


class HeldGpus(NamedTuple):
    """Answer of ``find_gpu_holders``."""

    devices: Optional[int]  # how many NVIDIA devices there are; None for none, and then nothing is claimed
    holders: List[LeftProcess]  # the processes that hold one
    error: str  # why the holders are not known; else empty


def find_gpu_holders(known: Iterable[Tuple[int, int]], devices: str = "/dev") -> HeldGpus:
    """Ask nvidia-smi, for ``RELEASE_TIMEOUT`` s at most, until it lists none of ``known`` (pid and start time)."""
    count = sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in os.listdir(devices))
    if not count:
        return HeldGpus(None, [], "")
    deadline = time.monotonic() + RELEASE_TIMEOUT
    while True:
        answer = nvidia_smi.read_query(nvidia_smi.start_query(dict(os.environ)))
        if answer.error:
            return HeldGpus(count, [], "its GPUs: " + answer.error)
        listed = {pid for gpu in answer.gpus for pid in gpu.processes}
        # The start time must match too: a pid may be reused, and in a container nvidia-smi shows the host's pids.
        held = [(pid, ticks) for pid, ticks in known if pid in listed and procfs.is_process(pid, ticks)]
        if not held or time.monotonic() > deadline:
            return HeldGpus(count, [LeftProcess(pid, ticks, "ended, but holds a GPU") for pid, ticks in held], "")
        time.sleep(POLL_INTERVAL)
