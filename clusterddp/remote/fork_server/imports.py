"""Import modules before the first fork, with the garbage collector off so that forks share their pages."""

import gc
import importlib
import os
import re
import sys
from typing import Callable, Iterable, Optional, Sequence, Set

from .cwd_references import PathHolders
from .environ_reads import record_reads
from .fork_checks import RefusedError, process_state, threads

AGENT_MODULES = ("torch", "torch.distributed.run")
WORKER_MODULES = ("torch._dynamo",)  # what DDP's constructor and every optimizer import: 823 modules of torch 2.13
# Before torch 2.10, torch._dynamo makes a temporary folder and adds it to the search path, which each worker must do
# itself. This module is half of torch._dynamo, including sympy.
OLDER_WORKER_MODULES = ("torch.fx.experimental.symbolic_shapes",)


class Imports:
    """The imports of one process.

    ``loaded`` are the modules loaded before any of ours. With ``hurried`` a run waits: then garbage is kept unless
    something has changed, and libraries are not searched for variables, which their trial has done. ``asked`` are the
    top-level names of the modules that were searched for, ``reads`` the variables that packages other than torch have
    read.
    """

    def __init__(self, loaded: Iterable[str], *, hurried: bool = False) -> None:
        self.hurried = hurried
        self.asked: Set[str] = {name.partition(".")[0] for name in set(sys.modules) - set(loaded)}
        self.reads: Set[str] = set()

    def load(self, modules: Sequence[str]) -> None:
        """Import modules with the collector off; they may leave nothing but modules behind.

        Raises RefusedError if an import failed, or left a thread, a descriptor, output or a variable behind.
        """

        def load() -> None:
            name = ""
            try:
                for name in modules:
                    importlib.import_module(name)
            except Exception as error:  # noqa: BLE001 - a broken installation
                raise RefusedError("%s cannot be imported: %r" % (name, error)) from None

        self._load(load, ", ".join(modules))

    def load_package(self, modules: Sequence[str], here: str = "") -> None:
        """Import a package's modules as ``load`` does, and record the variables that they read.

        ``here`` is a path that nothing may keep where it cannot be replaced; empty: this is not checked. Raises
        RefusedError if an import failed, or left something but modules behind.
        """

        def load() -> None:
            with record_reads(self.reads, in_libraries=not self.hurried):
                for module in modules:
                    _load_module(module)

        self._load(load, "it", here)

    def _load(self, load: Callable[[], None], what: str, here: str = "") -> None:
        """Call ``load``, and raise RefusedError if it left anything but modules behind."""
        before = process_state()
        gc.disable()
        finder = LookedUpNames(self.asked)
        sys.meta_path.insert(0, finder)  # type: ignore[arg-type,unused-ignore]
        try:
            load()
        finally:
            sys.meta_path.remove(finder)  # type: ignore[arg-type,unused-ignore]
            gc.enable()
        if not self.hurried:
            gc.collect()
        if here:
            PathHolders().find(PathHolders(), here)
        if threads() > 1:  # OpenBLAS ends its threads at a fork
            child = os.fork()
            if not child:
                os._exit(0)
            os.waitpid(child, 0)
        after = process_state()
        if after != before and self.hurried:  # perhaps because of garbage
            gc.collect()
            after = process_state()
        gc.freeze()
        for name, value in before.items():
            if after[name] != value:
                raise RefusedError("importing %s changed %s" % (what, name))


def worker_modules(version: str) -> Sequence[str]:
    """Return the modules besides torch that workers import and forks can share, by torch's ``__version__``."""
    release = re.match(r"(\d+)\.(\d+)", version)
    newer = release and (int(release.group(1)), int(release.group(2))) >= (2, 10)
    return WORKER_MODULES if newer else OLDER_WORKER_MODULES


def _load_module(name: str) -> None:
    try:
        importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001 - whatever it raises, SystemExit too
        raise RefusedError("it cannot be imported: %r" % error) from None


class LookedUpNames:
    """A finder that finds nothing, and records every top-level name that is searched for."""

    def __init__(self, names: Set[str]) -> None:
        self.names = names

    def find_spec(self, name: str, _path: Optional[object] = None, _target: Optional[object] = None) -> None:
        """Record the name."""
        self.names.add(name.partition(".")[0])
