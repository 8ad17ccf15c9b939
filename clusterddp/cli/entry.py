"""The command's entry: while the command line is imported, Ctrl-C ends it without a traceback."""

from __future__ import annotations

import signal
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else who started us wants it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from clusterddp.cli.main import main as command_line  # noqa: PLC0415 - imported when that holds

    command_line()
