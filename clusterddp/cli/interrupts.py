"""Ctrl-C and SIGTERM: both end a command in the same way, with different exit codes."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from typing import TYPE_CHECKING

from clusterddp.remote.shared.processes.exit_codes import EXIT_INTERRUPTED, EXIT_STOPPED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.runs.run import Run

REPEAT = 1.0  # seconds in which another SIGTERM is the same one: GNU timeout sends it to its child and to its group
_sigterm_at = -math.inf  # when SIGTERM last acted as Ctrl-C


class WatchEndedError(KeyboardInterrupt):
    """Ctrl-C that only stopped watching a run; ``line`` is the message for it."""

    def __init__(self, line: str) -> None:
        super().__init__()
        self.line = line


@contextlib.contextmanager
def explaining_ctrl_c(run: Run) -> Iterator[None]:
    """If Ctrl-C ends the block, say that the run goes on, how to watch it again, and how to stop it."""
    try:
        yield
    except KeyboardInterrupt:
        if not run.live:  # it has ended, so nothing goes on
            raise
        shows = f"`clusterddp logs --follow {run.id}` shows it again"
        raise WatchEndedError(f"run {run.id} goes on; {shows}, `clusterddp stop {run.id}` ends it") from None


def raise_on_ctrl_c() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, where it has ended the command until now (entry.py)."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def treat_as_ctrl_c(*numbers: signal.Signals) -> None:
    """Let these signals act as Ctrl-C; ``exit_code`` distinguishes them."""
    for number in numbers:
        signal.signal(number, _interrupt)


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """Return 130 for Ctrl-C itself, 143 for a signal that acts as it."""
    return EXIT_STOPPED if interrupt.args else EXIT_INTERRUPTED


def _interrupt(number: int, _frame: object) -> None:
    global _sigterm_at  # noqa: PLW0603 - there is one process
    if number == signal.SIGTERM:
        now = time.monotonic()
        if now - _sigterm_at < REPEAT:
            return
        _sigterm_at = now
    raise KeyboardInterrupt("SIGTERM")  # that there is an argument tells `exit_code` that it was no Ctrl-C
