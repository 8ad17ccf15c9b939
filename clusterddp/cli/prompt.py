"""Ask the user at the terminal for a secret, without echo."""

from __future__ import annotations

import getpass
import sys
import termios
from typing import TYPE_CHECKING, Any

from clusterddp.cli.output import STANDING

if TYPE_CHECKING:
    from collections.abc import Callable

_echoing: list[Any] = []  # the terminal's settings from before a question that has no answer yet


def asking() -> Callable[[str], str] | None:
    """Return the function that asks the user; None without a terminal."""
    return _ask if sys.stdin.isatty() and sys.stderr.isatty() else None


def abandon() -> None:
    """Switch the terminal's echo on again: the command ends, though a thread may still wait for an answer."""
    if _echoing:
        termios.tcsetattr(0, termios.TCSANOW, _echoing.pop())


def _ask(prompt: str) -> str:
    """Return the answer; empty if the user ends the input (Ctrl-D)."""
    _echoing.append(termios.tcgetattr(0))
    try:
        with STANDING.nothing_shown():
            return getpass.getpass(prompt)
    except EOFError:
        sys.stderr.write("\n")
        return ""
    finally:
        _echoing.clear()
