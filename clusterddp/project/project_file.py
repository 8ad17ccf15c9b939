"""project.json: read strictly; and where the project lies by it, so that a copied folder is told from a renamed one.

The folder is kept with an HMAC by the user's key, so that no path that an archive brought along is looked at.
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

from clusterddp.consent import known_key, made_key, proof, proves
from clusterddp.errors import UsageError
from clusterddp.project import project_folder
from clusterddp.project.project_folder import FOLDER
from clusterddp.remote.shared.wire.frames import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NAME = "project.json"
MOST = 1 << 20  # bytes of it
OF_RUNS = ("runs.jsonl", "verdicts")  # in the project's folder: what is kept of its runs
_PLACE = "place"
VALID_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VALID_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,39}")
_TEXTS = ("id", "inventory", "limit", "tried", "label", "root")


def read(folder: Path) -> dict[str, Any]:
    """What project.json of a ``.clusterddp`` holds; empty without one.

    Raises:
        UsageError: it cannot be read, or is none.
    """
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
    """The bytes of project.json."""
    return json.dumps(data, indent=1, sort_keys=True).encode() + b"\n"


def label_of(root: Path) -> str:
    """The folder's name, with only letters that are safe in a path on any host."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", root.name).strip("-.")
    return plain[:40].rstrip("-.") or "project"


def new(root: Path) -> dict[str, Any]:
    """What a new project begins with."""
    ident = secrets.token_hex(5)
    return {"id": ident, "label": label_of(root), **place(root, ident)}


def settle(root: Path) -> dict[str, Any]:
    """Write where the project lies now; a copy gets an id of its own, and none of its original's runs.

    Raises:
        UsageError: project.json cannot be read or written.
    """
    folder = root / FOLDER
    with project_folder.writing(folder), _locked(folder):
        data = read(folder)
        if original := original_of(root, data):
            _set_runs_aside(folder, data["id"])
            data = {**kept_by_copy(data, original), **new(root)}
        data.setdefault("label", label_of(root))
        data.update(place(root, data["id"]))
        project_folder.write(folder, NAME, encoded(data))
        return data


def kept_by_copy(data: Mapping[str, Any], original: Path) -> dict[str, Any]:
    """What a copy keeps of project.json: the name of its inventory, which wants the user's consent anew."""
    kept = {key: data[key] for key in ("inventory", "limit") if data.get(key)}
    if Path(kept.get("inventory", "/")).is_relative_to(original):
        kept["inventory"] = str(Path(kept["inventory"]).relative_to(original))
    return kept


def place(root: Path, ident: str) -> dict[str, str]:
    """What project.json keeps of where the project lies; nothing without a key."""
    with contextlib.suppress(UsageError):
        return {"root": str(root), "root_proof": proof(made_key(), _PLACE, ident, str(root))}
    return {}


def is_placed(root: Path, data: Mapping[str, Any]) -> bool:
    """Whether project.json says that the project lies here."""
    return data.get("root") == str(root)


def original_of(root: Path, data: Mapping[str, Any]) -> Path | None:
    """The project that this one is a copy of; None where it was only renamed, or is shown at two places.

    Args:
        root: The project's folder.
        data: Its project.json.
    """
    kept = data.get("root") if data else None
    if not kept or is_placed(root, data):
        return None
    try:
        if not proves(data.get("root_proof"), known_key(), _PLACE, data["id"], kept):
            return None
        if os.path.samestat(os.stat(kept), os.stat(root)):  # noqa: PTH116 - Path's raises
            return None
        there = parse_json(project_folder.read(Path(kept, FOLDER, NAME), MOST))
    except PermissionError:
        return Path(kept)  # nobody may share what he cannot see
    except (OSError, ValueError, UsageError):
        return None
    return Path(kept) if isinstance(there, dict) and there.get("id") == data["id"] else None


def _set_runs_aside(folder: Path, ident: str) -> None:
    """Move what a copy brought along of its original's runs out of the way.

    Args:
        folder: The copy's ``.clusterddp``.
        ident: The original's id.
    """
    aside = folder / f"copied-{ident}"
    for name in OF_RUNS:
        with contextlib.suppress(FileNotFoundError):
            (folder / name).lstat()
            aside.mkdir(mode=0o700, exist_ok=True)
            (folder / name).rename(project_folder.own(folder, aside.name) / name)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Alone among the commands that settle this project."""
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
