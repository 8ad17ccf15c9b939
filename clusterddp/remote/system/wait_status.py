"""Collect wait statuses of ended children, and convert them to exit codes."""

import os
from typing import Iterator, Tuple


def exit_code(status: int) -> int:
    """A wait status as a shell's exit code: the code itself, or 128 + the signal's number."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def reap() -> Iterator[Tuple[int, int]]:
    """(pid, wait status) of every child that has ended, adopted orphans included."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, status
