"""Check whether a forked worker would differ from one that is started plainly.

It may differ by what imports left in the process, and by what would be imported instead.
"""

import os
import sys
from importlib.machinery import PathFinder
from typing import Any, Container, Dict, List, Optional, Sequence, Set, Tuple

from ..shared.run.plan import FORK_SOCKET
from ..system import procfs

NO_RENAME = "this kernel lets no process show another command line (CONFIG_CHECKPOINT_RESTORE)"
SET_AGAIN = ("TORCHINDUCTOR_CACHE_DIR",)  # torch._dynamo sets it when imported, and again when it is asked for
NEWEST = (3, 13)  # CPython
SITES = ("site-packages", "dist-packages")  # where installers put things
# Ends of the names of what acts without being asked for: a distribution with plugins, start-up code.
TELLING = (".egg-info", ".dist-info", ".egg-link", "sitecustomize.py", "usercustomize.py")
FOLDER_LIST = ".pth"  # ends the names of files in site-packages that add folders to sys.path; elsewhere, of checkpoints
HARMLESS_LINES = 8  # Ubuntu's own sitecustomize has fewer


class RefusedError(Exception):
    """Nothing is forked; the message is the reason, which `-v` shows."""


def socket_of(folder: str) -> str:
    """Return the path of the socket of the fork server whose folder this is: a spool, or a warm server's."""
    return os.path.join(folder, FORK_SOCKET)


def tell(descriptor: int, line: str) -> None:
    """Write a line to a descriptor; it is no error if the reader has closed its end."""
    try:
        os.write(descriptor, line.replace("\n", " ").encode("utf-8", "replace") + b"\n")
    except OSError:  # the reader has closed its end
        pass


def threads() -> int:
    """Return the number of this process's threads, including those that Python did not start."""
    return len(os.listdir("/proc/self/task"))


def mapped_files() -> Set[str]:
    """Return the files mapped into this process's memory: programs, libraries and devices."""
    with open("/proc/self/maps", "rb") as stream:
        rows = [line.rstrip(b"\n").split(None, 5) for line in stream]
    return {os.fsdecode(row[5]) for row in rows if len(row) > 5 and row[5].startswith(b"/")}


def read_paths() -> Set[str]:
    """Return the paths that this process's imports have read or searched, or would have if they had existed."""
    paths = {sys.executable, os.path.realpath(sys.executable), os.path.join(sys.prefix, "pyvenv.cfg"), *sys.path}
    site = sys.modules.get("site")
    paths.update(getattr(site, "getsitepackages", list)())  # one that does not exist is missing in sys.path
    paths.update([str(getattr(site, "USER_SITE", ""))] if getattr(site, "ENABLE_USER_SITE", False) else [])
    for module in list(sys.modules.values()):
        file = getattr(module, "__dict__", {}).get("__file__")
        paths.update([file] if isinstance(file, str) else [])
    paths.update(mapped_files())
    return paths


def process_state() -> Dict[str, Any]:
    """Return the state that an import must not change, by name."""
    signals = __import__("_signal")  # signal itself, with its enums, a script may not have
    return {
        "the number of threads": threads(),
        "the open files": len(os.listdir("/proc/self/fd")),
        # a driver may keep one mapped without a descriptor
        "the mapped devices": sorted(path for path in mapped_files() if path.startswith("/dev/")),
        "the child processes": procfs.own_children(),
        "the output": [os.fstat(handle).st_size for handle in (1, 2)],
        "variables": {name: value for name, value in os.environ.items() if name not in SET_AGAIN},
        "signal handlers": [signals.getsignal(number) for number in range(1, signals.NSIG)],
        "the working folder": os.getcwd(),
        "the search path": list(sys.path),
        "sys.excepthook": sys.excepthook,
        "names in __main__": sorted(vars(sys.modules["__main__"])),
    }


