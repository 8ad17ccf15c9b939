"""The command's entry: until it is imported, Ctrl-C ends it without a traceback."""

# What is imported below the first statement comes when that holds.
from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else who started us wants it ignored
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from clusterddp.cli.main import main

__all__ = ["main"]
