"""The project: its folder, its id, and what is remembered of it in `.clusterddp/`, which git ignores.

Nothing is made before it is needed, so looking at runs in another folder leaves no trace.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterddp.errors import UsageError
from clusterddp.project import project_file, project_folder
from clusterddp.project.consent import Consent, Writers, ensure_key, load_key, proof, proves, read_consent
from clusterddp.project.project_file import MAX_BYTES, NAME, VALID_ID
from clusterddp.project.project_folder import FOLDER
from clusterddp.project.toml_text import parse_toml
from clusterddp.project.user_folders import user_path
from clusterddp.remote.shared.run.run_record import RunRecord, read_run_record
from clusterddp.remote.shared.schema.record import parse_record, to_fields
from clusterddp.remote.shared.workdir.workdir_names import WORKDIRS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterddp.project.project_file import ProjectData

_CONSENT, _TRIED, _RUN = "consent", "tried", "run"  # what proofs are for
_INDEX = "runs.jsonl"  # the runs started here, one record a line
_PROOF = "started_here"  # the key of the proof in a line of the index
_PROVED_LINE = re.compile(rb'(.*),"%s":"([0-9a-f]{64})"\}' % _PROOF.encode())


@dataclass(frozen=True, kw_only=True, slots=True)
class LastUp:
    """What the last ``up`` chose for this project; None for what it did not choose."""

    inventory: Path | None = None
    limit: str | None = None  # its ``--limit``
    writers: Writers | None = None  # who could write the inventory then


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """A project: the folder on the operator's machine whose code is synced to the hosts; ``find`` finds it."""

    root: Path  # the project's top folder, absolute and without links
    subfolder: str  # where the command was given, relative to ``root`` with ``/``; empty at the top
    options: Mapping[str, Any]  # ``[tool.clusterddp]`` of pyproject.toml
    fixed_id: str | None  # the id that CLUSTERDDP_PROJECT or pyproject.toml sets, else None
    # the nearest folder above that another user has made a project where anyone may write: it is not used
    untrusted_parent: Path | None = None

    @property
    def folder(self) -> Path:
        """``.clusterddp/`` of this project; may not exist yet."""
        return self.root / FOLDER

    @property
    def label(self) -> str:
        """Return the folder's name when the project was made, with only characters that are safe in a path."""
        return self._read().label or project_file.label_of(self.root)

    @property
    def id(self) -> str:
        """Return the project's id: the fixed one, else a random one made at the first use and kept."""
        if self.fixed_id:
            return self.fixed_id
        try:
            return str(self._ensure_data().id)
        except project_folder.UnwritableError as error:
            remedy = f"{error.remedy}, or set CLUSTERDDP_PROJECT to an id of your choice"
            raise UsageError(error.message, remedy=remedy) from error

    @property
    def known_id(self) -> str | None:
        """Return the project's id; None if none has been made yet."""
        return self.fixed_id or self._read().id

    @property
    def workdir(self) -> str:
        """Return the default workdir on a host."""
        return f"{WORKDIRS}/{self.label}-{self.id}"

    @property
    def unproved(self) -> LastUp:
        """Return the inventory and limit in project.json, which may be forged: only for messages."""
        data = self._read()
        return LastUp(inventory=self.root / data.inventory if data.inventory else None, limit=data.limit)

    @property
    def remembered(self) -> LastUp:
        """Return the inventory and limit of the last ``up``, if project.json proves that this user gave them."""
        data = self._read()
        consent = read_consent(data.consent)
        if consent is None or not data.inventory:
            return LastUp()
        if not proves(consent.proof, load_key(), _CONSENT, *consent.values(data.id, data.inventory, data.limit)):
            return LastUp()
        return LastUp(inventory=self._present_path(data.inventory, consent), limit=data.limit, writers=consent.writers)

    def remember(self, inventory: Path | None, limit: str | None, writers: Writers | None = None) -> None:
        """Keep the user's consent to an inventory and a limit for later commands.

        ``inventory``: its path; made absolute. ``writers``: who may write it besides root; None: this user alone.
        Raises UsageError if the project folder or the user's state folder cannot be written.
        """
        path = _absolute(inventory) if inventory else None
        data = self._ensure_data()._replace(inventory=path, limit=limit, consent=None, tried=None, tried_proof=None)
        if inventory:
            allowed = writers or Writers(owner=os.geteuid())
            consent = Consent(writers=allowed, root=str(self.root), inode=self.root.stat().st_ino)
            consent = replace(consent, proof=proof(ensure_key(), _CONSENT, *consent.values(data.id, path, limit)))
            data = data._replace(consent=consent.to_json())
        self.write(NAME, project_file.encode(data))

    def _present_path(self, inventory: str, consent: Consent) -> Path:
        """Return the inventory's present path: its new one if it lies in a project folder that was renamed."""
        path = Path(inventory)
        if consent.root == str(self.root) or not path.is_relative_to(consent.root):
            return path
        renamed = self.root.stat().st_ino == consent.inode
        return self.root / path.relative_to(consent.root) if renamed else path

    @property
    def attempted_inventory(self) -> Path | None:
        """Return the inventory of this user's last ``up`` if that has not succeeded, else None."""
        data = self._read()
        proved = data.tried and proves(data.tried_proof, load_key(), _TRIED, data.id, data.tried)
        return Path(data.tried) if data.tried and proved else None

    def remember_attempt(self, inventory: Path) -> None:
        """Remember that an ``up`` of this inventory has begun; raises UsageError."""
        data = self._ensure_data()
        tried = _absolute(inventory)
        proved = proof(ensure_key(), _TRIED, data.id, tried)
        self.write(NAME, project_file.encode(data._replace(tried=tried, tried_proof=proved)))

    def record_run(self, record: RunRecord) -> None:
        """Append one run to the local index, with the proof that this user started it."""
        line = json.dumps(to_fields(record), separators=(",", ":")).encode()
        with contextlib.suppress(UsageError):  # without a key, --again cannot repeat it
            line = line[:-1] + f',"{_PROOF}":"{proof(ensure_key(), _RUN, line.decode())}"'.encode() + b"}"
        project_folder.append(self.folder, _INDEX, line)

    def runs(self, *, own: bool = False) -> list[RunRecord]:
        """Return the runs of the local index, oldest first; ``own``: only those that this user provably started."""
        records: list[RunRecord] = []
        with contextlib.suppress(UsageError):  # a damaged project.json is reported by the commands that need it
            if self.original:
                return records
        key = load_key() if own else None
        with contextlib.suppress(OSError):
            for line in project_folder.read(project_folder.real_folder(self.folder) / _INDEX).splitlines():
                proved = _PROVED_LINE.fullmatch(line)
                plain = proved[1] + b"}" if proved else line
                if own and not (proved and proves(proved[2].decode(), key, _RUN, plain.decode(errors="replace"))):
                    continue
                with contextlib.suppress(ValueError):  # a damaged line is skipped
                    records.append(parse_record(plain, read_run_record))
        return records

    @property
    def launchers(self) -> frozenset[str]:
        """Return the launchers of the runs in the local index."""
        path = self.folder / _INDEX
        try:
            info = path.stat()
        except OSError:
            return frozenset()
        return _launchers(path, info.st_mtime_ns, info.st_size)

    def write(self, name: str, data: bytes) -> Path:
        """Write a file in ``.clusterddp/`` or a folder of it, 0600 and atomically; raises UsageError."""
        return project_folder.write(self.folder, name, data)

    def write_folder(self, name: str, files: Mapping[str, bytes]) -> Path:
        """Write a folder in ``.clusterddp/`` in place of the earlier one; return its last file; raises UsageError."""
        return project_folder.write_folder(self.folder, name, files)

    @property
    def original(self) -> Path | None:
        """Return the project that this one is a copy of, until it has its own id; a fixed id is shared on purpose."""
        return None if self.fixed_id else project_file.original_of(self.root, project_file.read(self.folder))

    def update_location(self) -> str:
        """Record the project's location, or give a copy its own id; return a message about it, or an empty text.

        Only its owner does: looking at another user's project changes nothing in it.
        """
        data = None if self.fixed_id else project_file.read(self.folder)
        if data is None or data.id is None or (project_file.has_location(self.root, data) and data.label):
            return ""
        original, updated = self.original, False
        if (self.folder / NAME).lstat().st_uid == os.geteuid():
            with contextlib.suppress(UsageError):
                project_file.update_location(self.root)
                updated = True
        if original is None:
            return ""
        shares = "so it shares none of its runs and workdirs"
        when = "now" if updated else "once its folder can be written"
        return f"this project is a copy of {original} and gets an id of its own {when}, {shares}"

    def _ensure_data(self) -> ProjectData:
        """Return the content of project.json; write it first if there is none, or if this copy needs its own id."""
        data = self._read()
        if data.id:
            return data
        return project_file.update_location(self.root) if self.original else self._create()

    def _read(self) -> ProjectData:
        """Return what project.json holds; for a copy without its own id yet, only the inventory it names."""
        data = project_file.read(self.folder)
        original = None if self.fixed_id else project_file.original_of(self.root, data)
        return project_file.data_of_copy(data, original) if original else data

    def _create(self) -> ProjectData:
        """Make project.json with a new id; of two commands at once both use the first one's."""
        project_folder.create(self.folder, NAME, project_file.encode(project_file.new(self.root)))
        return self._read()


