"""A process that writes a node's part of a bundle into its spool, for a run that hangs while nobody looks."""

import subprocess
import sys

from ..spool.layout import Spool

TIMEOUT = 8.0  # seconds in which it is to be done with the workers; it may go on with the machine


def save_bundle(spool: Spool) -> None:
    """Let a process write it, with the workers' stacks and traces; wait until it is done, but not for long."""
    argv = [sys.executable, "-I", "-S", spool.code, "bundle", spool.folder]
    null = subprocess.DEVNULL
    try:
        subprocess.Popen(argv, cwd="/", stdin=null, stdout=null, stderr=null).wait(TIMEOUT)
    except (
        OSError,
        subprocess.TimeoutExpired,
    ):  # no process is left, or a disk hangs: the run goes on
        pass
