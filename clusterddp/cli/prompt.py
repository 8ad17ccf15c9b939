"""Ask the user at the terminal for a secret, without echo."""

from __future__ import annotations

import getpass
import sys
import termios
from typing import TYPE_CHECKING, Any

from clusterddp.cli.output import STATUS_LINE

if TYPE_CHECKING:
    from collections.abc import Callable

_saved_settings: list[Any] = []  # the terminal's settings before the current prompt; empty without one


def prompt_function() -> Callable[[str], str] | None:
    """Return the function that asks the user; None without a terminal."""
    return _ask if sys.stdin.isatty() and sys.stderr.isatty() else None


def restore_echo() -> None:
    """Switch the terminal's echo on again: the command ends, though a thread may still wait for an answer."""
    if _saved_settings:
        termios.tcsetattr(0, termios.TCSANOW, _saved_settings.pop())


def _ask(prompt: str) -> str:
    """Return the answer; empty if the user ends the input (Ctrl-D)."""
    _saved_settings.append(termios.tcgetattr(0))
    try:
        with STATUS_LINE.hidden_for_prompt():
            return getpass.getpass(prompt)
    except EOFError:
        sys.stderr.write("\n")
        return ""
    finally:
        _saved_settings.clear()
