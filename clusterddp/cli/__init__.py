"""The command line: each command has its own module; main.py alone turns errors into messages."""

from __future__ import annotations

import atexit
import gc

# A command is short, and most of what it makes are its imports: searching them for garbage again and again, as Python
# does by default, took a sixth of its time. A long one still collects.
gc.set_threshold(100_000, 20, 20)
atexit.register(gc.freeze)
