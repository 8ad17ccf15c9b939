"""Asking whoever sits at the terminal for something secret, which is not echoed."""

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
    """What asks the user at the terminal; None where there is no terminal."""
    return _ask if sys.stdin.isatty() and sys.stderr.isatty() else None


def abandon() -> None:
    """Let the terminal echo again: the command ends, and a thread may still wait for an answer."""
    if _echoing:
        termios.tcsetattr(0, termios.TCSANOW, _echoing.pop())


def _ask(prompt: str) -> str:
    """The answer; empty where the user ends the input (Ctrl-D)."""
    _echoing.append(termios.tcgetattr(0))
    try:
        with STANDING.nothing_shown():
            return getpass.getpass(prompt)
    except EOFError:
        sys.stderr.write("\n")
        return ""
    finally:
        _echoing.clear()
