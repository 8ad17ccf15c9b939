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
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterddp.errors import UsageError
from clusterddp.project import project_folder
from clusterddp.project.consent import known_key, made_key, proof, proves
from clusterddp.project.project_folder import FOLDER
from clusterddp.remote.shared.schema.fields import Fields
from clusterddp.remote.shared.schema.record import checked, nullable, read_record, record, written
from clusterddp.remote.shared.wire.frames import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NAME = "project.json"
MOST = 1 << 20  # bytes of it
OF_RUNS = ("runs.jsonl", "verdicts")  # in the project's folder: what is kept of its runs
_LOCATION = "place"
VALID_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VALID_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,39}")


@record
class ProjectData(NamedTuple):
    """What project.json holds, whoever wrote it; None for what it does not hold."""

    id: str | None = nullable(checked(VALID_ID.fullmatch, "an id"), default=None)
    label: str | None = nullable(Fields.maybe_text, default=None)
    root: str | None = nullable(Fields.maybe_text, default=None)  # where the project was, and the proof of that
    root_proof: object = nullable(Fields.anything, default=None)
    inventory: str | None = nullable(Fields.maybe_text, default=None)  # of the last `up`, with its limit and consent
    limit: str | None = nullable(Fields.maybe_text, default=None)
    consent: object = nullable(Fields.anything, default=None)
    tried: str | None = nullable(Fields.maybe_text, default=None)  # of an `up` that has not succeeded, and the proof
    tried_proof: object = nullable(Fields.anything, default=None)
    more: Mapping[str, Any] = {}


def read(folder: Path) -> ProjectData:
    """Return what project.json of a ``.clusterddp`` holds; empty without one. Raises UsageError."""
    path = folder / NAME
    try:
        value = parse_json(project_folder.read(project_folder.own(folder) / NAME, MOST))
    except (FileNotFoundError, NotADirectoryError):
        return ProjectData()
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise UsageError(f"{path}: cannot be read ({reason})", remedy="remove it or mend it") from error
    with contextlib.suppress(ValueError):
        data = read_record(ProjectData, value, "project")
        if data.id and _VALID_LABEL.fullmatch(data.label or "_"):
            return data
    raise UsageError(f"{path}: holds something else than a project's id", remedy="remove it or mend it")


def encoded(data: ProjectData) -> bytes:
    """Return the bytes of project.json."""
    held = {name: value for name, value in written(data).items() if value is not None}
    return json.dumps(held, indent=1, sort_keys=True).encode() + b"\n"


def label_of(root: Path) -> str:
    """Return the folder's name, with only characters that are safe in a path on any host."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", root.name).strip("-.")
    return plain[:40].rstrip("-.") or "project"


def new(root: Path) -> ProjectData:
    """Return the project.json of a new project."""
    return located(root, ProjectData(id=secrets.token_hex(5), label=label_of(root)))


def settle(root: Path) -> ProjectData:
    """Record where the project is now; a copy gets an id of its own, and none of its original's runs."""
    folder = root / FOLDER
    with project_folder.writing(folder), _locked(folder):
        data = read(folder)
        if original := original_of(root, data):
            _set_runs_aside(folder, str(data.id))
            kept = kept_by_copy(data, original)
            data = new(root)._replace(inventory=kept.inventory, limit=kept.limit)
        data = located(root, data._replace(label=data.label or label_of(root)))
        project_folder.write(folder, NAME, encoded(data))
        return data


def kept_by_copy(data: ProjectData, original: Path) -> ProjectData:
    """Return what a copy keeps of project.json: the name of its inventory, which needs the user's consent again."""
    inventory = data.inventory
    if inventory and Path(inventory).is_relative_to(original):
        inventory = str(Path(inventory).relative_to(original))
    return ProjectData(inventory=inventory, limit=data.limit)


def located(root: Path, data: ProjectData) -> ProjectData:
    """Return what project.json holds once it records the project's location; unchanged without a key."""
    with contextlib.suppress(UsageError):
        return data._replace(root=str(root), root_proof=proof(made_key(), _LOCATION, data.id, str(root)))
    return data


def is_placed(root: Path, data: ProjectData) -> bool:
    """Whether project.json records this location."""
    return data.root == str(root)


def original_of(root: Path, data: ProjectData) -> Path | None:
    """Return the project that this one is a copy of; None if it was only renamed, or is visible at two paths."""
    kept = data.root
    if not kept or is_placed(root, data):
        return None
    try:
        if not proves(data.root_proof, known_key(), _LOCATION, data.id, kept):
            return None
        if os.path.samestat(os.stat(kept), os.stat(root)):  # noqa: PTH116 - Path's raises
            return None
        there = parse_json(project_folder.read(Path(kept, FOLDER, NAME), MOST))
    except PermissionError:
        return Path(kept)  # it cannot be seen, so it is treated as another project
    except (OSError, ValueError, UsageError):
        return None
    return Path(kept) if isinstance(there, dict) and there.get("id") == data.id else None


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
