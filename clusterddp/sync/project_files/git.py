"""The project's files and commit, as git lists them."""

# Names are bytes, because a file name may be no valid text; pathlib has text only.
# ruff: noqa: PTH114, PTH118
from __future__ import annotations

import os
import stat
import subprocess
from shutil import which
from typing import TYPE_CHECKING, NamedTuple

from clusterddp.errors import SyncError
from clusterddp.remote.shared.workdir.manifest import folders_above
from clusterddp.sync.project_files.gitignore import unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable

_TIMEOUT = 300.0  # seconds for git, which may have to read a large project from a slow disk
_UNTRACKED = b"?"  # before a file's name, as `git ls-files -t` has it
# A repository's own configuration can name programs to run, and it may have come in an archive.
_SAFE_OPTIONS = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
_USER_SCOPES = {b"system", b"global"}  # of configuration that is not the repository's own
# Programs that git-lfs, a filter of the user's, starts. It reads lines, so a key may stand in another key's value too.
_LFS_EXTENSION = b"lfs.ext"


class FileList(NamedTuple):
    """The lstat of the files below a folder, the names of those that git tracks, and the repositories inside."""

    files: dict[bytes, os.stat_result]
    tracked: set[bytes]
    repositories: list[bytes]  # their folders, those of submodules too


def list_files(root: bytes) -> FileList | None:
    """List the files git tracks below ``root`` and the untracked ones it does not ignore; None outside git.

    Includes the files of submodules and of repositories inside. Deleted files are left out. Raises SyncError if git is
    missing or fails.
    """
    is_top = os.path.lexists(os.path.join(root, b".git"))
    if not is_top and not _is_in_outer_repository(root):
        return None
    listed = FileList({}, set(), [])
    _list_repository(root, b"", listed)
    return listed


