"""Delay importing invoke until something uses it: paramiko needs it only for `Match exec` in ssh settings.

It brings asyncio, unittest.mock and a YAML reader, 35 ms of the 130 ms of CPU that the first connection's imports take.
importlib.util.LazyLoader does not serve: on Python 3.11 `import invoke` itself asks the module for its ``__spec__``,
and that loads it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _LazyModule(ModuleType):
    """A placeholder for the module invoke, replaced by the real one when an attribute is read."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def import_invoke_later() -> None:
    """Put a placeholder for invoke in place, before paramiko is imported; does nothing if invoke is imported."""
    sys.modules.setdefault("invoke", _LazyModule("invoke"))