def file_state(path: str) -> Optional[Tuple[int, int, int, int]]:
    """Return values that change when a file or folder does; None if it does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def refuse_unknown_python() -> None:
    """Refuse a Python on which returning from a fork into its start-up was never tested (test_fork_versions)."""
    name, version = sys.implementation.name, sys.version_info[:2]
    if name != "cpython" or version > NEWEST:
        raise RefusedError("%s %d.%d is not known to fork well here" % (name, *version))


def refuse_start_up_code() -> None:
    """Refuse an interpreter with start-up code besides our hook: in a plain start it runs before torch is imported.

    Of other lines with code in .pth files only a thread is noticed, which no fork has.
    """
    if threads() > 1:
        raise RefusedError("the interpreter's start-up code has left a thread")
    site = sys.modules.get("site")
    names = ["sitecustomize"] + (["usercustomize"] if getattr(site, "ENABLE_USER_SITE", False) else [])
    for name in names:
        spec = PathFinder.find_spec(name, sys.path)
        if spec and not _is_harmless(spec.origin):
            raise RefusedError("the interpreter has a %s of its own: %s" % (name, spec.origin))


def _is_harmless(path: Optional[str]) -> bool:
    """Whether a sitecustomize is Ubuntu's own, which reports crashes of installed programs."""
    try:
        with open(path or "", encoding="utf-8") as stream:
            lines = [line for line in stream.read().splitlines() if line.strip() and not line.startswith("#")]
    except (OSError, ValueError):
        return False
    return len(lines) < HARMLESS_LINES and any("apport_python_hook" in line for line in lines)


def first_folders(argv: Sequence[str]) -> List[str]:
    """Return the first entries of sys.path: the script's folder and its real path, or the working folder with -m."""
    script = script_path(argv)
    if not script:
        return [os.getcwd()]
    real = os.path.realpath(script)
    return [os.path.dirname(script), os.path.dirname(real), *([real] if os.path.isdir(real) else [])]


def script_path(argv: Sequence[str]) -> str:
    """Return the path of a worker's script; empty with -m."""
    arguments = [argument for argument in argv[1:] if argument != "-u"]
    return "" if not arguments or arguments[0] == "-m" else os.path.abspath(arguments[0])


def import_state(path: str, asked: Container[str]) -> Optional[Tuple[object, ...]]:
    """Return a value that changes when an import from a path would give something else.

    For a file this is its stat; for a folder, an entry of sys.path, the entries that provide one of the ``asked``
    top-level modules, a plugin or start-up code, and the states of the files that name further folders. Other files may
    come and go: an editable installation has the project's own folder in sys.path.
    """
    try:
        if os.path.isdir(path):
            there = sorted(os.listdir(path))
            lists = [one for one in there if one.endswith(FOLDER_LIST)] if os.path.basename(path) in SITES else []
            found: List[object] = [one for one in there if _top(one) in asked or one.endswith(TELLING)]
            return (*found, *((one, file_state(os.path.join(path, one))) for one in lists))
    except OSError:
        return None
    return file_state(path)


def _top(entry: str) -> str:
    return entry.partition(".")[0]


def refuse_shadows(folder: str, asked: Container[str]) -> None:
    """Refuse a folder, which will come first in sys.path, if a module imported from elsewhere or not found is in it.

    Raises RefusedError if it has one of the ``asked`` top-level modules (the names that imports searched for) or a
    distribution's metadata, which may name plugins of torch, or cannot be read.
    """
    try:
        entries = os.listdir(folder)
    except OSError as error:
        raise RefusedError("%s cannot be read: %s" % (folder, error.strerror)) from None
    for entry in entries:
        path = os.path.join(folder, entry)
        if _top(entry) in asked and (entry.endswith((".py", ".pyc", ".so")) or os.path.isdir(path)):
            raise RefusedError("%s would be imported in place of an installed module" % path)
        if entry.endswith((".egg-info", ".dist-info", ".egg-link")):
            raise RefusedError("%s may tell torch of plugins" % path)
