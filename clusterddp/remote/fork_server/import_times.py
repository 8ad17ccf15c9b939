"""Measure how long a worker's own imports of installed packages take, so that a user learns which to preload.

The function that Python calls for a module that is not loaded yet is replaced by one that reads the clock. Only the
outermost import of an installed package is timed; the imports within it run unchanged. The script sees no difference:
no finder, no name, no line in a traceback.
"""

import os
import sys
import time
from typing import Any, Callable, Container, Dict, List

from ..spool.events import append_event

MIN_TOTAL = 1.0  # seconds of all packages together
MIN_MODULE = 0.1  # seconds of one module
SITES = ("/site-packages/", "/dist-packages/")
OF_TORCH = ("torch", "functorch", "torchgen")


class ImportTimes:
    """The durations of this process's imports, without those of packages that cannot be preloaded (``not_counted``)."""

    def __init__(self, not_counted: Container[str]) -> None:
        self.not_counted = not_counted
        self.seconds: Dict[str, float] = {}  # by module
        self.own = frozenset(getattr(sys, "stdlib_module_names", ())) | frozenset(OF_TORCH)
        self.finder: Any = sys.modules["_frozen_importlib_external"].PathFinder

    def begin(self) -> None:
        """Start to time the imports of this thread."""
        python: Any = sys.modules["_frozen_importlib"]
        thread: Callable[[], int] = sys.modules["_thread"].get_ident
        original, main, clock, is_counted = python._find_and_load, thread(), time.perf_counter, self.is_counted  # noqa: SLF001
        seconds = self.seconds

        def _find_and_load(name: str, import_: object) -> object:
            if thread() != main or not is_counted(name):
                return original(name, import_)
            began = clock()
            python._find_and_load = original  # noqa: SLF001
            try:
                return original(name, import_)
            finally:
                python._find_and_load = _find_and_load  # noqa: SLF001
                seconds[name] = seconds.get(name, 0.0) + clock() - began

        # Under this name Python leaves its frame out of tracebacks, as those of its own import system.
        _find_and_load.__code__ = _find_and_load.__code__.replace(co_filename=original.__code__.co_filename)
        python._find_and_load = _find_and_load  # noqa: SLF001

    def is_counted(self, name: str) -> bool:
        """Whether a module belongs to an installed package other than torch."""
        top = name.partition(".")[0]
        if top in self.own or top in self.not_counted:
            return False
        try:
            module = sys.modules.get(top)
            spec: Any = module.__dict__.get("__spec__") if module else self.finder.find_spec(top)
            origins = [spec.origin] if spec.origin else list(spec.submodule_search_locations)
            return any(site in origin + "/" for origin in origins for site in SITES)
        except Exception:  # noqa: BLE001 - the import itself will raise it
            return False

    def modules_to_report(self) -> List[str]:
        """Return the modules to report, longest first; none if preloading them would save little."""
        names = sorted(
            (name for name, took in self.seconds.items() if took >= MIN_MODULE), key=self.seconds.__getitem__
        )
        return names[::-1] if self.total(names) > MIN_TOTAL else []

    def total(self, names: List[str]) -> float:
        """Return the sum of these modules' times in seconds."""
        return sum(self.seconds[name] for name in names)


def measure(spool: str, worker: str, left_out: Container[str]) -> None:
    """In rank 0, time the imports from now on and append a ``slow_imports`` event at the end."""
    if os.environ.get("RANK") != "0":
        return
    try:
        times = ImportTimes(left_out)
        times.begin()
    except (AttributeError, KeyError):  # another Python's import system: nothing is measured
        return

    def write_times() -> None:
        names = times.modules_to_report()
        if names:
            start, _, local_rank = worker.partition(".")
            fields = {"start": int(start), "local_rank": int(local_rank), "seconds": round(times.total(names), 2)}
            append_event(os.path.join(spool, "events.jsonl"), "slow_imports", modules=names, **fields)

    _call_at_last_flush(write_times)


def _call_at_last_flush(call: Callable[[], None]) -> None:
    """Call ``call`` when Python flushes its streams at exit.

    All modules are still loaded then, and the script's own exit callbacks do not include one of ours.
    """
    pid, called = os.getpid(), []  # type: ignore[var-annotated]

    def calling_first(flush: Callable[[], Any]) -> Callable[[], Any]:
        def flush_and_call() -> Any:
            if not called and sys.is_finalizing() and os.getpid() == pid:
                called.append(pid)
                call()
            return flush()

        flush_and_call.__name__ = "flush"
        flush_and_call.__qualname__ = "FileIO.flush"
        return flush_and_call

    for stream in (sys.stdout, sys.stderr):
        buffer: Any = getattr(stream, "buffer", None)
        raw = getattr(buffer, "raw", buffer)
        if raw is not None:
            raw.flush = calling_first(raw.flush)
