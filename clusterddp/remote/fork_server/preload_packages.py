"""The packages of clusterddp_preload in a fork server: which of them it imports, and why the others are left out.

A package is tried once (fork_server/preload_trial.py); the verdict is kept for as long as every file that the trial
has read is the same, so later starts only import:

    <state>/preload/HOST/KEY.json    0600; KEY is made from the names, the interpreter and what it searches

What is kept is names and digests, no code, and it is read whatever its bytes are.
"""

import contextlib
import hashlib
import json
import os
import sys
import time
from typing import Any, Callable, Container, FrozenSet, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from ..shared.schema.fields import Fields
from ..shared.schema.record import field, many, parsed, read_record, record, written
from ..system.bootstrap import Refused, private_folder, write_json
from .environ_writes import mattering_write
from .fork_checks import RefusedError, import_state, refuse_shadows
from .imports import Imports
from .preload_trial import PreloadVerdict, reason_against, tried

RULES = 2  # of the trial; verdicts by others do not count
LONGEST = 16 << 20  # bytes of a file of verdicts
MOST_KEPT = 8  # files of verdicts
ABANDONED = 3600.0  # seconds after which a trial's folder is nobody's


@record
class KeptVerdicts(NamedTuple):
    """Verdicts with what they hang on.

    Attributes:
        verdicts: One for each name.
        paths: Files that were read, and folders that were searched.
        digest: Of the rules and of the state of all of these.
    """

    verdicts: Tuple[PreloadVerdict, ...] = field(many(PreloadVerdict))
    paths: Tuple[str, ...] = field(Fields.texts)
    digest: str = field(Fields.text)


def decode(data: bytes) -> KeptVerdicts:
    """What ``Preload`` has kept.

    Raises:
        ValueError: it is no such thing; nothing else.
    """
    return parsed(data, _read)


def _read(data: Any) -> KeptVerdicts:
    found = read_record(KeptVerdicts, data, "preload")
    for verdict in found.verdicts:
        for module in verdict.modules:
            if not all(part.isidentifier() for part in module.split(".")):
                raise ValueError("%r is no module" % module)
    return found


class Preload:
    """The packages that one fork server is to import.

    Args:
        state: The state folder.
        names: As the inventory has them.
    """

    def __init__(self, state: str, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.folder = folder_of(state)
        key = json.dumps([self.names, sys.executable, sys.path])
        self.path = os.path.join(self.folder, hashlib.sha256(key.encode()).hexdigest()[:32] + ".json")
        self.verdicts: Tuple[PreloadVerdict, ...] = ()
        self.imported: List[PreloadVerdict] = []

    def decide(self, meanwhile: Callable[[], None]) -> None:
        """Find the verdicts: those that are kept, else by a trial, while which ``meanwhile`` is called now and then.

        It is not kept: a server that holds what calls it would stay in each worker, which nothing collects.
        """
        kept = self._find() if self.names else None
        if kept:
            self.verdicts = kept.verdicts
            return
        if not self.names:
            return
        try:
            private_folder(os.path.dirname(self.folder))
            private_folder(self.folder)
            found, paths = tried(self.names, self.folder, meanwhile)
            self.verdicts = tuple(found)
            hook = getattr(sys.modules.get("sitecustomize"), "__file__", None)  # in the run's own folder, gone with it
            self._keep(sorted(paths - {hook}))
        except (OSError, Refused) as error:
            if not self.verdicts:  # else they are tried again next time
                reason = "it cannot be tried: %s" % error
                self.verdicts = tuple(PreloadVerdict(name, left_out=reason) for name in self.names)

    def load(self, verdict: PreloadVerdict, imports: Imports) -> None:
        """Import a package that has passed.

        Raises:
            RefusedError: it is not as it was when it was tried; from now on it is left out.
        """
        reason = reason_against(verdict.modules, imports)
        if reason:
            kept = self._find()
            if kept:
                changed = (one._replace(left_out=reason) if one.name == verdict.name else one for one in kept.verdicts)
                self._write(kept._replace(verdicts=tuple(changed)))
            raise RefusedError("%s: %s" % (verdict.name, reason))
        self.imported.append(verdict)

    def leave_out(self, reason: Callable[[PreloadVerdict], str]) -> None:
        """Leave out, of those that have passed, each for which there is a reason here."""
        self.verdicts = tuple(one if one.left_out else one._replace(left_out=reason(one)) for one in self.verdicts)

    @property
    def wanted(self) -> List[PreloadVerdict]:
        """Those that are to be imported."""
        return [one for one in self.verdicts if not one.left_out]

    @property
    def left_out(self) -> List[PreloadVerdict]:
        """The others."""
        return [one for one in self.verdicts if one.left_out]

    @property
    def not_to_be_had(self) -> FrozenSet[str]:
        """The top-level names of those that are left out."""
        return frozenset(name.partition(".")[0] for one in self.left_out for name in (one.name, *one.modules))

    def _find(self) -> Optional[KeptVerdicts]:
        """The verdicts that are kept, if they still hold."""
        try:
            with open(self.path, "rb") as stream:
                kept = decode(stream.read(LONGEST))
        except (OSError, ValueError):  # none, or damaged: the trial is made again
            return None
        same = tuple(one.name for one in kept.verdicts) == self.names
        return kept if same and kept.digest == digest(kept.paths, kept.verdicts) else None

    def _keep(self, paths: List[str]) -> None:
        self._write(KeptVerdicts(self.verdicts, tuple(paths), digest(paths, self.verdicts)))
        known = [os.path.join(self.folder, name) for name in os.listdir(self.folder)]
        oldest = sorted((path for path in known if path.endswith(".json")), key=os.path.getmtime)
        for path in oldest[:-MOST_KEPT]:
            with contextlib.suppress(OSError):
                os.unlink(path)
        for path in known:
            with contextlib.suppress(OSError):  # another's trial
                if not path.endswith(".json") and time.time() - os.path.getmtime(path) > ABANDONED:
                    os.rmdir(path)

    def _write(self, kept: KeptVerdicts) -> None:
        write_json(self.path, written(kept), durable=False)


def folder_of(state: str) -> str:
    """Where this host's verdicts are kept; other hosts may see the same state folder."""
    return os.path.join(state, "preload", os.uname().nodename)


def digest(paths: Iterable[str], verdicts: Iterable[PreloadVerdict]) -> str:
    """A digest of all that the verdicts hang on: the rules, the interpreter, files, and what folders provide."""
    asked = {name for one in verdicts for name in one.asks}
    there = [[path, import_state(path, asked)] for path in paths]
    return hashlib.sha256(json.dumps([RULES, sys.version, there]).encode()).hexdigest()


def clash_with(folders: Sequence[str], asks: Container[str], reads: Container[str]) -> str:
    """Why a project could see that packages were imported before its script began; empty if it could not.

    Args:
        folders: The first ones in its scripts' search path.
        asks: Top-level names of modules that the packages look for.
        reads: Variables that they read.
    """
    try:
        for folder in folders:
            refuse_shadows(folder, asks)
    except RefusedError as error:
        return str(error)
    write = mattering_write(folders, reads)
    return "%s, which is read when it is imported" % write if write else ""
