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
from clusterddp.project.consent import ensure_key, load_key, proof, proves
from clusterddp.project.project_folder import FOLDER
from clusterddp.remote.shared.schema.fields import Fields
from clusterddp.remote.shared.schema.record import checked, nullable, read_record, record, to_fields
from clusterddp.remote.shared.wire.frames import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NAME = "project.json"
MAX_BYTES = 1 << 20  # of project.json
RUN_FILES = ("runs.jsonl", "verdicts")  # what the project's folder keeps of its runs
_LOCATION = "place"  # what the proof of the location is for
VALID_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VALID_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,39}")


@record
class ProjectData(NamedTuple):
    """The content of project.json, which may be forged; None for what it does not hold."""

    id: str | None = nullable(checked(VALID_ID.fullmatch, "an id"), default=None)
    label: str | None = nullable(Fields.maybe_text, default=None)
    root: str | None = nullable(Fields.maybe_text, default=None)  # where the project was, and its proof below
    root_proof: object = nullable(Fields.anything, default=None)
    inventory: str | None = nullable(Fields.maybe_text, default=None)  # of the last `up`, with its limit and consent
    limit: str | None = nullable(Fields.maybe_text, default=None)
    consent: object = nullable(Fields.anything, default=None)
    tried: str | None = nullable(Fields.maybe_text, default=None)  # as ``inventory``, of an `up` that has not succeeded
    tried_proof: object = nullable(Fields.anything, default=None)
    more: Mapping[str, Any] = {}


def read(folder: Path) -> ProjectData:
    """Return what project.json of a ``.clusterddp`` holds; empty without one. Raises UsageError."""
    path = folder / NAME
    try:
        value = parse_json(project_folder.read(project_folder.real_folder(folder) / NAME, MAX_BYTES))
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


def encode(data: ProjectData) -> bytes:
    """Return the bytes of project.json."""
    values = {name: value for name, value in to_fields(data).items() if value is not None}
    return json.dumps(values, indent=1, sort_keys=True).encode() + b"\n"


def label_of(root: Path) -> str:
    """Return the folder's name, with only characters that are safe in a path on any host."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", root.name).strip("-.")
    return plain[:40].rstrip("-.") or "project"


def new(root: Path) -> ProjectData:
    """Return the project.json of a new project."""
    return with_location(root, ProjectData(id=secrets.token_hex(5), label=label_of(root)))


def update_location(root: Path) -> ProjectData:
    """Record where the project is now; a copy gets an id of its own, and none of its original's runs."""
    folder = root / FOLDER
    with project_folder.raise_unwritable(folder), _hold_lock(folder):
        data = read(folder)
        if original := original_of(root, data):
            _set_runs_aside(folder, str(data.id))
            copied = data_of_copy(data, original)
            data = new(root)._replace(inventory=copied.inventory, limit=copied.limit)
        data = with_location(root, data._replace(label=data.label or label_of(root)))
        project_folder.write(folder, NAME, encode(data))
        return data


def data_of_copy(data: ProjectData, original: Path) -> ProjectData:
    """Return what a copy of a project keeps of project.json: its inventory, which needs the user's consent again."""
    inventory = data.inventory
    if inventory and Path(inventory).is_relative_to(original):
        inventory = str(Path(inventory).relative_to(original))
    return ProjectData(inventory=inventory, limit=data.limit)


def with_location(root: Path, data: ProjectData) -> ProjectData:
    """Return the data with the project's location and its proof; unchanged if this user has no key."""
    with contextlib.suppress(UsageError):
        return data._replace(root=str(root), root_proof=proof(ensure_key(), _LOCATION, data.id, str(root)))
    return data


def has_location(root: Path, data: ProjectData) -> bool:
    """Whether the data records this folder as the project's location."""
    return data.root == str(root)


def original_of(root: Path, data: ProjectData) -> Path | None:
    """Return the project that this one is a copy of; None if it was only renamed, or is visible at two paths."""
    recorded = data.root
    if not recorded or has_location(root, data):
        return None
    try:
        if not proves(data.root_proof, load_key(), _LOCATION, data.id, recorded):
            return None
        if os.path.samestat(os.stat(recorded), os.stat(root)):  # noqa: PTH116 - Path's raises
            return None
        found_data = parse_json(project_folder.read(Path(recorded, FOLDER, NAME), MAX_BYTES))
    except PermissionError:
        return Path(recorded)  # it cannot be read, so it is treated as another project
    except (OSError, ValueError, UsageError):
        return None
    return Path(recorded) if isinstance(found_data, dict) and found_data.get("id") == data.id else None


def _set_runs_aside(folder: Path, original_id: str) -> None:
    """Move the original project's run files, which were copied with the folder, to ``copied-ID``."""
    aside = folder / f"copied-{original_id}"
    for name in RUN_FILES:
        with contextlib.suppress(FileNotFoundError):
            (folder / name).lstat()
            aside.mkdir(mode=0o700, exist_ok=True)
            (folder / name).rename(project_folder.real_folder(folder, aside.name) / name)


@contextlib.contextmanager
def _hold_lock(folder: Path) -> Iterator[None]:
    """Hold the lock under which a command records the project's location."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
