"""Find what a package's import has made that forks must not share: random generators, and values of one process.

Run in a fork that has just imported the package and then exits (fork_server/preload_trial.py), so it may be slow.

Random generators: every object that Python's collector tracks is asked for what it refers to, so generators in
attributes, slots, closures and containers are all found. Values that depend on the process: each attribute of each new
module gets a digest of all that can be reached from it, and the digests of two forks are compared. What a library keeps
outside Python's objects cannot be seen.
"""

import array
import bisect
import datetime as dt
import gc
import os
import sys
import types
from typing import Any, Container, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

from .forked_worker import seeded_generators

MAX_OBJECTS = 8 << 20  # objects that are examined
LARGEST_ARRAY = 1 << 20  # bytes of an array that are compared
UNLISTED = (tuple, dict)  # the collector does not track one that holds nothing it tracks
BATCH_SIZE = 4096  # objects in one call of the collector
LOW_ADDRESS, HIGHEST_ADDRESS = 1 << 32, 1 << 57
HEAP = b"[heap]"  # as /proc/self/maps names it
ALIGNMENT = 16  # of what malloc returns
LEAVES = (
    int, bool, float, complex, str, bytes, dt.datetime, dt.date, dt.time, dt.timedelta,
)  # fmt: skip
NEVER = (types.CodeType, types.ModuleType, types.FrameType, types.BuiltinFunctionType)  # the same in every process
OF_IMPORTS = ("__spec__", "__loader__", "__builtins__", "__cached__", "__file__", "__path__")
# Values that differ between processes and are right in a fork nevertheless.
RIGHT_IN_FORKS = frozenset((
    # The times from which a percentage of CPU time is computed.
    "psutil._last_cpu_times", "psutil._last_per_cpu_times", "psutil._last_cpu_times_2", "psutil._last_per_cpu_times_2",
    # Each fork draws its own (forked_worker.reseed).
    "transformers.utils.hub.SESSION_ID", "multiprocess.process._current_process",
))  # fmt: skip


class TooManyError(Exception):
    """There are more than ``MAX_OBJECTS`` objects to examine."""


class StateBefore:
    """The objects, modules and generators that existed before the import; they are kept, so that no id is reused."""

    def __init__(self) -> None:
        gc.unfreeze()  # the collector does not list frozen objects
        gc.collect()
        self.objects = gc.get_objects()
        self.ids = set(map(id, self.objects))
        self.modules = frozenset(sys.modules)
        self.generators = list(generators())

    def new_generators(self) -> List[Any]:
        """Return the generators made since, except the libraries' own, which each fork reseeds."""
        gc.unfreeze()
        known = {id(one) for one in (*self.generators, *library_generators())}
        found = {id(one): one for one in generators() if id(one) not in known}
        return list(found.values())

    def new_modules(self) -> List[str]:
        """Return the modules loaded since, in order."""
        return [name for name in list(sys.modules) if name not in self.modules]


def library_generators() -> List[Any]:
    """Return the libraries' own generators, of ``random``, numpy, torch and sympy, with their bit generators."""
    found = [*seeded_generators(), getattr(sys.modules.get("random"), "_inst", None)]
    return found + [getattr(one, "_bit_generator", None) for one in found]


def generator_types() -> Tuple[type, ...]:
    """Return the types of random generators in the libraries that are loaded."""
    loaded = dict(sys.modules)
    found = [getattr(loaded.get("_random"), "Random", None), getattr(loaded.get("torch"), "Generator", None)]
    found += [getattr(loaded.get("numpy.random"), name, None) for name in ("Generator", "RandomState", "BitGenerator")]
    return tuple(one for one in found if isinstance(one, type))


class _IsGenerator(dict):  # type: ignore[type-arg] # the zipapp knows no typing
    """A cache of which types are random generators that a process seeds once."""

    def __init__(self) -> None:
        self.generator_types = generator_types()
        self.without_state = getattr(sys.modules.get("random"), "SystemRandom", ())  # it asks the kernel each time

    def __missing__(self, kind: type) -> bool:
        found = any(one in self.generator_types for one in kind.__mro__) and self.without_state not in kind.__mro__
        self[kind] = found
        return found


def generators() -> Iterator[Any]:
    """Yield every random generator that an object of this process refers to; one may be yielded several times."""
    is_generator = _IsGenerator()
    objects = gc.get_objects()
    for at in range(0, len(objects), BATCH_SIZE):
        todo = gc.get_referents(*objects[at : at + BATCH_SIZE])
        while todo:
            found = todo.pop()
            if is_generator[type(found)]:
                yield found
            elif type(found) in UNLISTED and not gc.is_tracked(found):
                todo += gc.get_referents(found)


# Two digests of the same values: one of all, one without the numbers that may depend on this process.
Digests = Tuple[int, int]


def same(first: Optional[Sequence[int]], second: Optional[Sequence[int]]) -> bool:
    """Whether two processes have the same values at a path, by the digests; None: there is no such path.

    One equal digest of the pair is enough. A number may equal a process's pid by chance (pids in a container are
    small): then the digests without it differ although the values are equal. Where a pid is kept, the digests with it
    differ.
    """
    if not first or not second:
        return first == second
    return first[0] == second[0] or first[1] == second[1]


