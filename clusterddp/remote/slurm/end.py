"""The last words of a job's batch script: how the run ended, by its nodes' spools, and the exit code that says so."""

import sys
import time
from typing import Optional

from ..shared.verdict import CTRL_C, INTERRUPTED, NOT_THE_SCRIPT, STOPPED
from ..shared.verdict_record import VerdictRecord, best
from .folder import JobFolder

PLACE = 1 << 20  # behind all nodes


def end(folder: JobFolder, status: int) -> int:
    """Say how the run ended, and keep it; the exit code.

    Args:
        folder: The run's.
        status: How srun ended.
    """
    found = verdict_of(folder, status)
    folder.write_end(found)
    sys.stdout.write("clusterddp: run %s: %s\n" % (folder.run, found.line))
    return found.exit_code


def verdict_of(folder: JobFolder, status: int) -> VerdictRecord:
    """By the nodes' own word, else by why they could not begin, else by srun's."""
    spools = folder.spools()
    attempt = max((spool.attempt for spool in spools), default=1)
    copies = [copy for copy in (spool.verdict() for spool in spools) if copy and copy.attempt >= attempt]
    kept: Optional[VerdictRecord] = best(copies)
    if kept:
        return kept
    failures = list(folder.failures())
    order = folder.stop_order()
    if order:
        code = INTERRUPTED if order.reason == CTRL_C else STOPPED
        return _made(attempt, "stopped", code, "stopped: %s" % order.reason)
    if failures:
        return _made(attempt, "failed", NOT_THE_SCRIPT, failures[0])
    return _made(attempt, "failed", NOT_THE_SCRIPT, "the job's step ended with %d before any node told why" % status)


def _made(attempt: int, state: str, code: int, line: str) -> VerdictRecord:
    now = time.time_ns()
    heard = ("slurm",)
    return VerdictRecord(attempt, state, code, line, "slurm", PLACE, heard, written=now, ended=now)
