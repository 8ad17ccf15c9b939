"""The folders of a host's environments, and the file that marks one as complete.

Below ``<state>/environments``: ``wheels/SHA256`` (a file each), ``ID/`` (the environment in its final folder, since its
scripts contain paths), ``ID.work/`` (while it is built), ``ID.lock`` (held meanwhile). ``ID/ready`` is written last: an
environment without it is incomplete.
"""

import contextlib
import csv
import fcntl
import hashlib
import os
import re
from typing import Any, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from ..shared.schema.fields import Fields
from ..shared.schema.json_text import read_json
from ..shared.schema.record import field, read_record, record, to_fields
from ..system.bootstrap import Refused, private_folder, write_json
from ..system.small_files import is_locked, names_in

FOLDER = "environments"
READY = "ready"
WORK = ".work"  # after the id: the folder of a build, with the cache of its installer
IDENT = re.compile(r"[0-9a-f]{64}")
_INSTALLER_FILES = (
    "INSTALLER",
    "REQUESTED",
    "RECORD",
    "direct_url.json",
    "uv_cache.json",
)  # written by an installer on this host


@record
class BuiltEnvironment(NamedTuple):
    """What is recorded of an environment when it is complete."""

    digest: str = field(Fields.text)  # of what is installed
    lock: str = field(Fields.text)  # its name for people
    built: int = field(Fields.number, default=0)  # when: ns since the epoch
    base: str = field(Fields.text, default="")  # the interpreter it was built with
    project: str = field(Fields.text, default="")  # the project's id
    wheels: Tuple[str, ...] = field(Fields.texts, default=())  # their digests
    more: Mapping[str, Any] = {}


class EnvironmentStore:
    """The environments and wheels of one state folder."""

    def __init__(self, state: str) -> None:
        self.folder = os.path.join(state, FOLDER)

    def make(self) -> None:
        """Make the folders."""
        private_folder(self.folder)
        private_folder(os.path.join(self.folder, "wheels"))

    def folder_of(self, ident: Any) -> str:
        """An environment's folder; raises Refused if ``ident`` is not an environment's id."""
        return os.path.join(self.folder, checked_digest(ident))

    def wheel(self, sha256: Any) -> str:
        """The path of a wheel's file."""
        return os.path.join(self.folder, "wheels", checked_digest(sha256))

    def python(self, ident: Any) -> str:
        """The path of an environment's interpreter."""
        return os.path.join(self.folder_of(ident), "bin", "python")

    @contextlib.contextmanager
    def locked(self, ident: str, *, wait: bool = True) -> Iterator[bool]:
        """Hold the lock for building or removing an environment; yields False if it is held and ``wait`` is false."""
        path = self.folder_of(ident) + ".lock"
        handle = _open_locked(path, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        while handle is not None and not _is_file_at(handle, path):  # it was removed with its environment meanwhile
            os.close(handle)
            handle = _open_locked(path, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        try:
            yield handle is not None
        finally:
            if handle is not None:
                os.close(handle)

    def is_locked(self, ident: str) -> bool:
        """Whether it is being built or removed; any number of processes may ask at once."""
        return is_locked(self.folder_of(ident) + ".lock")

    def ready(self, ident: Any) -> Optional[BuiltEnvironment]:
        """The record written when an environment was complete.

        None where there is none, or its interpreter is missing.
        """
        if not isinstance(ident, str) or not IDENT.fullmatch(ident):
            return None
        try:
            built = read_record(BuiltEnvironment, read_json(os.path.join(self.folder_of(ident), READY)), READY)
        except (OSError, ValueError):
            return None
        return built if os.access(self.python(ident), os.X_OK) else None

    def complete(self, ident: str, built: BuiltEnvironment) -> None:
        """Mark an environment as complete."""
        write_json(os.path.join(self.folder_of(ident), READY), to_fields(built))

    def all(self) -> List[str]:
        """The ids of all environments, complete or not, also of those whose build was killed before it made one."""
        names = {name[: -len(WORK)] if name.endswith(WORK) else name for name in names_in(self.folder)}
        return sorted(name for name in names if IDENT.fullmatch(name))

    def folders_of(self, ident: str) -> List[str]:
        """Return an environment's folders that exist: its own, and that of a build, which a killed build leaves."""
        folder = self.folder_of(ident)
        return [path for path in (folder, folder + WORK) if os.path.isdir(path)]


def _open_locked(path: str, flags: int) -> Optional[int]:
    """Open and lock a file; None if others hold its lock and ``flags`` say not to wait."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, flags)
    except BlockingIOError:
        os.close(handle)
        return None
    except BaseException:
        os.close(handle)
        raise
    return handle


def _is_file_at(handle: int, path: str) -> bool:
    """Whether an open file is still the one at ``path``."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def checked_digest(ident: Any) -> str:
    """Return a digest in hex; raises Refused where it is none."""
    if not isinstance(ident, str) or not IDENT.fullmatch(ident):
        raise Refused("not a digest: %.80r" % (ident,))
    return ident


def installed_digest(folder: str) -> str:
    """A digest of what is installed in an environment, by its RECORDs; equal on all hosts that have the same installed.

    It leaves out an installer's own files, compiled code, and scripts, which contain the folder's path.
    """
    lines = []  # type: List[str]
    for path in _records(folder):
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as stream:
            rows = [row[:3] for row in csv.reader(stream) if len(row) >= 3 and _is_content(row[0])]
        name = os.path.basename(os.path.dirname(path))
        lines.extend("\0".join([name, *row]) for row in rows)
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()


def _is_content(path: str) -> bool:
    parts = path.split("/")
    return parts[-1] not in _INSTALLER_FILES and not path.endswith(".pyc") and not ("bin" in parts and ".." in parts)


def _records(folder: str) -> Iterator[str]:
    libraries = os.path.join(folder, "lib")
    for version in sorted(os.listdir(libraries)):
        packages = os.path.join(libraries, version, "site-packages")
        for name in sorted(names_in(packages)):
            path = os.path.join(packages, name, "RECORD")
            if name.endswith(".dist-info") and os.path.isfile(path):
                yield path