class Values:
    """Digests of all that can be reached from each attribute of the modules that are new since ``before``.

    Each object counts where it is reached first. ``sought`` are objects whose path is wanted. Raises TooManyError if
    there are more than ``MAX_OBJECTS`` objects to examine.
    """

    def __init__(self, before: StateBefore, sought: Iterable[Any] = ()) -> None:
        self.paths: Dict[int, str] = dict.fromkeys(map(id, sought), "")  # the path of each, by the object's id
        self._old: Container[int] = before.ids
        with open("/proc/self/maps", "rb") as stream:
            self._process_numbers = ProcessNumbers(stream)
        self._seen: Set[int] = set(map(id, library_generators()))
        self.digests: Dict[str, Digests] = {}
        namespaces = {name: _namespace(sys.modules.get(name)) for name in before.new_modules()}
        self._seen.update(map(id, namespaces.values()))  # functions refer to them
        for name, namespace in namespaces.items():
            for attribute, value in list(namespace.items()):
                if attribute not in OF_IMPORTS and type(attribute) is str:
                    self._add_digests("%s.%s" % (name, attribute), value)

    def _add_digests(self, path: str, value: Any) -> None:
        """Store the digests of the attribute at ``path``, unless it may differ between forks."""
        digests = self._digests(path, value)
        if any(digests) and path not in RIGHT_IN_FORKS:
            self.digests[path] = digests

    def _digests(self, path: str, value: Any) -> Digests:
        """Digest all objects that are reached from ``value`` for the first time."""
        whole = without_process = 0
        todo = [value]
        while todo:
            current = todo.pop()
            kind = type(current)
            if kind in LEAVES:
                if current == current:  # noqa: PLR0124 - no NaN
                    whole = hash((whole, current))
                    own = kind is int and current in self._process_numbers
                    without_process = hash((without_process,) if own else (without_process, current))
                continue
            key = id(current)
            if key in self._seen or key in self._old:
                continue
            self._seen.add(key)
            if len(self._seen) > MAX_OBJECTS:
                raise TooManyError
            if key in self.paths:
                self.paths[key] = self.paths[key] or path
            content = _content(current)
            if content is not None:
                whole, without_process = hash((whole, content)), hash((without_process, content))
            elif not issubclass(kind, NEVER):
                todo += _referents_in_order(current)
        return whole, without_process


def _namespace(module: Any) -> Dict[Any, Any]:
    """Return a module's own dictionary; not by its attribute, since a lazy module may import to answer that."""
    for one in gc.get_referents(module):
        if type(one) is dict:
            return one
    return {}


def _content(one: Any) -> Optional[bytes]:
    """Return the bytes of an array, empty if it is not compared; None for anything else."""
    kind = type(one)
    if kind is bytearray:
        return bytes(one)
    if kind is array.array:
        return bytes(one.tobytes())
    library = kind.__module__ if kind.__name__ in ("ndarray", "Tensor", "Parameter") else ""
    if library == "numpy":
        return bytes(one.tobytes()) if one.nbytes <= LARGEST_ARRAY and not one.dtype.hasobject else b""
    if library.partition(".")[0] == "torch" and one.device.type == "cpu" and not one.is_sparse:
        return repr(one.tolist()).encode() if one.nbytes <= LARGEST_ARRAY else b""
    return None


def _referents_in_order(one: Any) -> List[Any]:
    """Return the objects that an object refers to, in an order that is the same in every process."""
    if type(one) is dict:  # the order of a class from a C library's may be random
        return [part for item in sorted(dict.items(one), key=lambda item: _order(item[0])) for part in item]
    found = gc.get_referents(one)
    if issubclass(type(one), dict):  # the collector skips keys that are strings
        found += [key for key in dict.keys(one) if type(key) is str]
    return sorted(found, key=_order) if type(one) in (set, frozenset) else found


def _order(item: Any) -> Tuple[str, str]:
    kind = type(item)
    if kind in LEAVES:
        return kind.__name__, repr(item)
    if isinstance(item, type) or kind is types.FunctionType:
        return kind.__name__, "%s.%s" % (item.__module__, item.__qualname__)
    return kind.__name__, repr(sorted(repr(part) for part in gc.get_referents(item) if type(part) in LEAVES))


class ProcessNumbers:
    """The numbers that depend on a process and stay right in its forks: addresses of mapped memory, and its pid.

    A library keeps its pid to notice a fork. ``maps`` are the lines of /proc/self/maps.

    A Python that is no position-independent executable, as Debian's, has its heap below ``LOW_ADDRESS``, where times in
    seconds and seeds are too. There only what malloc may have returned counts: an id, but hardly a seed.
    """

    def __init__(self, maps: Iterable[bytes]) -> None:
        self._pid = os.getpid()
        self._mapped: List[Tuple[int, int]] = []
        for line in maps:
            first, _, end = line.split(b" ", 1)[0].partition(b"-")
            if line.rstrip().endswith(HEAP) or int(end, 16) > LOW_ADDRESS:
                self._mapped.append((int(first, 16), int(end, 16)))

    def __contains__(self, number: int) -> bool:
        if number == self._pid:
            return True
        if not 0 < number < HIGHEST_ADDRESS or (number < LOW_ADDRESS and number % ALIGNMENT):
            return False
        at = bisect.bisect_right(self._mapped, (number, HIGHEST_ADDRESS)) - 1
        return at >= 0 and number < self._mapped[at][1]