@functools.lru_cache(maxsize=8)
def _launchers(path: Path, *_changed_at: int) -> frozenset[str]:
    """Return the launchers named in an index of runs; cached until its time or size changes."""
    with contextlib.suppress(OSError):  # as without an index: only a guess where to ask first
        return frozenset(name.decode() for name in re.findall(rb'"launcher":"([a-z]+)"', project_folder.read(path)))
    return frozenset()


def find(start: Path | None = None, environ: Mapping[str, str] | None = None) -> Project:
    """Return the project of a folder: the nearest ancestor with `.clusterddp/project.json` or `.git`, else itself.

    ``environ``: where CLUSTERDDP_PROJECT is looked up; None for this process's environment. Raises UsageError if
    pyproject.toml is not valid TOML, or the id it sets cannot be used in a path.
    """
    start = (start or _current_folder()).resolve()
    root, untrusted_parent = _find_root(start)
    options = _read_options(root / "pyproject.toml")
    subfolder = start.relative_to(root).as_posix()
    id_variable = (os.environ if environ is None else environ).get("CLUSTERDDP_PROJECT")
    return Project(
        root=root,
        subfolder="" if subfolder == "." else subfolder,
        options=options,
        fixed_id=_checked_id(id_variable, "CLUSTERDDP_PROJECT")
        or _checked_id(options.get("project"), f"{root / 'pyproject.toml'}: tool.clusterddp.project"),
        untrusted_parent=untrusted_parent,
    )


