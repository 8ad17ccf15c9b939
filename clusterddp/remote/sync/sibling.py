"""The sibling of a workdir: other code beside a live run, with links back to everything that is not code.

A file that the new run opens by its old name is the workdir's own, through the link, so data and checkpoints
are found and written where they were. A name that is new, or replaced by a rename as checkpoints are, is in the sibling
alone until it comes home (sync/home.py).
"""

import os
import posixpath
import stat
from typing import Dict, List, Set, Tuple

from ..shared.manifest import as_text, on_disk, parents
from ..shared.workdirs import sibling_of

OURS = (b".clusterddp-", b"__pycache__")
KEPT = b".clusterddp-kept-"


def sibling_path(primary: bytes, digest: str) -> bytes:
    """The sibling's folder for the code of ``digest``."""
    return on_disk(sibling_of(as_text(primary), digest))


def live_notice(primary: bytes, target: bytes, live: List[str]) -> str:
    """One line for the user on the runs that are live in the workdir; empty where none is."""
    if not live:
        return ""
    if target == primary:
        return "run %s is live in %s too: both write there; --workdir fresh gives a run a folder of its own" % (
            ", ".join(live),
            as_text(primary),
        )
    named = (", ".join(live), as_text(primary), as_text(target))
    return (
        "run %s is live in %s with other code: this code is in %s, which links back;"
        " new files come home at a later start" % named
    )


def link_back(primary: bytes, target: bytes, taken: Set[str], folders: List[str], earlier: List[str]) -> List[str]:
    """Link what the workdir holds besides code into the sibling.

    Args:
        primary: The workdir.
        target: The sibling.
        taken: The paths of the sibling's code, and of the workdir's as it was put.
        folders: Folders to be real in the sibling: from a worker's cwd, ``..`` must lead to its own code.
        earlier: The links made before; those that are not made now are removed.

    Returns: the links there are now.
    """
    opened = {folder for known in taken for folder in parents(known)} | {""}
    opened.update(above for folder in folders for above in parents(folder + "/"))
    links: List[str] = []
    if os.path.isdir(primary):
        _link_folder(primary, target, "", (taken, opened, links))
    for old in set(earlier) - set(links):
        full = os.path.join(target, on_disk(old))
        if os.path.islink(full):
            os.unlink(full)
    return sorted(links)


def seen_files(primary: bytes, target: bytes, links: List[str], earlier: Dict[str, List[int]]) -> Dict[str, List[int]]:
    """What the workdir's files are that the sibling sees by its links; of one it has replaced, what that was (earlier).

    Such a file may be brought home in the place of what it has replaced (sync/home.py).
    """
    replaced = {path: told for path, told in earlier.items() if os.path.isfile(os.path.join(target, on_disk(path)))}
    found = {path: file_stats(os.path.join(primary, on_disk(path))) for path in links}
    return dict(replaced, **{path: told for path, told in found.items() if told})


def file_stats(path: bytes) -> List[int]:
    """What tells that a file is still the same; empty for anything else."""
    try:
        info = os.lstat(path)
    except OSError:
        return []
    return [info.st_ino, info.st_size, info.st_mtime_ns] if stat.S_ISREG(info.st_mode) else []


def _link_folder(primary: bytes, target: bytes, folder: str, where: Tuple[Set[str], Set[str], List[str]]) -> None:
    taken, opened, links = where
    for name in sorted(os.listdir(os.path.join(primary, on_disk(folder)))):
        inside = posixpath.join(folder, as_text(name))
        source = os.path.join(primary, on_disk(inside))
        if inside in taken or name.startswith(OURS) or KEPT in name:
            continue
        if inside not in opened:
            _link(source, os.path.join(target, on_disk(inside)), inside, links)
        elif os.path.isdir(source) and not os.path.islink(source):
            _link_folder(primary, target, inside, where)


def _link(source: bytes, place: bytes, inside: str, links: List[str]) -> None:
    if os.path.islink(place) and os.readlink(place) == source:
        links.append(inside)
    elif not os.path.lexists(place):
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.symlink(source, place)
        links.append(inside)
