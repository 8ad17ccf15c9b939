"""Whether processes of a run still hold NVIDIA GPUs, by what nvidia-smi lists.

The proof over /proc comes first: what is no process holds no device. This asks the driver itself, which lists a
process until it has given back its memory. Without an NVIDIA device nothing is asked and nothing claimed.
"""

import os
import re
import time
from typing import Iterable, List, NamedTuple, Optional, Tuple

from ..system import nvidia_smi, procfs
from .terminate import Process

PATIENCE = 5.0  # seconds for the driver to let go of a killed process
LOOK = 0.2


class Held(NamedTuple):
    """How many devices there are (None: none, so nothing is claimed), who still holds one, why it is not known."""

    devices: Optional[int]
    held: List[Process]
    error: str


def look(known: Iterable[Tuple[int, int]], devices: str = "/dev") -> Held:
    """Ask until none of the processes is listed.

    Args:
        known: Processes by pid and start time.
        devices: The folder of the device files.
    """
    count = sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in os.listdir(devices))
    if not count:
        return Held(None, [], "")
    deadline = time.monotonic() + PATIENCE
    while True:
        told = nvidia_smi.nvidia(nvidia_smi.ask_nvidia(dict(os.environ)))
        if told["nvidia_error"]:
            return Held(count, [], "its GPUs: " + told["nvidia_error"])
        listed = {pid for gpu in told["gpus"] for pid in gpu["processes"]}
        # A number that is nobody's, or somebody else's by now, is another's: a container sees the host's numbers.
        held = [name for name in known if name[0] in listed and procfs.start_ticks(name[0]) == name[1]]
        if not held or time.monotonic() > deadline:
            return Held(count, [Process(pid, ticks, "ended, but holds a GPU") for pid, ticks in held], "")
        time.sleep(LOOK)
