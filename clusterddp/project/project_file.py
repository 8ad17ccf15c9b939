"""Read project.json strictly, and find out by it whether the project's folder was copied or renamed.

The folder's path is kept with an HMAC by the user's key, so that no path from an archive is used.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterddp.errors import UsageError
from clusterddp.project import project_folder
from clusterddp.project.consent import known_key, made_key, proof, proves
from clusterddp.project.project_folder import FOLDER
from clusterddp.remote.shared.wire.frames import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NAME = "project.json"
MOST = 1 << 20  # bytes of it
OF_RUNS = ("runs.jsonl", "verdicts")  # in the project's folder: what is kept of its runs
_LOCATION = "place"
VALID_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VALID_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,39}")
_TEXTS = ("id", "inventory", "limit", "tried", "label", "root")


def read(folder: Path) -> dict[str, Any]:
    """Return what project.json of a ``.clusterddp`` holds; empty without one. Raises UsageError."""
    path = folder / NAME
    try:
        data = parse_json(project_folder.read(project_folder.own(folder) / NAME, MOST))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise UsageError(f"{path}: cannot be read ({reason})", remedy="remove it or mend it") from error
    if not _is_ours(data):
        raise UsageError(f"{path}: holds something else than a project's id", remedy="remove it or mend it")
    return dict(data)


def encoded(data: Mapping[str, Any]) -> bytes:
    """Return the bytes of project.json."""
    return json.dumps(data, indent=1, sort_keys=True).encode() + b"\n"


def label_of(root: Path) -> str:
    """Return the folder's name, with only characters that are safe in a path on any host."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", root.name).strip("-.")
    return plain[:40].rstrip("-.") or "project"


def new(root: Path) -> dict[str, Any]:
    """Return the project.json of a new project."""
    ident = secrets.token_hex(5)
    return {"id": ident, "label": label_of(root), **location(root, ident)}


def settle(root: Path) -> dict[str, Any]:
    """Record where the project is now; a copy gets an id of its own, and none of its original's runs."""
    folder = root / FOLDER
    with project_folder.writing(folder), _locked(folder):
        data = read(folder)
        if original := original_of(root, data):
            _set_runs_aside(folder, data["id"])
            data = {**kept_by_copy(data, original), **new(root)}
        data.setdefault("label", label_of(root))
        data.update(location(root, data["id"]))
        project_folder.write(folder, NAME, encoded(data))
        return data


def kept_by_copy(data: Mapping[str, Any], original: Path) -> dict[str, Any]:
    """Return what a copy keeps of project.json: the name of its inventory, which needs the user's consent again."""
    kept = {key: data[key] for key in ("inventory", "limit") if data.get(key)}
    if Path(kept.get("inventory", "/")).is_relative_to(original):
        kept["inventory"] = str(Path(kept["inventory"]).relative_to(original))
    return kept


def location(root: Path, ident: str) -> dict[str, str]:
    """Return what project.json records of the project's location; nothing without a key."""
    with contextlib.suppress(UsageError):
        return {"root": str(root), "root_proof": proof(made_key(), _LOCATION, ident, str(root))}
    return {}


def is_placed(root: Path, data: Mapping[str, Any]) -> bool:
    """Whether project.json records this location."""
    return data.get("root") == str(root)


def original_of(root: Path, data: Mapping[str, Any]) -> Path | None:
    """Return the project that this one is a copy of; None if it was only renamed, or is visible at two paths."""
    kept = data.get("root") if data else None
    if not kept or is_placed(root, data):
        return None
    try:
        if not proves(data.get("root_proof"), known_key(), _LOCATION, data["id"], kept):
            return None
        if os.path.samestat(os.stat(kept), os.stat(root)):  # noqa: PTH116 - Path's raises
            return None
        there = parse_json(project_folder.read(Path(kept, FOLDER, NAME), MOST))
    except PermissionError:
        return Path(kept)  # it cannot be seen, so it is treated as another project
    except (OSError, ValueError, UsageError):
        return None
    return Path(kept) if isinstance(there, dict) and there.get("id") == data["id"] else None


def _set_runs_aside(folder: Path, ident: str) -> None:
    """Move the original's runs, which a copy brought along, out of the way."""
    aside = folder / f"copied-{ident}"
    for name in OF_RUNS:
        with contextlib.suppress(FileNotFoundError):
            (folder / name).lstat()
            aside.mkdir(mode=0o700, exist_ok=True)
            (folder / name).rename(project_folder.own(folder, aside.name) / name)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the commands that settle this project."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _is_ours(data: object) -> bool:
    if not isinstance(data, dict) or not VALID_ID.fullmatch(str(data.get("id") or "")):
        return False
    if not _VALID_LABEL.fullmatch(str(data.get("label") or "_")):
        return False
    return all(isinstance(data.get(key) or "", str) for key in _TEXTS)
