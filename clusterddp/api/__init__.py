"""The Python API: `Cluster`, and what it is made of.

``api.find_runs`` and the others are imported when they are first used: a command loads what it needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from clusterddp.api import copy, find_runs, leftovers

__all__ = ["copy", "find_runs", "leftovers"]


def __getattr__(name: str) -> ModuleType:
    """Import the module of this name."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
