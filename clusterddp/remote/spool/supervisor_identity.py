"""The process that is a node's supervisor: its identity, and how the host's clock was set since it started."""

import os
from typing import Optional

from ..shared.run.spool_records import SupervisorRecord
from ..system import procfs
from ..system.clock import boot_time


def this_process() -> SupervisorRecord:
    """Describe this process, which is a node's supervisor."""
    pid = os.getpid()
    return SupervisorRecord(pid, procfs.start_ticks(pid), procfs.boot_identity(), boot_time())


def clock_step(supervisor: Optional[SupervisorRecord]) -> int:
    """By how many ns this host's clock was set forward since the supervisor started; 0 where that is not known."""
    if supervisor is None or supervisor.boot_time is None or supervisor.boot != procfs.boot_identity():
        return 0
    return boot_time() - supervisor.boot_time
