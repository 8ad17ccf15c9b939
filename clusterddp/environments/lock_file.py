"""A lock file named in the inventory, and the wheels it stands for on one kind of host.

``uv.lock``, ``pylock.toml`` and ``requirements.txt`` are all converted to a pylock (PEP 751) by uv, which alone talks
to indexes; packages without a wheel (source distributions, folders, git) are refused by name.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from clusterddp.errors import LockError
from clusterddp.project.toml_text import parse_toml
from clusterddp.text.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.pylock import Package
    from packaging.requirements import Requirement

    from clusterddp.environments.platform_tags import HostKind

LOCK_PATTERN = re.compile(r"(?P<path>[^\[\]]+?)(?:\[(?P<extras>[A-Za-z0-9._-]+(?:\s*,\s*[A-Za-z0-9._-]+)*)\])?")
UV_LOCK = "uv.lock"
_UV_TIMEOUT = 600.0  # seconds for uv, which may have to ask an index
_SHA256 = re.compile(r"[0-9a-f]{64}")
_WEAK_HASHES = {"md5", "sha1"}  # hashes that prove nothing; some indexes have no others
_NO_WHEEL = "publish a wheel of it, or put its code into the project"
_EDITABLE_OPTIONS = ("-e", "--editable")
# Lines of requirements, so strict that uv cannot read them otherwise: of a path it drops quotes, \ and #.
_BLANKS = " \t"
_INCLUDED = re.compile(rf"(?P<option>-r|--requirement|-c|--constraint)[{_BLANKS}=]+(?P<path>[^\s\"'\\:#\0]+)")
_FLAG = re.compile("--no-index|--pre|--prefer-binary")
_OPTION = re.compile(
    rf"(-i|-f|--(index-url|extra-index-url|find-links|no-binary|only-binary|trusted-host|use-feature))[{_BLANKS}=]+[^\s-]\S*"
)
_HASH = re.compile(rf"[{_BLANKS}]+--hash[{_BLANKS}=]+\S+")
_WRITTEN_SHA256 = re.compile(
    rf"(?:[{_BLANKS}]--hash[{_BLANKS}=]+sha256:|[#&]sha256=)([0-9a-fA-F]{{64}})(?![^{_BLANKS}&])"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LockFile:
    """A lock file, as the inventory names it (``written``), and the extras that are wanted of it."""

    written: str
    path: Path
    extras: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """``uv.lock``, ``pylock`` or ``requirements``."""
        name = self.path.name
        if name == UV_LOCK:
            return name
        return "pylock" if re.fullmatch(r"pylock(\.[^.]+)?\.toml", name) else "requirements"


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedWheel:
    """A wheel that hosts need: file name, URL, and the sha256 digests that the lock file allows it; empty for any."""

    name: str
    version: str
    file: str
    url: str
    digests: frozenset[str] = frozenset()


def find_lock_file(written: str, root: Path) -> LockFile:
    """Find the lock file that the inventory names, in the project; ``LockError`` if there is none."""
    found = LOCK_PATTERN.fullmatch(written)
    if not found:
        raise LockError(written, "cannot be understood", remedy="write uv.lock, or uv.lock[EXTRA,EXTRA]")
    path = root / found["path"].strip()
    extras = tuple(extra.strip() for extra in (found["extras"] or "").split(",") if extra.strip())
    lock = LockFile(written=written, path=path, extras=extras)
    if not path.is_file():
        raise LockError(written, f"there is no {path}", remedy=f"make it with {_make_command(lock)}; or name another")
    if extras and lock.kind == "requirements":
        raise LockError(written, "requirements have no extras", remedy="leave the brackets out")
    return lock


def _make_command(lock: LockFile) -> str:
    """The command that makes such a lock file, or what to write if there is nothing to lock yet."""
    name, folder = lock.path.name, lock.path.parent
    project = (folder / "pyproject.toml").is_file()
    if lock.kind == UV_LOCK:
        return "`uv lock`" if project else "`uv init --bare && uv lock`"
    source = f"{name.removesuffix('.txt')}.in" if lock.kind == "requirements" else "requirements.in"
    if (folder / source).is_file():
        hashes = "--generate-hashes " if lock.kind == "requirements" else ""
        return f"`uv pip compile {hashes}{shlex.quote(source)} -o {shlex.quote(name)}`"
    if project:
        return f"`uv export --no-emit-project -o {shlex.quote(name)}`"
    return f"`uv pip compile {shlex.quote(source)} -o {shlex.quote(name)}`, of a {source} that you write"


def _pin_remedy(lock: LockFile) -> str:
    """The command that turns unpinned requirements into a lock file of the same name."""
    name = lock.path.name
    source = f"{name.removesuffix('.txt')}.in"
    keep = "" if (lock.path.parent / source).exists() else f"mv {shlex.quote(name)} {shlex.quote(source)} && "
    return f"write NAME==VERSION for each package: `{keep}uv pip compile {shlex.quote(source)} -o {shlex.quote(name)}`"


def required_wheels(lock: LockFile, kind: HostKind) -> list[LockedWheel]:
    """The wheels of a lock file that a kind of host needs; ``LockError`` names a package without a wheel for it."""
    written = _written_digests(lock, lock.path, set()) if lock.kind == "requirements" else set[tuple[str, str]]()
    wheels = [_locked_package(lock, kind, package, source) for package, source in _select(lock, kind)]
    # Of requirements, uv tells the digests that an index has; those of the lines hold.
    allowed = [frozenset(digest for name, digest in written if name == wheel.name) for wheel in wheels]
    return [replace(wheel, digests=own or wheel.digests) for wheel, own in zip(wheels, allowed, strict=True)]


def _select(lock: LockFile, kind: HostKind) -> list[tuple[Package, Any]]:
    """The packages of a lock file that a kind of host needs, each with the best of its sources."""
    from packaging import pylock, utils  # noqa: PLC0415 - only hosts with a lock need packaging

    def as_wheel(package: Package) -> Package:
        """Return the package with its archive as a wheel if it is one, as where a URL names the wheel."""
        archive = package.archive
        name = "" if not archive else _scheme_and_name(archive.url)[1] if archive.url else Path(archive.path or "").name
        if not archive or not name.endswith(".whl"):
            return package
        wheel = pylock.PackageWheel(name=name, url=archive.url, path=archive.path, hashes=archive.hashes)
        version = package.version or utils.parse_wheel_filename(name)[1]
        return replace(package, version=version, archive=None, wheels=[wheel])

    try:
        found = pylock.Pylock.from_dict(parse_toml(_as_pylock(lock, kind)))
        found = replace(found, packages=[as_wheel(package) for package in found.packages])
        found.validate()
        selected = found.select(
            environment=kind.environment,  # type: ignore[arg-type]
            tags=kind.tags(),
            extras=lock.extras if lock.kind == "pylock" else (),
        )
        return list(selected)
    except (ValueError, pylock.PylockValidationError, pylock.PylockSelectError) as error:
        raise LockError(lock.written, f"{one_line(str(error))} (for {kind})") from None


def _locked_package(lock: LockFile, kind: HostKind, package: Package, source: Any) -> LockedWheel:
    """Check what the lock file selects of a package for a kind of host."""
    what = f"{package.name} {package.version or ''}".strip()
    source_kind = type(source).__name__.removeprefix("Package").lower()  # a class of packaging.pylock
    if source_kind != "wheel":
        reason = {
            "sdist": f"has no wheel for {kind}, only a source distribution",
            "vcs": "comes from a version control system",
            "directory": "is a folder of this machine",
            "archive": "is an archive",
        }[source_kind]
        raise LockError(lock.written, f"{what} {reason}", remedy=_NO_WHEEL)
    url = source.url or (lock.path.parent.resolve() / str(source.path)).as_uri()
    scheme, last = _scheme_and_name(url)
    file = source.name or last
    if "/" in file or not file.endswith(".whl") or file.startswith((".", "-")):
        raise LockError(lock.written, f"{what}: {file[:80]!r} is no wheel's name")
    # pip judges by the URL whether it is a wheel, and runs the code of anything else.
    if scheme not in {"http", "https", "file"} or last != file:
        raise LockError(lock.written, f"{what}: {url[:80]!r} is not where a wheel of the name {file[:80]!r} can be")
    sha256 = str(source.hashes.get("sha256", "")).lower()
    if source.hashes.keys() - _WEAK_HASHES and not _SHA256.fullmatch(sha256):
        remedy = f"make the lock again with one: {_make_command(lock)}"
        raise LockError(lock.written, f"{what}: {file} has no sha256, only {', '.join(source.hashes)}", remedy=remedy)
    digests = frozenset({sha256} if _SHA256.fullmatch(sha256) else ())
    return LockedWheel(name=str(package.name), version=str(package.version or ""), file=file, url=url, digests=digests)


def _scheme_and_name(url: str) -> tuple[str, str]:
    """The scheme of a URL, and the name of the file that it leads to; both empty if it is no URL."""
    try:
        split = urlsplit(url)
    except ValueError:
        return "", ""
    return split.scheme, unquote(split.path.rpartition("/")[2])


def _as_pylock(lock: LockFile, kind: HostKind) -> str:
    """The lock file's text, converted to a pylock."""
    if lock.kind == "pylock":
        return lock.path.read_text(encoding="utf-8")
    if lock.kind == UV_LOCK:
        extras = [argument for name in lock.extras for argument in ("--extra", name)]
        return _uv(lock, ["export", "--frozen", "--no-emit-project", "--no-dev", "--format", "pylock.toml", *extras])
    # No Python that uv finds beside the lock file is run, and no source distribution is built to be looked at.
    platform = ["--python", sys.executable, "--no-build"]
    platform += ["--python-platform", kind.uv_platform, "--python-version", kind.python]
    return _uv(lock, ["pip", "compile", "--no-deps", "--format", "pylock.toml", *platform, lock.path.name])


