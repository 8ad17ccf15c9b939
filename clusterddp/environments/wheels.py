"""The wheels of lock files on this machine: resolved once per kind of host, downloaded once, stored by content.

In the user's cache folder, for all projects: ``wheels/SHA256/FILE``; ``resolved/KEY.json`` records which of them a lock
file stands for, so that an unchanged one needs neither uv nor an index. uv's own wheel is pinned by its digest.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from clusterddp.environments import lock_file as locks
from clusterddp.errors import ClusterddpError, LockError
from clusterddp.project.user_folders import make_private, user_cache
from clusterddp.remote.shared.schema.fields import Fields
from clusterddp.remote.shared.schema.record import field, many, record, to_fields
from clusterddp.remote.shared.text.counted import counted
from clusterddp.remote.shared.wire.frames import parse_json
from clusterddp.text.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from clusterddp.environments.lock_file import LockedWheel, LockFile
    from clusterddp.environments.platform_tags import HostKind

UV = "0.13.9"
# Statically linked, so they run on any Linux; from PyPI, only with these digests.
UV_WHEELS = {
    "x86_64": (
        f"uv-{UV}-py3-none-musllinux_1_1_x86_64.whl",
        "2c45530751517d6c3bbc69a19473f6effe47cce047bede01ffd8af7ea7b36b25",
    ),
    "aarch64": (
        f"uv-{UV}-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64.whl",
        "5435c5ce14a56431208ca0996416d310f1598e8c2c8ba707688985a16bb82dbe",
    ),
}
_FORMAT_VERSION = 2  # of the files in resolved/
_DOWNLOAD_TIMEOUT = 3600.0  # seconds for a download
_READ_SIZE = 1 << 20


@record
class Wheel(NamedTuple):
    """A wheel on this machine."""

    name: str = field(Fields.text)
    version: str = field(Fields.text)
    file: str = field(Fields.filename)
    sha256: str = field(Fields.filename)
    size: int = field(Fields.number)

    @property
    def path(self) -> Path:
        """Its file in the cache."""
        return _cache() / "wheels" / self.sha256 / self.file


def wheels_of(lock: LockFile, kind: HostKind, progress: Callable[[str], None]) -> tuple[Wheel, ...]:
    """Every wheel of a lock file that a kind of host needs, downloaded; ``LockError`` if one cannot be had."""
    # Paths in a lock file begin at its folder, and other projects have the same text.
    key = f"{_FORMAT_VERSION}\0{lock.path.parent.resolve()}\0{lock.written}\0{kind}\0{locks.content_digest(lock)}"
    resolved = _cache() / "resolved" / f"{hashlib.sha256(key.encode(errors='surrogateescape')).hexdigest()}.json"
    found = _read_resolved(resolved)
    if found is not None and all(wheel.path.is_file() for wheel in found):
        return found
    progress(f"resolving {lock.written}")
    packages = locks.required_wheels(lock, kind)
    local = [(package.url, _state(package.url)) for package in packages if _local_path(package.url)]
    found = tuple(_download_missing(lock, kind, packages, progress))
    _write(resolved, json.dumps({"wheels": list(map(to_fields, found)), "local": local}).encode())
    return found


def uv_wheel(lock: LockFile, kind: HostKind, progress: Callable[[str], None]) -> Wheel:
    """The wheel with uv's static program for a kind of host; ``LockError`` if there is none for its machine."""
    if kind.machine not in UV_WHEELS:
        raise LockError(lock.written, f"uv {UV} has no static program for {kind.machine}")
    file, digest = UV_WHEELS[kind.machine]
    path = _cache() / "wheels" / digest / file
    if not path.is_file():
        progress(f"downloading uv {UV}")
        with tempfile.TemporaryDirectory(dir=_make_folder(_cache())) as folder:
            platforms = ["--platform", f"musllinux_1_1_{kind.machine}"]
            _pip(lock, [f"uv=={UV}"], Path(folder), platforms)
            _move_to_cache(lock, Path(folder) / file, {digest})
    return Wheel(name="uv", version=UV, file=file, sha256=digest, size=path.stat().st_size)


def drop_damaged(wheels: Iterable[Wheel]) -> bool:
    """Delete cached wheels whose content has another digest; return whether there were any."""
    damaged = [wheel for wheel in wheels if wheel.path.is_file() and _digest(wheel.path) != wheel.sha256]
    for wheel in damaged:
        wheel.path.unlink(missing_ok=True)
    return bool(damaged)


def _download_missing(
    lock: LockFile, kind: HostKind, packages: Sequence[LockedWheel], progress: Callable[[str], None]
) -> Iterable[Wheel]:
    """Download the wheels that are missing, and return all."""
    digests = {package.file: digest for package in packages if (digest := _cached_digest(package))}
    missing = [package for package in packages if package.file not in digests]
    if missing:
        progress(f"downloading {counted(len(missing), 'wheel')} of {lock.written}")
        with tempfile.TemporaryDirectory(dir=_make_folder(_cache())) as folder:
            _download(lock, kind, missing, Path(folder))
            for package in missing:
                digests[package.file] = _move_to_cache(lock, Path(folder) / package.file, package.digests)
    for package in packages:
        path = _cache() / "wheels" / digests[package.file] / package.file
        size = path.stat().st_size
        yield Wheel(
            name=package.name, version=package.version, file=package.file, sha256=digests[package.file], size=size
        )


