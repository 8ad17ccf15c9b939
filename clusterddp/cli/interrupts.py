"""Ctrl-C and SIGTERM: one ends a command as the other does, with another exit code."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, NoReturn

from clusterddp.errors import EXIT_INTERRUPTED, EXIT_STOPPED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.runs.run import Run


class LookingEndedError(KeyboardInterrupt):
    """Ctrl-C ended nothing but the looking; ``line`` says so."""

    def __init__(self, line: str) -> None:
        super().__init__()
        self.line = line


@contextlib.contextmanager
def saying_that_it_goes_on(run: Run) -> Iterator[None]:
    """Say at Ctrl-C that only the looking has ended, how to look again, and what ends the run."""
    try:
        yield
    except KeyboardInterrupt:
        if not run.live:
            raise
        shows = f"`clusterddp logs --follow {run.id}` shows it again"
        raise LookingEndedError(f"run {run.id} goes on; {shows}, `clusterddp stop {run.id}` ends it") from None


def heed(*numbers: signal.Signals) -> None:
    """Let these signals act as Ctrl-C; ``exit_code`` tells them apart."""
    for number in numbers:
        signal.signal(number, _interrupt)


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """130 for Ctrl-C itself, 143 for a signal that acts as it."""
    return EXIT_STOPPED if interrupt.args else EXIT_INTERRUPTED


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt("SIGTERM")
