"""The packages that an interpreter would import, by the ``.dist-info`` folders on its path, without running it."""

import re
from typing import Dict, Sequence

from ..system.small_files import sorted_names

MAX_PACKAGES = 4000
_EGG_PYTHON = re.compile(r"-py\d[\d.]*(-[\w-]+)?$")  # the end of an egg's name
_SEPARATORS = re.compile(r"[-_.]+")


def installed(path: Sequence[str]) -> Dict[str, str]:
    """Version by package along a ``sys.path``; of a package installed twice, the one that would be imported."""
    found: Dict[str, str] = {}
    for folder in path:
        for name in sorted_names(folder or "/"):
            stem, _, kind = name.rpartition(".")
            if kind == "egg-info":
                stem = _EGG_PYTHON.sub("", stem)
            elif kind != "dist-info":
                continue
            package, dash, version = stem.rpartition("-")
            if dash and package and version and len(found) < MAX_PACKAGES:
                found.setdefault(_SEPARATORS.sub("-", package).lower()[:200], version[:200])
    return found
