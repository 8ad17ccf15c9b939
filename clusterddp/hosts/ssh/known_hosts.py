"""known_hosts files: read them as OpenSSH does, check a key, append a new one.

Keys stay base64 text, so a file of any size costs no cryptography. Host certificates are not verified: a host known
only by its authority is left to the ``ssh`` program.
"""

from __future__ import annotations

import base64
import fcntl
import fnmatch
import hashlib
import hmac
import os
import shlex
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import HostKeyError, UsageError
from clusterddp.project.user_folders import make_private

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MARKERS = ("@revoked", "@cert-authority")
_SPECIAL = frozenset("*?!")  # in a pattern


class UnknownHostKeyError(HostKeyError):
    """A host key that is in no known_hosts file; ``known_hosts_file`` is where it would be recorded."""

    known_hosts_file: Path | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PresentedKey:
    """The key a server presented; ``names`` are the host's names in known_hosts, the exact one first."""

    host: str
    names: tuple[str, ...]
    type: str
    blob: str

    @property
    def fingerprint(self) -> str:
        """The key's fingerprint as ``ssh`` prints it: ``ssh-ed25519 SHA256:…``."""
        digest = hashlib.sha256(base64.b64decode(self.blob)).digest()
        return f"{self.type} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"

    @property
    def line(self) -> str:
        """The known_hosts line that would make it known."""
        return f"{self.names[0]} {self.type} {self.blob}"


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownKey:
    """One line of a known_hosts file; ``hashed`` is the salt and digest of a hashed name."""

    marker: str
    patterns: str
    type: str
    blob: str
    path: Path
    number: int
    hashed: tuple[bytes, bytes] | None

    def matches(self, name: str) -> bool:
        """Whether the line is about ``name`` (in lower case)."""
        if self.hashed:
            salt, digest = self.hashed
            return hmac.digest(salt, name.encode(), "sha1") == digest
        found = False
        for pattern in self.patterns.split(","):
            if not matches_pattern(name, pattern.removeprefix("!").lower()):
                continue
            if pattern.startswith("!"):
                return False
            found = True
        return found


def matches_pattern(name: str, pattern: str) -> bool:
    """Whether a name matches a pattern, in which only * and ? are special.

    Most patterns have neither, and compiling one is expensive.
    """
    if "*" in pattern or "?" in pattern:
        return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))
    return name == pattern


def _parse(path: Path, text: str) -> list[KnownKey]:
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        marker = fields.pop(0) if fields[0] in _MARKERS else ""
        if len(fields) < 3 or fields[0].startswith("@"):
            continue  # like ssh, ignore a line that cannot be parsed
        patterns, kind, blob, *_ = fields
        keys.append(
            KnownKey(
                marker=marker,
                patterns=patterns,
                type=kind,
                blob=blob,
                path=path,
                number=number,
                hashed=_salt_and_digest(patterns),
            )
        )
    return keys


def _salt_and_digest(patterns: str) -> tuple[bytes, bytes] | None:
    """The salt and digest of a hashed name; None for plain names."""
    if not patterns.startswith("|1|"):
        return None
    try:
        _, _, salt, digest = patterns.split("|")
        return base64.b64decode(salt), base64.b64decode(digest)
    except ValueError:
        return b"", b""  # matches nothing


class _File:
    """A known_hosts file as it was read, and the lines found for each name so far (hashed names cost time)."""

    def __init__(self, stamp: tuple[int, int, int], keys: list[KnownKey]) -> None:
        self.stamp = stamp
        self._named: dict[str, list[KnownKey]] = {}  # lines of whole names, by each: a large cluster has thousands
        self._others: list[KnownKey] = []  # lines with a hashed name or a pattern
        self._found: dict[str, list[KnownKey]] = {}
        for key in keys:
            if key.hashed or not _SPECIAL.isdisjoint(key.patterns):
                self._others.append(key)
                continue
            for name in dict.fromkeys(key.patterns.lower().split(",")):
                self._named.setdefault(name, []).append(key)

    def matching(self, name: str) -> list[KnownKey]:
        if name not in self._found:
            others = [key for key in self._others if key.matches(name)]
            self._found[name] = sorted([*self._named.get(name, ()), *others], key=lambda key: key.number)
        return self._found[name]


