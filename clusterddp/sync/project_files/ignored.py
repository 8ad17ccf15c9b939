"""Data in the project that git ignores and that is therefore not synced: reported, as the job may need it.

What a job never needs is left out: caches, environments, built packages, hidden files, and anything small. The number
of files looked at is limited, so that this takes no noticeable time.
"""

# Names are bytes, because a file name may be no valid text; pathlib has text only.
# ruff: noqa: PTH110, PTH112, PTH114, PTH116, PTH118, PTH120, PTH208
from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.remote.shared.text.counted import counted
from clusterddp.remote.shared.workdir.manifest import as_text
from clusterddp.sync.project_files import git
from clusterddp.text.folding import few
from clusterddp.text.paths import shown
from clusterddp.text.units import human_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MIN_SIZE = 10**6  # bytes; what is smaller is no data
MAX_FILES = 5000  # the most files that are measured
_UNNEEDED = frozenset((b"__pycache__", b"node_modules", b"build", b"dist", b"htmlcov"))
_UNNEEDED_ENDS = (b".pyc", b".egg-info")


@dataclass(frozen=True, kw_only=True, slots=True)
class IgnoredData:
    """A file, link or folder that git ignores."""

    what: str  # a path, or several files of one folder
    size: int | None  # bytes; None for a link
    whole: bool = True  # whether all of it was measured; if not, it is larger than ``size``

    def __str__(self) -> str:
        if self.size is None:
            return f"{self.what} (a link)"
        return f"{self.what} ({'' if self.whole else 'more than '}{human_size(self.size)})"


def ignored_data(root: bytes) -> tuple[IgnoredData, ...]:
    """List what git ignores in a project and a job may need: links first, then the largest."""
    names = [name for name in git.list_ignored(root) if not _is_unneeded(root, name)]
    links = [name for name in names if os.path.islink(os.path.join(root, name)) and _points_to_data(root, name)]
    found = [IgnoredData(what=shown(as_text(name)), size=None) for name in links]
    budget = iter(range(MAX_FILES))
    sizes = [_measure(root, group, budget) for group in _by_folder(name for name in names if name not in links)]
    large = [data for data in sizes if (data.size or 0) >= MIN_SIZE]
    return (*found, *sorted(large, key=lambda data: -(data.size or 0)))


def notice(found: Sequence[IgnoredData]) -> str:
    """Return one line about ignored data, with the remedy; empty if there is none."""
    if not found:
        return ""
    remedy = "bring what the job needs of it with `clusterddp push PATH`, or take it out of .gitignore"
    return f"not synced, ignored by git: {few([str(data) for data in found], 5)}; {remedy}"


def _is_unneeded(root: bytes, name: bytes) -> bool:
    """Whether no job needs it: hidden, a cache, an environment, a built package."""
    parts = name.rstrip(b"/").split(b"/")
    if any(part.startswith(b".") or part in _UNNEEDED or part.endswith(_UNNEEDED_ENDS) for part in parts):
        return True
    return os.path.exists(os.path.join(root, name, b"pyvenv.cfg"))


def _points_to_data(root: bytes, name: bytes) -> bool:
    """Whether a link leads to a folder, or to a file as large as data."""
    path = os.path.join(root, name)
    return os.path.isdir(path) or (os.path.exists(path) and os.stat(path).st_size >= MIN_SIZE)


def _by_folder(names: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Group names: each folder by itself, the files of one folder together."""
    files: dict[bytes, list[bytes]] = {}
    for name in names:
        if name.endswith(b"/"):
            yield [name]
        else:
            files.setdefault(os.path.dirname(name), []).append(name)
    yield from files.values()


def _measure(root: bytes, names: list[bytes], budget: Iterator[int]) -> IgnoredData:
    """Measure these files, taking one item of ``budget`` for each until none is left."""
    size, whole = 0, True
    for path in _files([os.path.join(root, name) for name in names]):
        if next(budget, None) is None:
            whole = False
            break
        try:
            size += os.lstat(path).st_size
        except OSError:  # removed meanwhile
            continue
    return IgnoredData(what=_description(names), size=size, whole=whole)


def _description(names: list[bytes]) -> str:
    """The path of a single name, or the number of files and their folder."""
    if len(names) == 1:
        return shown(as_text(names[0]))
    folder = os.path.dirname(names[0])
    return counted(len(names), "file") + (f" in {shown(as_text(folder))}/" if folder else "")


def _files(pending: list[bytes]) -> Iterator[bytes]:
    """Yield the files among these paths and in folders among them."""
    while pending:
        path = pending.pop()
        if not os.path.isdir(path) or os.path.islink(path):
            yield path
            continue
        try:
            pending.extend(os.path.join(path, name) for name in os.listdir(path))
        except OSError:  # not readable, or removed meanwhile
            continue
