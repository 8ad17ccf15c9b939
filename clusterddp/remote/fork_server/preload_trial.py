"""Try the packages of clusterddp_preload: find what would be wrong if forks shared them.

The trial leaves nothing behind. Each package is imported in a child of the process that has imported those before it,
so a bad one affects no other:

    torch ── child: tries A, good ── its child: tries B, bad, ends
                                  └─ its next child: tries C, …

All is done by two such chains, one after the other. What differs between them (fork_server/preload_state.py) belongs to
one process: an id, a time, a token.
"""

import json
import os
import re
import signal
import sys
import time
from importlib.machinery import PathFinder
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, NoReturn, Optional, Sequence, Set, Tuple

from ..shared.schema.fields import Fields
from ..shared.schema.record import field, record
from ..system import prctl, procfs
from .environ_reads import EVERY, first_individual_variable
from .fork_checks import SITES, RefusedError, mapped_files, read_paths, tell
from .forked_worker import reseed
from .imports import Imports
from .preload_state import StateBefore, TooManyError, Values, same

PACKAGE_TIMEOUT = 120  # seconds for one package
CHAIN_PAUSE = 1.1  # seconds between the chains, so that times in whole seconds differ
CHECK_INTERVAL = 0.05  # seconds between checks whether a chain has ended
MAX_MEMORY = 600 << 10  # KiB of anonymous memory of a process that has imported the packages
ALL_TRIED, BAD = 3, 4  # exit codes; the reason is in the notes
NO_SUCH = "no module or distribution of that name is installed"
NO_MODULE = "it names no module that could be imported"


@record
class PreloadVerdict(NamedTuple):
    """The outcome of a package's trial."""

    name: str = field(Fields.text)  # as in the inventory: a module or a distribution
    modules: Tuple[str, ...] = field(Fields.texts, default=())  # what is imported for it
    left_out: str = field(Fields.text, default="")  # why it is not imported before a fork; empty if it is
    reads: Tuple[str, ...] = field(Fields.texts, default=())  # variables that it reads when it is imported
    asks: Tuple[str, ...] = field(Fields.texts, default=())  # top-level names of the modules that it searches for


class TrialResult(NamedTuple):
    """What one chain found out about a package: its verdict, the files it read, digests of its values by path."""

    verdict: PreloadVerdict
    paths: Sequence[str]
    values: Mapping[str, Sequence[int]]


def try_packages(
    names: Sequence[str], folder: str, meanwhile: Callable[[], None]
) -> Tuple[List[PreloadVerdict], Set[str]]:
    """Return a verdict on each package, and all paths that the verdicts depend on.

    The packages are imported in the order of ``names``. The trial makes a file and a folder in ``folder``, and removes
    them; ``meanwhile`` is called repeatedly during it.
    """
    left_out: Dict[str, PreloadVerdict] = {}
    paths = read_paths()
    # One name for both chains, since packages may keep it in their values.
    here = os.path.join(folder, "cwd-" + os.urandom(8).hex())
    while True:
        remaining = [name for name in names if name not in left_out]
        first = _run_chain(remaining, here, meanwhile)
        for result in first.values():
            paths.update(result.paths)
        good = [name for name in remaining if not first[name].verdict.left_out]
        bad = {name: first[name].verdict for name in remaining if name not in good}
        differing: Dict[str, PreloadVerdict] = {}
        if good:
            pause_end = time.monotonic() + CHAIN_PAUSE
            while time.monotonic() < pause_end:
                meanwhile()
                time.sleep(CHECK_INTERVAL)
            second = _run_chain(good, here, meanwhile)
            differing = {name: found for name in good for found in _verdict_on_difference(first[name], second[name])}
        left_out.update(differing)
        if not differing:  # else others may have imported one of them
            verdicts = {**left_out, **bad, **{name: first[name].verdict for name in good}}
            return [verdicts[name] for name in names], paths


