"""The Python API: `Cluster`, and what it is made of.

``api.find_runs`` and others are imported when they are first used: a command loads what it needs.
"""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """Import the module of this name."""
    module = f"{__name__}.{name}"
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:  # a module that it imports is missing
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from error
