"""The packages of clusterddp_preload in a fork server: which of them it imports, and why the others are left out.

A package is tried once (fork_server/preload_trial.py). The verdict is kept until a file that the trial has read
changes, so later starts only import:

    <state>/preload/HOST/KEY.json    0600; KEY is made from the names, the interpreter and what it searches

The file holds names and digests, no code; reading it is safe whatever its bytes are.
"""

import contextlib
import hashlib
import json
import os
import sys
import time
from typing import Any, Callable, Container, FrozenSet, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from ..shared.schema.fields import Fields
from ..shared.schema.record import field, many, parse_record, read_record, record, to_fields
from ..system.bootstrap import Refused, private_folder, write_json
from .environ_writes import UnknownError, mattering_write
from .fork_checks import RefusedError, import_state, refuse_shadows
from .imports import Imports
from .preload_trial import PreloadVerdict, reason_against, try_packages
from .script_imports import folders_put_first

RULES = 3  # version of the trial's rules; verdicts by others do not count
MAX_FILE_SIZE = 16 << 20  # bytes of a file of verdicts
MAX_FILES = 8  # files of verdicts
ABANDONED_TIMEOUT = 3600.0  # seconds after which a trial's folder counts as abandoned


@record
class KeptVerdicts(NamedTuple):
    """Verdicts, one for each name, with the state that they depend on."""

    verdicts: Tuple[PreloadVerdict, ...] = field(many(PreloadVerdict))
    paths: Tuple[str, ...] = field(Fields.texts)  # the files that were read, and the folders that were searched
    digest: str = field(Fields.text)  # of the rules and of the state of these paths


def decode(data: bytes) -> KeptVerdicts:
    """Decode a file of verdicts; raises ValueError if it is not one. No other error is raised."""
    return parse_record(data, _read)


def _read(data: Any) -> KeptVerdicts:
    found = read_record(KeptVerdicts, data, "preload")
    for verdict in found.verdicts:
        for module in verdict.modules:
            if not all(part.isidentifier() for part in module.split(".")):
                raise ValueError("%r is no module" % module)
    return found


