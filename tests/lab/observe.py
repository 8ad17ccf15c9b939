"""What the operator, or a host, meets when it tries to reach a host: for assertions."""

from __future__ import annotations

import errno
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.faults import children
from tests.lab.system import inside_network

if TYPE_CHECKING:
    from tests.lab.host import LabHost
    from tests.lab.lab import Lab


def cpu_ticks(pid: int) -> int:
    """CPU that a process, its ended children, and all processes below it took, in clock ticks."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended: its parent's count has it
        return 0
    return sum(map(int, fields[11:15])) + sum(map(cpu_ticks, children(pid)))


def ssh(lab: Lab, host: str, line: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a shell line on a host through the real ssh client."""
    argv = lab.ssh(host, line)
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)


def answer(address: str, port: int = 22, timeout: float = 1) -> str:
    """What a connect meets: `open`, `refused`, `silence` (nothing in `timeout` s) or an errno's name."""
    try:
        socket.create_connection((address, port), timeout=timeout).close()
    except TimeoutError:
        return "silence"
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "open"


def answer_from(host: LabHost, address: str, port: int = 22, timeout: float = 1) -> str:
    """What a connect from a host meets."""
    return inside_network(host.namespace, lambda: answer(address, port, timeout))
