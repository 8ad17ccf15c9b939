"""Cache of the hosts' code with its byte code: in the installed package, else in the user's cache.

The installed package may be in a folder that this user cannot write (a container image, a system package). What is in
the cache is sent to hosts and runs there, so it is read only from a folder and a file that nobody else can write.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import TYPE_CHECKING

from clusterddp.project.user_folders import make_private, open_for_block, open_private, read_private, user_cache

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME_PREFIX = "remote-"  # of each name in the cache
MAX_COPIES = 4  # copies in the cache: installations and versions of Python that one user has at a time


def copies(path: Path) -> Iterator[bytes]:
    """Yield the copies kept for ``path``: the file in the package, then the one in the cache."""
    for read in (path.read_bytes, lambda: _read_cached(path)):
        try:
            found = read()
        except OSError:  # there is none, it cannot be read, or others could have written it
            continue
        yield found


def _read_cached(path: Path) -> bytes:
    with open_private(user_cache()) as folder:
        return read_private(folder, _cache_name(path))


def store(path: Path, data: bytes) -> None:
    """Write the data to ``path``, or to the cache if ``path`` cannot be written; raises OSError."""
    try:
        path.parent.mkdir(exist_ok=True)
        with open_for_block(path.parent) as folder:  # not private: who can write there can write our code as well
            _write(folder, path.name, data, 0o666)
    except OSError:
        make_private(user_cache())
        with open_private(user_cache()) as folder:
            _write(folder, _cache_name(path), data, 0o600)
            with contextlib.suppress(OSError):  # another command removes them at the same time
                _remove_oldest(folder)


def _cache_name(path: Path) -> str:
    """The file's name in the cache: one for each installation and version of Python."""
    return f"{NAME_PREFIX}{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}.pyz"


def _write(folder: int, name: str, data: bytes, mode: int) -> None:
    """Write a whole file in an open folder, with ``mode`` less the umask."""
    scratch = f"{name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
        os.replace(scratch, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(scratch, dir_fd=folder)
        raise


def _remove_oldest(folder: int) -> None:
    """Keep only the newest ``MAX_COPIES`` copies: old installations leave copies, and killed commands partial ones."""
    found = [name for name in os.listdir(folder) if name.startswith(NAME_PREFIX)]
    times = {name: os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime for name in found}
    for name in sorted(found, key=times.__getitem__)[:-MAX_COPIES]:
        os.unlink(name, dir_fd=folder)
