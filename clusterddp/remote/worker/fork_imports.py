"""What is imported before the first fork, with the collector off, so that its pages stay shared.

Not here: who forks (worker/fork_server.py, worker/warm_server.py).
"""

import gc
import importlib
import os
import sys
from typing import Iterable, Optional, Sequence, Set

from .fork_checks import RefusedError, process_state, threads

AGENT_MODULES = ("torch", "torch.distributed.run")
WORKER_MODULES = ("torch._dynamo",)  # what DDP's constructor and every optimizer import: 823 modules of torch 2.13


class Imports:
    """A process's.

    Args:
        loaded: The modules that were loaded before any of ours.

    Attributes:
        asked: The top-level names of modules that were looked for.
    """

    def __init__(self, loaded: Iterable[str]) -> None:
        self.asked: Set[str] = {name.partition(".")[0] for name in set(sys.modules) - set(loaded)}

    def load(self, modules: Sequence[str]) -> None:
        """Import, with the collector off; nothing but modules may be left of it.

        Raises:
            RefusedError: something was: a thread, a descriptor, output, a variable.
        """
        before = process_state()
        gc.disable()
        finder = Asked(self.asked)
        sys.meta_path.insert(0, finder)  # type: ignore[arg-type,unused-ignore]
        try:
            for name in modules:
                importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - a broken installation
            raise RefusedError("%s cannot be imported: %r" % (name, error)) from None
        finally:
            sys.meta_path.remove(finder)  # type: ignore[arg-type,unused-ignore]
            gc.enable()
        gc.collect()
        gc.freeze()
        if threads() > 1:  # OpenBLAS ends its own at a fork
            child = os.fork()
            if not child:
                os._exit(0)
            os.waitpid(child, 0)
        after = process_state()
        for what, value in before.items():
            if after[what] != value:
                raise RefusedError("importing %s changed %s" % (", ".join(modules), what))


class Asked:
    """A finder that finds nothing, and notes every top-level name that is looked for."""

    def __init__(self, names: Set[str]) -> None:
        self.names = names

    def find_spec(self, name: str, _path: Optional[object] = None, _target: Optional[object] = None) -> None:
        """Note the name."""
        self.names.add(name.partition(".")[0])