def list_ignored(root: bytes) -> list[bytes]:
    """List what git ignores below ``root``: files, and wholly ignored folders with a slash; empty if git fails."""
    result = _git(root, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
    names = result.stdout.split(b"\0")[:-1] if result.returncode == 0 else []
    # If all files of an untracked folder are ignored, git lists the folder and the files: the folder is left out.
    parts = [name.rstrip(b"/").split(b"/") for name in names]
    folders = {b"/".join(name_parts[:depth]) + b"/" for name_parts in parts for depth in range(1, len(name_parts))}
    return [name for name in names if name not in folders]


def list_untracked(root: bytes) -> list[bytes]:
    """List the files below ``root`` that git neither tracks nor ignores; empty if git fails."""
    result = _git(root, "ls-files", "-z", "--others", "--exclude-standard")
    return result.stdout.split(b"\0")[:-1] if result.returncode == 0 else []


def commit_and_dirty(root: bytes, repositories: Iterable[bytes] = ()) -> dict[str, str | bool | None]:
    """Return ``commit`` (None before the first) and ``dirty``: there are changes, or git fails.

    ``repositories`` are the folders of those inside, submodules too, whose changes count as well.
    """
    head = _git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    commit = head.stdout.decode().strip() if head.returncode == 0 else None
    folders = [root, *(os.path.join(root, folder) for folder in repositories)]
    return {"commit": commit, "dirty": any(map(_is_dirty, folders))}


def _is_dirty(root: bytes) -> bool:
    """Whether a repository has uncommitted changes, apart from those inside its submodules, or that cannot be told.

    Git would look into a submodule by the submodule's own configuration, whose filters are disabled only where git
    is started in it.
    """
    no_filter = _no_filter_options(root)
    if no_filter is None:
        return True
    options = ("--porcelain", "-z", "--untracked-files=normal", "--ignore-submodules=dirty")
    changes = _git(root, *no_filter, "status", *options, "--", ".")
    return bool(changes.stdout or changes.returncode)


def _no_filter_options(root: bytes) -> list[str] | None:
    """Options that disable filters set in the repository's own configuration: it may have come in an archive.

    None if git cannot list it (``--show-scope`` is of 2.26), or a name cannot be given to ``-c``. A file that such a
    filter changes then counts as changed. The user's own filters (git-lfs) apply.
    """
    # Only git knows which repository it finds from here, and which files are its configuration.
    listed = _git(root, "config", "--null", "--show-scope", "--list")
    parts = listed.stdout.split(b"\0")
    own = [entry for scope, entry in zip(parts[::2], parts[1::2], strict=False) if scope not in _USER_SCOPES]
    keys = [key for key in (entry.split(b"\n")[0] for entry in own) if key.startswith(b"filter.")]
    drivers = dict.fromkeys(os.fsdecode(key).removeprefix("filter.").rpartition(".")[0] for key in keys)
    if any(_LFS_EXTENSION in entry.lower() for entry in own):
        drivers["lfs"] = None
    if listed.returncode or any("=" in name for name in drivers):  # -c ends a key at its first =
        return None
    no_filter = ("clean=", "process=", "required=false")
    return [argument for name in drivers for key in no_filter for argument in ("-c", f"filter.{name}.{key}")]


def _is_in_outer_repository(root: bytes) -> bool:
    """Whether ``root`` is part of a repository above it; one that ignores ``root`` does not count."""
    if which("git") is None:  # nothing here needs it
        return False
    inside = _git(root, "rev-parse", "--is-inside-work-tree")
    return inside.stdout.strip() == b"true" and _git(root, "check-ignore", "--quiet", ".").returncode != 0


def _list_repository(root: bytes, folder: bytes, listed: FileList) -> None:
    """Add the files of the repository in ``folder``, and of those inside it, to ``listed``."""
    base = os.path.join(root, folder) if folder else root
    result = _git(base, "ls-files", "-z", "-t", "--cached", "--others", "--exclude-standard")
    if result.returncode:
        errors = result.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise SyncError(f"{os.fsdecode(base)}: git cannot list the files ({errors[0]})")
    top, inside = root + b"/", folder + b"/" if folder else b""
    lines = [line.partition(b" ") for line in result.stdout.split(b"\0")[:-1]]
    found = [(tag, inside + name.rstrip(b"/")) for tag, _, name in lines]
    links = {above for above in folders_above(path for _, path in found) if os.path.islink(top + above)}
    for tag, path in found:
        if links and not links.isdisjoint(folders_above([path])):  # its folder was replaced by a link: it is gone
            continue
        if b".." in path and b".." in path.split(b"/"):  # no git puts it there, but who has packed the repository can
            remedy = "make the repository's index anew, or clone it"
            raise SyncError(f"{os.fsdecode(path)!r}: git lists it, though it lies outside the project", remedy=remedy)
        try:
            info = os.lstat(top + path)
        except (FileNotFoundError, NotADirectoryError):  # known to git, removed from the folder
            continue
        except OSError as error:
            raise unreadable(path, error) from error
        if not stat.S_ISDIR(info.st_mode):
            listed.files[path] = info
            if tag != _UNTRACKED:
                listed.tracked.add(path)
        elif os.path.lexists(os.path.join(root, path, b".git")):
            listed.repositories.append(path)
            _list_repository(root, path, listed)


def _git(folder: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder; ``SyncError`` if it is not installed, or does not end."""
    # With GIT_DIR or GIT_INDEX_FILE, as set in a git hook, git would answer for another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["GIT_OPTIONAL_LOCKS"] = "0"
    # What a partial clone lacks is not fetched: the repository's own configuration names the program that would do it.
    environment["GIT_ALLOW_PROTOCOL"] = "none"
    try:
        return subprocess.run(
            ["git", *_SAFE_OPTIONS, *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_TIMEOUT,
        )
    except FileNotFoundError as error:
        raise SyncError("this is a git project, but git is not on this machine", remedy="install git") from error
    except subprocess.TimeoutExpired as error:
        message = f"{os.fsdecode(folder)}: git has not ended within {_TIMEOUT:.0f} s"
        remedy = "look there for a pipe or device in place of a .gitignore or .gitattributes file"
        raise SyncError(message, remedy=remedy) from error
