"""invoke is imported once somebody uses it: paramiko imports it for `Match exec` in ssh settings alone.

It brings asyncio, unittest.mock and a YAML reader, 35 ms of the 130 ms of CPU that the first connection's imports take.
importlib.util.LazyLoader does not serve: on Python 3.11 `import invoke` itself asks the module for its ``__spec__``,
and that loads it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    """Stands where ``import invoke`` looks, and gives way to invoke itself when it is asked for anything."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def import_invoke_later() -> None:
    """Call it before paramiko is imported; where invoke is there already nothing changes."""
    sys.modules.setdefault("invoke", _Later("invoke"))