def foreign_project(folder: Path) -> Project:
    """Return the project that another user made of a folder: only for messages, nothing of it is used."""
    return Project(root=folder, subfolder="", options=_read_options(folder / "pyproject.toml"), fixed_id=None)


def short_path(path: Path) -> str:
    """Return a path as short as it can be typed in the current folder; absolute if that is ``/``."""
    relative = os.path.relpath(path)
    if Path.cwd() == Path("/"):
        return str(Path("/", relative))
    return str(path) if relative.startswith("..") else relative


def _absolute(path: Path) -> str:
    """Return a file's absolute path without ``..``, so that it holds when a folder on the way is moved."""
    absolute = path.absolute()
    return str(absolute.parent.resolve() / absolute.name if ".." in absolute.parts else absolute)


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the current folder is gone", remedy="cd to the project's folder") from None


def _find_root(start: Path) -> tuple[Path, Path | None]:
    """Return the project's folder; if no mark is found, ``start`` and the nearest parent with an untrusted mark."""
    untrusted = None
    for folder in (start, *start.parents):
        owner = _mark_owner(folder, start)
        if owner is not None and _may_mark(owner, folder, start):
            return folder, None
        if owner is not None:
            untrusted = untrusted or folder
    return start, untrusted


def _mark_owner(folder: Path, start: Path) -> int | None:
    """Return the owner of the mark that makes ``folder`` a project; None without one.

    What `up` wrote into a home or ``/`` counts there only, not for all folders below.
    """
    too_wide = folder != start and folder in {Path(folder.anchor), user_path("~").resolve()}
    for mark, proved_by in ((".git", ".git"), *([] if too_wide else [(FOLDER, f"{FOLDER}/project.json")])):
        with contextlib.suppress(OSError):  # it does not exist, or cannot be seen
            os.stat(folder / proved_by)  # noqa: PTH116 - Path's raises
            return os.lstat(folder / mark).st_uid
    return None


def _may_mark(owner: int, folder: Path, start: Path) -> bool:
    """Whether a mark is trusted: in ``/tmp`` any user can put one above the folders of others."""
    if folder == start or owner in {os.geteuid(), 0}:
        return True
    return owner in {folder.stat().st_uid, start.stat().st_uid}


def _checked_id(value: object, where: str) -> str | None:
    """Return a valid id, None if unset; raises UsageError, whose message begins with ``where``."""
    if value is None or value == "":
        return None
    if not isinstance(value, str) or not VALID_ID.fullmatch(value):
        raise UsageError(
            f"{where}: {value!r} cannot be a project id", remedy="use at most 64 letters, digits, '.', '_' and '-'"
        )
    return value


def _read_options(path: Path) -> Mapping[str, Any]:
    """Return ``[tool.clusterddp]``; a broken pyproject.toml that does not mention clusterddp is ignored."""
    try:
        data = project_folder.read(path, MAX_BYTES, follow_link=True)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"{path}: cannot be read ({reason})", remedy="make it readable") from error
    if b"clusterddp" not in data:
        return {}
    try:
        tool = parse_toml(data.decode()).get("tool", {})
    except ValueError as error:  # that of UTF-8 too
        raise UsageError(f"{path}: {error}", remedy="correct the file") from error
    table = tool.get("clusterddp", {}) if isinstance(tool, dict) else tool
    if not isinstance(table, dict):
        raise UsageError(f"{path}: tool.clusterddp is not a table", remedy="write it as [tool.clusterddp]")
    return table
