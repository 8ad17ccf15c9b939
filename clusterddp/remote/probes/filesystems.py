"""The file systems of folders on this host: type and free space, a write test, stale locks of torch's extensions.

Every function may hang with its file server: the caller runs it in a thread that it can abandon (probes/health.py).
"""

import glob
import os
import time
from typing import Dict

from ..shared.probes.health_records import FolderDisk, Write
from ..system.bootstrap import NETWORK_FILESYSTEMS, filesystem_type
from ..system.small_files import nearest_folder

TEST_SIZE = 4096  # bytes of the file that is written for a test
MAX_LOCKS = 50


def describe_folder(path: str) -> FolderDisk:
    """The file system of a folder, or of its nearest parent that exists."""
    existing = nearest_folder(path)
    try:
        info, kind = os.statvfs(existing), filesystem_type(existing)
    except OSError as error:
        return unknown_folder(path, str(error))
    return FolderDisk(
        path=path,
        filesystem=kind,
        network=kind in NETWORK_FILESYSTEMS,
        free_bytes=info.f_bavail * info.f_frsize,
        inodes=info.f_files,
        free_inodes=info.f_favail,
        writable=os.access(existing, os.W_OK | os.X_OK) and not info.f_flag & os.ST_RDONLY,
    )


def unknown_folder(path: str, error: str) -> FolderDisk:
    """The answer for a folder that could not be inspected."""
    return FolderDisk(path=path, writable=False, error=error)


def try_write(path: str) -> Write:
    """Test writing a small file: how long it took until it was on disk; nothing of it stays."""
    name = os.path.join(nearest_folder(path), ".clusterddp-try-%d-%s" % (os.getpid(), os.urandom(4).hex()))
    begin = time.monotonic()
    try:
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.unlink(name)  # at once: a process killed in a write that hangs leaves nothing behind
            os.write(handle, bytes(TEST_SIZE))
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        return Write(error=error.strerror or str(error))
    return Write(ms=int((time.monotonic() - begin) * 1000))


def extension_locks(path: str) -> Dict[str, int]:
    """The age in seconds of each lock below torch's folder of extensions, by path."""
    found: Dict[str, int] = {}
    now = time.time()
    for pattern in ("*/lock", "*/*/lock"):
        for lock in glob.glob(os.path.join(glob.escape(path), pattern)):
            try:
                found[lock] = max(0, int(now - os.stat(lock).st_mtime))
            except OSError:
                continue  # the extension has just been built
    return dict(sorted(found.items())[:MAX_LOCKS])
