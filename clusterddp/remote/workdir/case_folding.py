"""Detection of names that differ only in case, for filesystems that ignore case."""

import os
from typing import Dict, Iterable

from ..shared.workdir.manifest import as_text, folders_above
from ..system.bootstrap import Refused


def refuse_folded(root: bytes, paths: Iterable[bytes]) -> None:
    """Raise Refused, before any change, if two of the files or their folders would have one name in ``root``.

    The filesystem is only probed if two of the names differ in nothing but case.
    """
    files = set(paths)
    all_paths = list(map(as_text, sorted(files | folders_above(files))))
    path_of_folded: Dict[str, str] = {}
    for path in all_paths if len(set(map(str.casefold, all_paths))) < len(all_paths) else ():
        first = path_of_folded.setdefault(path.casefold(), path)
        if first != path and folds_case(root):
            message = "%s and %s are one name in %s, whose file system does not tell their case"
            raise Refused(message % (first, path, as_text(root)), "rename one of them")


def folds_case(folder: bytes) -> bool:
    """Return whether the filesystem of a folder ignores case in names.

    A file is created for a moment, in the nearest existing folder at or above ``folder``.
    """
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    path = os.path.join(folder, b".clusterddp-case-" + os.urandom(8).hex().encode())
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        return os.path.lexists(os.path.join(folder, os.path.basename(path).upper()))
    finally:
        os.unlink(path)
