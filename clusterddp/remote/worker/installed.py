"""Which top-level packages are installed distributions' own: not a project's code, not editable, not from a folder.

Not here: what is imported of them (worker/learning.py).
"""

import json
import os
from importlib.machinery import PathFinder
from typing import Iterable, Iterator, List, Optional, Set

SITES = ("site-packages", "dist-packages")  # where installers put things
LONGEST = 1 << 16  # bytes of a direct_url.json


def installed(names: Iterable[str], search: List[str]) -> Set[str]:
    """Those of the top-level names that an import would find in an installed distribution.

    Args:
        names: Top-level names.
        search: As ``sys.path``.
    """
    owned = {folder: set(_names_in(folder)) for folder in search if os.path.basename(folder) in SITES}
    found = set()
    for name in names:
        folder = _folder_of(name, search)
        if folder is not None and name in owned.get(folder, ()):
            found.add(name)
    return found


def _folder_of(name: str, search: List[str]) -> Optional[str]:
    """The folder of the search path that provides a top-level name, by a file that really lies there."""
    for folder in search:
        try:
            spec = PathFinder.find_spec(name, [folder])
        except (ImportError, ValueError):
            return None
        if spec is None:
            continue
        if not spec.origin or not spec.has_location:  # a namespace, to which others may add
            return None
        inside = os.path.join(os.path.realpath(folder), "")
        return folder if os.path.realpath(spec.origin).startswith(inside) else None
    return None


def _names_in(folder: str) -> Iterator[str]:
    """The top-level names that distributions installed in a folder say they have put there."""
    try:
        entries = os.listdir(folder)
    except OSError:  # no folder: nothing can be imported from it
        return
    for entry in entries:
        if not entry.endswith(".dist-info") or _is_local(os.path.join(folder, entry)):
            continue
        try:
            with open(os.path.join(folder, entry, "RECORD"), encoding="utf-8", errors="replace") as stream:
                for line in stream:
                    yield line.partition(",")[0].partition("/")[0].partition(".")[0]
        except OSError:  # it has no list: what it holds counts as nobody's
            continue


def _is_local(dist_info: str) -> bool:
    """Whether it was installed from a folder, editable or not: somebody's working copy (PEP 610)."""
    try:
        with open(os.path.join(dist_info, "direct_url.json"), "rb") as stream:
            told = json.loads(stream.read(LONGEST))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, RecursionError):
        return True
    return not isinstance(told, dict) or "dir_info" in told