def _cached_digest(package: LockedWheel) -> str | None:
    """The digest of a locked wheel that is in the cache; None if there is none, or the lock file allows any."""
    cached = (digest for digest in package.digests if (_cache() / "wheels" / digest / package.file).is_file())
    return next(cached, None)


def _download(lock: LockFile, kind: HostKind, missing: Sequence[LockedWheel], folder: Path) -> None:
    """Copy or download wheels to a folder: from ``file:`` URLs here, all others by pip."""
    remote = []
    for package in missing:
        path = _local_path(package.url)
        if path:
            _copy_wheel(lock, path, folder / package.file)
        else:
            remote.append(package.url)
    if remote:
        platforms = [argument for platform in kind.platforms() for argument in ("--platform", platform)]
        major, minor = kind.python.split(".")[:2]
        abis = [argument for abi in (f"cp{major}{minor}{kind.threads}", "abi3", "none") for argument in ("--abi", abi)]
        _pip(
            lock, remote, folder, [*platforms, "--python-version", f"{major}.{minor}", "--implementation", "cp", *abis]
        )


def _local_path(url: str) -> Path | None:
    """The path of a wheel that lies on this machine; None for any other URL."""
    split = urlsplit(url)
    return Path(unquote(split.path)) if split.scheme == "file" else None


def _state(url: str) -> str:
    """Return what changes when a wheel on this machine is built again; empty if there is none."""
    path = _local_path(url)
    try:
        found = path.lstat() if path else None
    except OSError:
        found = None
    return f"{found.st_mtime_ns} {found.st_size}" if found else ""


def _copy_wheel(lock: LockFile, source: Path, target: Path) -> None:
    """Copy a wheel of this machine; a link, and what is no wheel, is refused: a lock file may name any file."""
    try:
        handle = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as stream:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(errno.EINVAL, "it is no file")
            with zipfile.ZipFile(stream) as archive:
                if not any(name.endswith(".dist-info/WHEEL") for name in archive.namelist()):
                    raise zipfile.BadZipFile
            stream.seek(0)
            with target.open("xb") as copy:
                shutil.copyfileobj(stream, copy)
    except OSError as error:
        raise LockError(lock.written, f"{target.name} is not at {source} ({error.strerror})") from error
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError):
        raise LockError(lock.written, f"{source} is no wheel") from None


def _pip(lock: LockFile, what: Sequence[str], folder: Path, options: Sequence[str]) -> None:
    """Download wheels with pip, which knows this machine's indexes, proxies and credentials."""
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--quiet"]
    argv += ["--no-deps", "--only-binary=:all:", "--dest", str(folder), *options, "--", *what]
    try:
        result = subprocess.run(argv, cwd=folder, capture_output=True, timeout=_DOWNLOAD_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LockError(lock.written, f"pip cannot be run: {error}") from error
    if result.returncode:
        lines = [line for line in result.stderr.decode(errors="replace").splitlines() if line.startswith("ERROR")]
        message = (lines or [f"ERROR: it ended with status {result.returncode}"])[-1].removeprefix("ERROR: ")
        remedy = "`pip install 'clusterddp[environments]'` brings it" if b"No module named pip" in result.stderr else ""
        raise LockError(lock.written, f"pip: {one_line(message)[:500]}", remedy=remedy)


def _move_to_cache(lock: LockFile, file: Path, allowed: Collection[str]) -> str:
    """Move a downloaded file into the cache by its digest, which must be ``allowed`` unless that is empty."""
    if not file.is_file():
        raise LockError(lock.written, f"{file.name} was not downloaded")
    digest = _digest(file)
    if allowed and digest not in allowed:
        remedy = "somebody has replaced it: find out who, before you lock again"
        raise LockError(lock.written, f"{file.name} is not what was locked (sha256 {digest[:12]}…)", remedy=remedy)
    target = _make_folder(_cache() / "wheels" / digest) / file.name
    file.replace(target)
    return digest


def _digest(file: Path) -> str:
    found = hashlib.sha256()
    with file.open("rb") as stream:
        while data := stream.read(_READ_SIZE):
            found.update(data)
    return found.hexdigest()


def _read_resolved(path: Path) -> tuple[Wheel, ...] | None:
    """Read the wheels that a lock file was resolved to; None if there is no valid record, or one was built again."""
    try:
        fields = Fields({"all": parse_json(path.read_bytes())}, most=1 << 16).part("all")
        is_current = all(_state(url) == state for url, state in fields.text_pairs("local"))
        return many(Wheel)(fields, "wheels") if is_current else None
    except (OSError, ValueError):  # the lock file is resolved again
        return None


def _write(path: Path, data: bytes) -> None:
    temporary = _make_folder(path.parent) / f".{path.name}.{os.getpid()}.tmp"
    temporary.touch(mode=0o600)
    temporary.write_bytes(data)
    temporary.replace(path)


def _make_folder(folder: Path) -> Path:
    """Create a folder of the cache if it is missing, and return it."""
    try:
        make_private(folder)
    except OSError as error:
        remedy = "make it writable, or set XDG_CACHE_HOME"
        raise ClusterddpError(f"{folder} cannot be made ({error.strerror})", remedy=remedy) from error
    return folder


def _cache() -> Path:
    """The user's cache folder; ``ClusterddpError`` if there is none."""
    try:
        return user_cache()
    except OSError as error:
        raise ClusterddpError(error.strerror or str(error), remedy="set HOME, or XDG_CACHE_HOME to a folder") from error