def _uv(lock: LockFile, arguments: list[str]) -> str:
    """Run uv in the lock file's folder, by the user's configuration alone, and return its output."""
    program = find_uv()
    if program is None:
        remedy = "`pip install 'clusterddp[environments]'` brings it"
        raise LockError(lock.written, "needs uv on this machine", remedy=remedy)
    argv = [program, *arguments, "--quiet", "--no-header", "--no-progress", *_user_configuration()]
    try:
        done = subprocess.run(argv, cwd=lock.path.parent, capture_output=True, timeout=_UV_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LockError(lock.written, f"uv cannot be run: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        message = " ".join(line.strip(" ×╰─▶│") for line in lines[:4]) or f"uv ended with status {done.returncode}"
        raise LockError(lock.written, one_line(message.removeprefix("error: "))[:500])
    return done.stdout.decode()


def _user_configuration() -> list[str]:
    """Options that keep uv from the project's own configuration, which may name any folder or file to write."""
    if "UV_CONFIG_FILE" in os.environ:  # uv reads no other then
        return []
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111 - Path's raises
    files = (Path(folder, "uv", "uv.toml"), Path("/etc/uv/uv.toml"))
    found = next((str(path) for path in files if os.path.isfile(path)), None)  # noqa: PTH113 - Path's raises
    return ["--config-file", found] if found else ["--no-config"]


def find_uv() -> str | None:
    """The path of uv: beside our own interpreter, else on PATH; None if there is none."""
    own = Path(sys.executable).with_name("uv")
    return str(own) if own.is_file() else which("uv")


def _written_digests(
    lock: LockFile, path: Path, seen: set[tuple[Path, bool]], *, constraint: bool = False
) -> set[tuple[str, str]]:
    """The sha256 digests that requirements allow a package, as pairs of its name and one of them.

    ``seen`` are the files that were looked at. Raises ``LockError`` for a requirement that is not published, or
    not pinned to one version (a ``constraint`` need not be), or has other hashes alone.
    """
    from packaging import requirements, utils  # noqa: PLC0415 - only hosts with a lock need packaging

    written = set[tuple[str, str]]()
    for number, line in _lines(lock, path):
        where = f"{path.name}:{number}: {line[:80]}"
        included = _INCLUDED.fullmatch(line)
        if included:
            no_pins = constraint or included["option"] in {"-c", "--constraint"}
            inside = _included_file(path, included["path"])
            if (inside, no_pins) not in seen:
                seen.add((inside, no_pins))
                written |= _written_digests(lock, inside, seen, constraint=no_pins)
            continue
        first = re.split(f"[{_BLANKS}]", line, maxsplit=1)[0]
        if first in _EDITABLE_OPTIONS or first.startswith(("--editable=", "./", "../", "/", "git+", "file:")):
            raise LockError(lock.written, f"{where}: a folder or a repository cannot be locked", remedy=_NO_WHEEL)
        if _FLAG.fullmatch(line) or _OPTION.fullmatch(line):
            continue  # uv interprets it
        try:
            found = requirements.Requirement(_HASH.sub("", line))
        except requirements.InvalidRequirement:
            raise LockError(lock.written, f"{where}: cannot be understood") from None
        _refuse_unpinned(lock, where, found, constraint=constraint)
        digests = _WRITTEN_SHA256.findall(line)
        if not digests and _HASH.search(line):
            remedy = f"make the lock again with one: {_make_command(lock)}"
            raise LockError(lock.written, f"{where}: has no sha256", remedy=remedy)
        written |= {(utils.canonicalize_name(found.name), digest.lower()) for digest in digests}
    return written


def _refuse_unpinned(lock: LockFile, where: str, found: Requirement, *, constraint: bool) -> None:
    """Refuse a requirement that is neither a wheel's URL nor pinned to one version; a ``constraint`` need not be."""
    if found.url is not None:
        if not _scheme_and_name(found.url)[1].endswith(".whl"):
            raise LockError(lock.written, f"{where}: is no wheel", remedy=_NO_WHEEL)
        return
    pins = [pin for pin in found.specifier if pin.operator in {"==", "==="} and not pin.version.endswith(".*")]
    if len(pins) != 1 and not constraint:
        raise LockError(lock.written, f"{where}: is not pinned to one version", remedy=_pin_remedy(lock))


def _lines(lock: LockFile, path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of requirements that are not empty, continued ones joined, with the number of the first.

    Raises ``LockError`` if one names a variable, whose value uv would send to a server.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LockError(lock.written, f"{path}: cannot be read ({error})") from error
    first_number, joined = 0, ""
    for number, raw in enumerate(text.split("\n"), 1):
        first_number = first_number if joined else number
        if "${" in raw and not raw.lstrip(_BLANKS).startswith("#"):
            remedy = "put the value there; uv takes an index also from UV_INDEX, passwords also from ~/.netrc"
            raise LockError(lock.written, f"{path.name}:{number}: a lock names no variable (${{…}})", remedy=remedy)
        line = re.sub(rf"(^|[{_BLANKS}])#.*$", "", raw).rstrip(_BLANKS)
        joined += line.removesuffix("\\")
        if line.endswith("\\"):
            joined += " "
            continue
        if joined.strip(_BLANKS):
            yield first_number, joined.strip(_BLANKS)
        joined = ""


def content_digest(lock: LockFile) -> str:
    """A digest of a lock file's content and of the files that it includes."""
    digest, pending, paths = hashlib.sha256(), [lock.path], set()
    while pending:
        path = pending.pop()
        if path in paths or not path.is_file():
            continue
        paths.add(path)
        digest.update(path.read_bytes())
        if lock.kind == "requirements":
            included = (_INCLUDED.fullmatch(line) for _, line in _lines(lock, path))
            pending += [_included_file(path, found["path"]) for found in included if found]
    return digest.hexdigest()


def _included_file(including: Path, written: str) -> Path:
    """The path of a file that requirements include: the same one, whatever folders it is written through."""
    path = including.parent / written
    # Not the file itself: what a link leads to includes other files where the link lies.
    return Path(os.path.realpath(path.parent), path.name)
