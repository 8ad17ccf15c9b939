"""Ctrl-C and SIGTERM: both end a command in the same way, with different exit codes."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, NoReturn

from clusterddp.remote.shared.processes.exit_codes import EXIT_INTERRUPTED, EXIT_STOPPED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.runs.run import Run


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


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt("SIGTERM")  # that there is an argument tells `exit_code` that it was no Ctrl-C
