"""The file systems of folders on this host: type and free space, a write test, stale locks of torch's extensions.

Every function may hang with its file server: the caller runs it in a thread that it can abandon (probes/health.py).
"""

import glob
import os
import time
from typing import Any, Dict, List

from ..system.bootstrap import NETWORK_FILESYSTEMS, filesystem_type

PIECE = 4096  # bytes of the file that is written for a test
MOST_LOCKS = 50


def folder(path: str) -> Dict[str, Any]:
    """The file system of a folder, or of its nearest parent that exists."""
    here = standing(path)
    try:
        info, kind = os.statvfs(here), filesystem_type(here)
    except OSError as error:
        return no_folder(path, str(error))
    return {
        "path": path,
        "filesystem": kind,
        "network": kind in NETWORK_FILESYSTEMS,
        "total_bytes": info.f_blocks * info.f_frsize,
        "free_bytes": info.f_bavail * info.f_frsize,
        "inodes": info.f_files,
        "free_inodes": info.f_favail,
        "writable": os.access(here, os.W_OK | os.X_OK) and not info.f_flag & os.ST_RDONLY,
        "error": None,
    }


def no_folder(path: str, error: str) -> Dict[str, Any]:
    """The answer for a folder that could not be inspected."""
    answer: Dict[str, Any] = dict.fromkeys(("total_bytes", "free_bytes", "inodes", "free_inodes"), 0)
    answer.update(path=path, filesystem="", network=False, writable=False, error=error)
    return answer


def standing(path: str) -> str:
    """The folder itself, or its nearest parent that exists."""
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def written(path: str) -> Dict[str, Any]:
    """Test writing a small file: ``{ms, error}`` is how long it took until it was on disk; nothing of it stays."""
    name = os.path.join(standing(path), ".clusterddp-try-%d-%s" % (os.getpid(), os.urandom(4).hex()))
    begin = time.monotonic()
    try:
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.unlink(name)  # at once: a process killed in a write that hangs leaves nothing behind
            os.write(handle, bytes(PIECE))
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        return {"ms": None, "error": error.strerror or str(error)}
    return {"ms": int((time.monotonic() - begin) * 1000), "error": None}


def extension_locks(path: str) -> List[Dict[str, Any]]:
    """``{path, age_s}`` of each lock below torch's folder of extensions.

    One is there while an extension is being built.
    """
    found: List[Dict[str, Any]] = []
    now = time.time()
    for pattern in ("*/lock", "*/*/lock"):
        for lock in glob.glob(os.path.join(glob.escape(path), pattern)):
            try:
                found.append({"path": lock, "age_s": max(0, int(now - os.stat(lock).st_mtime))})
            except OSError:
                continue  # the extension has just been built
    return sorted(found, key=lambda one: str(one["path"]))[:MOST_LOCKS]