class Preload:
    """The packages that one fork server is to import, by their ``names`` in the inventory."""

    def __init__(self, state: str, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.folder = verdicts_folder(state)
        key = json.dumps([self.names, sys.executable, sys.path])
        self.path = os.path.join(self.folder, hashlib.sha256(key.encode()).hexdigest()[:32] + ".json")
        self.verdicts: Tuple[PreloadVerdict, ...] = ()
        self.imported: List[PreloadVerdict] = []

    def decide(self, meanwhile: Callable[[], None]) -> None:
        """Read the kept verdicts, or make a trial, during which ``meanwhile`` is called repeatedly.

        ``meanwhile`` is not stored: it refers to the server, and such a cycle would stay in each worker uncollected.
        """
        if not self.names:
            return
        kept = self._read_valid()
        if kept:
            self.verdicts = kept.verdicts
            return
        try:
            private_folder(os.path.dirname(self.folder))
            private_folder(self.folder)
            found, paths = try_packages(self.names, self.folder, meanwhile)
            self.verdicts = tuple(found)
            hook = getattr(sys.modules.get("sitecustomize"), "__file__", None)  # removed with the run's own folder
            self._save_and_prune(sorted(paths - {hook}))
        except (OSError, Refused) as error:
            if not self.verdicts:  # else they are tried again next time
                reason = "it cannot be tried: %s" % error
                self.verdicts = tuple(PreloadVerdict(name, left_out=reason) for name in self.names)

    def load(self, verdict: PreloadVerdict, imports: Imports) -> None:
        """Import a package that has passed its trial.

        Raises RefusedError if it is no longer as it was when it was tried; from now on it is left out.
        """
        reason = reason_against(verdict.modules, imports)
        if reason:
            kept = self._read_valid()
            if kept:
                changed = (one._replace(left_out=reason) if one.name == verdict.name else one for one in kept.verdicts)
                self._write(kept._replace(verdicts=tuple(changed)))
            raise RefusedError("%s: %s" % (verdict.name, reason))
        self.imported.append(verdict)

    def leave_out(self, reason: Callable[[PreloadVerdict], str]) -> None:
        """Leave out each passed package for which ``reason`` returns a text."""
        self.verdicts = tuple(one if one.left_out else one._replace(left_out=reason(one)) for one in self.verdicts)

    @property
    def to_import(self) -> List[PreloadVerdict]:
        """The packages to be imported."""
        return [one for one in self.verdicts if not one.left_out]

    @property
    def left_out(self) -> List[PreloadVerdict]:
        """The packages that are left out."""
        return [one for one in self.verdicts if one.left_out]

    @property
    def left_out_names(self) -> FrozenSet[str]:
        """Top-level names of the packages that are left out."""
        return frozenset(name.partition(".")[0] for one in self.left_out for name in (one.name, *one.modules))

    def _read_valid(self) -> Optional[KeptVerdicts]:
        """Return the kept verdicts if they still hold."""
        try:
            with open(self.path, "rb") as stream:
                kept = decode(stream.read(MAX_FILE_SIZE))
        except (OSError, ValueError):  # none, or damaged: the trial is made again
            return None
        same = tuple(one.name for one in kept.verdicts) == self.names
        return kept if same and kept.digest == digest(kept.paths, kept.verdicts) else None

    def _save_and_prune(self, paths: List[str]) -> None:
        """Save the verdicts; remove the oldest other files, and the folders of abandoned trials."""
        self._write(KeptVerdicts(self.verdicts, tuple(paths), digest(paths, self.verdicts)))
        paths_in_folder = [os.path.join(self.folder, name) for name in os.listdir(self.folder)]
        oldest = sorted((path for path in paths_in_folder if path.endswith(".json")), key=os.path.getmtime)
        for path in oldest[:-MAX_FILES]:
            with contextlib.suppress(OSError):
                os.unlink(path)
        for path in paths_in_folder:
            with contextlib.suppress(OSError):  # it is not empty: another trial's
                if not path.endswith(".json") and time.time() - os.path.getmtime(path) > ABANDONED_TIMEOUT:
                    os.rmdir(path)

    def _write(self, kept: KeptVerdicts) -> None:
        write_json(self.path, to_fields(kept), durable=False)


def verdicts_folder(state: str) -> str:
    """Return the folder of this host's verdicts; several hosts may share a state folder."""
    return os.path.join(state, "preload", os.uname().nodename)


def digest(paths: Iterable[str], verdicts: Iterable[PreloadVerdict]) -> str:
    """Return a digest of all that verdicts depend on: rules, interpreter, files, and what folders provide."""
    asked = {name for one in verdicts for name in one.asks}
    there = [[path, import_state(path, asked)] for path in paths]
    return hashlib.sha256(json.dumps([RULES, sys.version, there]).encode()).hexdigest()


def clash_with(
    folders: Sequence[str],
    script: str,
    asks: Container[str],
    reads: Container[str],
    put_first: Optional[Sequence[str]] = None,
) -> str:
    """Return why a project could notice that packages were imported before its script began; empty if it cannot.

    ``folders`` come first in its scripts' search path; ``script`` is the script's own file. The packages search for the
    modules ``asks`` (top-level names), and read the variables ``reads``. ``put_first``: what ``folders_put_first`` has
    found; None: it is asked.
    """
    try:
        found = folders_put_first(folders) if put_first is None else put_first
        for folder in dict.fromkeys([*folders, *found]):
            refuse_shadows(folder, asks)
    except (OSError, RefusedError, UnknownError) as error:
        return str(error)
    write = mattering_write(folders, script, reads)
    return "%s, which is read when it is imported" % write if write else ""
