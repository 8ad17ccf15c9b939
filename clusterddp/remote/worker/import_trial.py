"""What imports of packages leave behind, tried one after the other in forks that end; nothing of it stays here.

Each package is imported by a child of the process that has those before it, so a bad one harms no other:

    torch ── child: tries A, good ── its child: tries B, bad, ends
                                  └─ its next child: tries C, …

Not here: which packages (worker/learning.py), what is looked at (worker/fork_imports.py, worker/fork_checks.py).
"""

import json
import os
import signal
import sys
from typing import Any, Dict, List, Mapping, NoReturn, Sequence

from .environment_reads import EVERY, own_to_one
from .fork_checks import RefusedError, children, tell
from .fork_imports import Imports
from .installed import SITES
from .learned import Package

LIMIT = 120  # seconds for one package
ALL_TRIED, BAD = 3, 4  # exit codes; why it is bad is on record
NOT_TRIED = {"left_out": "it was not tried"}


def tried(packages: Sequence[Package], here: str, notes: str) -> List[Package]:
    """The packages with a verdict each.

    Args:
        packages: In the order of their imports.
        here: The working folder's name, which stands nowhere else.
        notes: The path of a file that is made for it.
    """
    handle = os.open(notes, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        child = os.fork()
        if not child:
            _try_each(packages, here, handle)
        os.waitpid(child, 0)
        verdicts = _read(os.pread(handle, os.fstat(handle).st_size, 0))
    finally:
        os.close(handle)
        os.unlink(notes)
    return [one._replace(**verdicts.get(one.name, NOT_TRIED)) for one in packages]


def _read(data: bytes) -> Mapping[str, Mapping[str, Any]]:
    """What each package's trial has shown, by its name: fields of ``Package``."""
    found: Dict[str, Mapping[str, Any]] = {}
    for line in data.splitlines():
        name, left_out, reads, asks = json.loads(line)
        found[name] = {"left_out": left_out, "reads": tuple(reads), "asks": tuple(asks)}
    return found


def _try_each(packages: Sequence[Package], here: str, notes: int) -> NoReturn:
    """In a fork: try them all, and end."""
    try:
        for package in packages:
            child = os.fork()
            if child:
                status = os.waitpid(child, 0)[1]
                if status == ALL_TRIED << 8:  # it went on to the last one
                    break
                if status != BAD << 8:
                    _note(notes, package, "importing it ended the process", Imports(sys.modules))
                continue
            signal.alarm(LIMIT)
            imports = Imports(sys.modules)
            try:
                reason = reason_against(package, imports, here)
            except BaseException as error:  # noqa: BLE001 - what it has done has harmed us
                reason = "importing it was followed by %r" % error
            signal.alarm(0)
            _note(notes, package, reason, imports)
            if reason:
                for pid in children():
                    os.kill(int(pid), signal.SIGKILL)
                os._exit(BAD)
        os._exit(ALL_TRIED)
    finally:
        os._exit(1)


def reason_against(package: Package, imports: Imports, here: str = "") -> str:
    """Import it; why it should not have been, empty where all is well.

    Args:
        package: The package.
        imports: What it is imported by; has what it reads and asks for afterwards.
        here: The working folder's name, that nobody is to remember; empty: anybody may.
    """
    before = set(sys.modules)
    try:
        imports.load_package(package.name, package.modules, here)
    except RefusedError as error:
        return str(error)
    read = own_to_one(imports.reads)
    if read:
        return "it reads %s when it is imported" % ("all variables" if read == EVERY else read)
    for name in set(sys.modules) - before:
        file = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(file, str) and not _is_installed(file):
            return "it imports %s, which is not installed" % file
    return ""


def _is_installed(file: str) -> bool:
    library = os.path.join(os.path.dirname(os.__file__), "")
    return any("/%s/" % site in file for site in SITES) or file.startswith((library, os.path.realpath(library)))


def _note(notes: int, package: Package, reason: str, imports: Imports) -> None:
    tell(notes, json.dumps([package.name, reason[:400], sorted(imports.reads), sorted(imports.asked)]))