class KnownHosts:
    """All known_hosts files of this process, parsed once and shared by all connections."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[Path, _File] = {}

    def types(self, files: Sequence[Path], names: Sequence[str]) -> tuple[str, ...]:
        """The types of the keys known for the first of ``names`` that has any."""
        for name in names:
            if found := tuple(key.type for key in self._matching(files, name) if not key.marker):
                return found
        return ()

    def is_known_only_by_authority(self, files: Sequence[Path], names: Sequence[str]) -> bool:
        """Whether the host is known by a certificate authority and by no key of its own."""
        known = [key for name in names for key in self._matching(files, name)]
        markers = {key.marker for key in known}
        return "@cert-authority" in markers and "" not in markers

    def check(self, key: PresentedKey, files: Sequence[Path]) -> bool:
        """Whether ``key`` is known for its host; raises HostKeyError."""
        exact, *others = [self._matching(files, name) for name in key.names]
        everywhere = exact + [known for matching in others for known in matching]
        same = [known for known in everywhere if known.blob == key.blob]
        own = [known for known in exact if not known.marker]
        if revoked := next((known for known in same if known.marker == "@revoked"), None):
            raise HostKeyError(
                key.host,
                f"host key {key.fingerprint} is revoked by {revoked.path}:{revoked.number}",
                remedy="do not connect until the host has a new key",
            )
        if any(not known.marker and (not own or known in own) for known in same):
            return True  # as ssh does: the plain name of a host counts where `[host]:port` has no key at all
        if own:
            raise _changed_key_error(key, own)
        return False

    def append(self, key: PresentedKey, path: Path, *, also_check: Sequence[Path]) -> None:
        """Record ``key`` in ``path``, once, under a lock, without rewriting a byte.

        Raises HostKeyError if the host became known by another key in the meantime, in ``path`` or in the files of
        ``also_check``; UsageError if the file cannot be written.
        """
        try:
            make_private(path.parent)
            with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b", 0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if not self.check(key, (path, *also_check)):
                    _append_line(file.fileno(), key.line)
        except OSError as error:
            raise UsageError(f"cannot record the host key of {key.names[0]} in {path}: {error.strerror}") from error

    def _matching(self, files: Sequence[Path], name: str) -> list[KnownKey]:
        """The lines about a name in all of the files."""
        return [key for path in dict.fromkeys(files) for key in self._in_file(path, name.lower())]

    def _in_file(self, path: Path, name: str) -> list[KnownKey]:
        """The lines about a name in one file, which is parsed again if it has changed."""
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
                with self._lock:
                    if path not in self._files or self._files[path].stamp != stamp:
                        self._files[path] = _File(stamp, _parse(path, file.read().decode(errors="replace")))
                    return self._files[path].matching(name)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise UsageError(
                f"cannot read the known host keys in {path}: {error.strerror}",
                remedy="mend its owner and mode: without it a changed key could not be noticed",
            ) from error


def _append_line(descriptor: int, line: str) -> None:
    size = os.fstat(descriptor).st_size
    unfinished = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
    os.write(descriptor, f"{chr(10) if unfinished else ''}{line}\n".encode())


def _changed_key_error(key: PresentedKey, known: Sequence[KnownKey]) -> HostKeyError:
    """Build the error for a host that presents another key than the known ones."""
    name, old = key.names[0], next((one for one in known if one.type == key.type), known[0])
    return HostKeyError(
        key.host,
        f"the host key of {name} has changed (now {key.fingerprint}); the known one is in {old.path}:{old.number}",
        remedy=f"if the host was set up anew: ssh-keygen -f {shlex.quote(str(old.path))} -R {shlex.quote(name)}",
    )


def unknown_key_error(key: PresentedKey, path: Path) -> UnknownHostKeyError:
    """Build the error for a host whose key is not known yet."""
    error = UnknownHostKeyError(
        key.host,
        f"the host key of {key.names[0]} is unknown: {key.fingerprint}",
        remedy="compare the fingerprint, then `clusterddp up … --accept-new-host-keys`",
        fingerprint=key.fingerprint,
        known_hosts_line=key.line,
    )
    error.known_hosts_file = path
    return error


def append_known_hosts(errors: Iterable[HostKeyError]) -> None:
    """Record the host keys of these errors, each host's once, after the user has accepted them.

    Raises HostKeyError if a host became known by another key in the meantime; UsageError if a file cannot be written.
    """
    store = KnownHosts()
    for error in errors:
        path = error.known_hosts_file if isinstance(error, UnknownHostKeyError) else None
        path = path or Path("~/.ssh/known_hosts").expanduser()
        name, kind, blob = error.known_hosts_line.split()
        key = PresentedKey(host=error.host, names=(name,), type=kind, blob=blob)
        store.append(key, path, also_check=())