def _verdict_on_difference(first: TrialResult, second: TrialResult) -> Iterator[PreloadVerdict]:
    """Yield a verdict if a package's two results differ."""
    if second.verdict.left_out:
        yield second.verdict
        return
    for name in (*first.values, *second.values):
        if not same(first.values.get(name), second.values.get(name)):
            reason = "%s is another in each process that imports it, and all workers would share one" % name
            yield first.verdict._replace(left_out=reason)
            return


def _run_chain(names: Sequence[str], here: str, meanwhile: Callable[[], None]) -> Dict[str, TrialResult]:
    """Try the packages in a chain of processes that begins in the folder ``here``; return each one's result."""
    os.mkdir(here, 0o700)
    path = here + ".notes"
    notes = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.unlink(path)
        parent = os.getpid()
        child = os.fork()
        if not child:
            _die_with(parent)
            os.chdir(here)
            _try_each(names, here, notes)
        while not os.waitpid(child, os.WNOHANG)[0]:
            meanwhile()
            time.sleep(CHECK_INTERVAL)
        found = _parse_notes(os.pread(notes, os.fstat(notes).st_size, 0))
    finally:
        os.close(notes)
        os.rmdir(here)
    return {
        name: found.get(name, TrialResult(PreloadVerdict(name, left_out="it could not be tried"), (), {}))
        for name in names
    }


def _parse_notes(data: bytes) -> Dict[str, TrialResult]:
    """Decode the notes of a chain: one result for each package."""
    found: Dict[str, TrialResult] = {}
    for line in data.splitlines():
        name, modules, left_out, reads, asks, paths, values = json.loads(line)
        found[name] = TrialResult(
            PreloadVerdict(name, tuple(modules), left_out, tuple(reads), tuple(asks)), paths, values
        )
    return found


def _die_with(parent: int) -> None:
    """Have this process killed when its parent ends; exit at once if the parent has ended already."""
    if not prctl.set_pdeathsig(signal.SIGKILL) or os.getppid() != parent:
        os._exit(1)


def _try_each(names: Sequence[str], here: str, notes: int) -> NoReturn:
    """In a fork: try each package in one more fork, write the results to ``notes`` (a descriptor), then exit."""
    try:
        for name in names:
            parent = os.getpid()
            child = os.fork()
            if child:
                status = os.waitpid(child, 0)[1]
                if status == ALL_TRIED << 8:  # it went on to the last package
                    break
                if status != BAD << 8:
                    _write_note(
                        notes, TrialResult(PreloadVerdict(name, left_out="importing it ended the process"), (), {})
                    )
                continue
            _die_with(parent)
            signal.alarm(PACKAGE_TIMEOUT)
            seen = _try_package(name, here)
            signal.alarm(0)
            _write_note(notes, seen)
            if seen.verdict.left_out:
                for pid in procfs.own_children():
                    os.kill(pid, signal.SIGKILL)
                os._exit(BAD)
        os._exit(ALL_TRIED)
    finally:
        os._exit(1)


def _try_package(name: str, here: str) -> TrialResult:
    """Import a package as a fork server would, and examine the outcome."""
    imports = Imports(sys.modules)
    values: Mapping[str, Sequence[int]] = {}
    modules: Optional[Sequence[str]] = None
    files, loaded = mapped_files(), set(sys.modules)
    try:
        reseed()  # so that what it draws from the libraries' generators differs between chains
        memory = procfs.anonymous_memory()
        before = StateBefore()
        for_looking = procfs.anonymous_memory() - memory
        modules = modules_of(name, sys.path)
        reason = reason_against(modules, imports, here)
        if not reason and procfs.anonymous_memory() - for_looking > MAX_MEMORY:
            reason = "with it the process would have more than %d MB" % (MAX_MEMORY >> 10)
        if not reason:
            found = before.new_generators()
            state = Values(before, found)
            values = state.digests
            reason = "; ".join(_reason_against_generator(one, state.paths[id(one)]) for one in found[:1])
    except TooManyError:
        reason = "it has too many objects to look at"
    except BaseException as error:  # noqa: BLE001 - what the import did has broken this process
        reason = "importing it was followed by %r" % error
    paths = mapped_files() - files
    for module in set(sys.modules) - loaded:
        file = getattr(sys.modules.get(module), "__dict__", {}).get("__file__")
        paths.update([file] if isinstance(file, str) else [])
    asks = sorted({*imports.asked, *(module.partition(".")[0] for module in (name, *(modules or ())))})
    return TrialResult(
        PreloadVerdict(name, tuple(modules or ()), reason[:400], tuple(sorted(imports.reads)), tuple(asks)),
        sorted(paths),
        values,
    )


