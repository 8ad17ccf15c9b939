"""The Python API: `Cluster`, and what it is made of.

``api.find_runs`` and others are imported when they are first used: a command loads what it needs.
"""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """Import the module of this name."""
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from error
