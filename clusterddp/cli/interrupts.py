"""Ctrl-C and SIGTERM: one ends a command as the other does, with another exit code."""

from __future__ import annotations

import signal
from typing import NoReturn

from clusterddp.errors import EXIT_INTERRUPTED, EXIT_STOPPED


class LookingEndedError(KeyboardInterrupt):
    """Ctrl-C ended nothing but the looking; ``line`` says so."""

    def __init__(self, line: str) -> None:
        super().__init__()
        self.line = line


def heed(*numbers: signal.Signals) -> None:
    """Let these signals act as Ctrl-C; ``exit_code`` tells them apart."""
    for number in numbers:
        signal.signal(number, _interrupt)


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """130 for Ctrl-C itself, 143 for a signal that acts as it."""
    return EXIT_STOPPED if interrupt.args else EXIT_INTERRUPTED


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt("SIGTERM")