def _reason_against_generator(one: Any, name: str) -> str:
    """Say where a random generator was found that workers must not share."""
    kind = type(one)
    what = "%s.%s" % (kind.__module__, kind.__qualname__)
    return "it keeps a random generator of its own%s, of the type %s, which all workers would share" % (
        " in %s" % name if name else "", what
    )  # fmt: skip


def reason_against(modules: Optional[Sequence[str]], imports: Imports, here: str = "") -> str:
    """Import a package, and return why it must not be preloaded; empty if it may.

    ``modules`` is None where it is not installed. ``imports`` has the variables and modules that the package asked for
    afterwards. ``here`` is a path that nothing may keep where it cannot be replaced; empty: this is not checked.
    """
    if modules is None:
        return NO_SUCH
    if not modules:
        return NO_MODULE
    before = set(sys.modules)
    try:
        imports.load_package(modules, here)
    except RefusedError as error:
        return str(error)
    read = first_individual_variable(imports.reads)
    if read:
        return "it reads %s when it is imported" % ("all variables" if read == EVERY else read)
    for name in set(sys.modules) - before:
        file = getattr(sys.modules.get(name), "__dict__", {}).get("__file__")
        if isinstance(file, str) and not _is_installed(file):
            return "it imports %s, which is not installed" % file
    return ""


def _is_installed(file: str) -> bool:
    library = os.path.join(os.path.dirname(os.__file__), "")
    return any("/%s/" % site in file for site in SITES) or file.startswith((library, os.path.realpath(library)))


def modules_of(name: str, search: Sequence[str]) -> Optional[List[str]]:
    """Return the module of a name in the inventory, else the modules of the distribution of that name.

    None if there is neither.
    """
    top = name.partition(".")[0]
    if "-" not in name and (top in sys.modules or PathFinder.find_spec(top, list(search))):
        return [name]
    wanted = _normal_name(name)
    for folder in search:
        try:
            entries = os.listdir(folder)
        except OSError:  # no folder: nothing is installed there
            continue
        for entry in entries:
            base, kind = os.path.splitext(entry)
            if kind in (".dist-info", ".egg-info") and _normal_name(base.partition("-")[0]) == wanted:
                return sorted(_modules_by(os.path.join(folder, entry)))
    return None


def _normal_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _modules_by(info: str) -> Set[str]:
    """Return a distribution's topmost modules: by its list of files or, in the older format, of top-level names."""
    listed = _lines(os.path.join(info, "RECORD"))
    if not listed:
        return {name for name in _lines(os.path.join(info, "top_level.txt")) if name.isidentifier()}
    paths = [line.partition(",")[0].split("/") for line in listed]
    packages = [
        path[:-1] for path in paths if path[-1].startswith("__init__.") and all(map(str.isidentifier, path[:-1]))
    ]
    files = {path[0].partition(".")[0] for path in paths if len(path) == 1 and path[0].endswith((".py", ".so"))}
    modules = {name for name in files if name.isidentifier()}
    depth = 1 if modules else min(map(len, packages), default=0)  # below a namespace package it is more than one
    return modules | {".".join(path) for path in packages if len(path) == depth}


def _lines(path: str) -> List[str]:
    """Return the lines of a file; none where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().splitlines()
    except OSError:
        return []


def _write_note(notes: int, seen: TrialResult) -> None:
    tell(notes, json.dumps([*seen.verdict, seen.paths, seen.values]))
