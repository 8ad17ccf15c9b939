"""Which packages are imported before a project's next run is forked: those that its last one had, if that is harmless.

Run by a warm server while no run needs it, in a fork that ends: what it imports and reads stays nowhere.

A package stays while runs have it at their end. One that was imported before the fork they have in any case; so when
the project names one of them no longer all are forgotten, and its next run shows anew what it imports.

Not here: how it is kept (worker/learned.py), the trial of a package (worker/import_trial.py).
"""

import glob
import hashlib
import json
import os
import re
import sys
from typing import Container, Dict, Iterable, List, NoReturn, Optional, Sequence, Set, Tuple

from ..shared.plan import NodePlan
from ..spool.layout import Spool
from . import learned
from .environment_writes import UnknownError, mattering_write, project_files
from .fork_checks import RefusedError, file_state, first_folders, import_state, refuse_shadows
from .import_trial import tried
from .installed import installed
from .learned import Learned, Package

IMPORT_LINE = re.compile(rb"^[ \t]*(?:from|import)[ \t]+([^\n#]+)", re.MULTILINE)
NICE = 10


class Runs:
    """What a warm server needs to revise what it imports.

    Args:
        state: The state folder.
        key: The project's (learned.key_of); empty: none.
        base: The modules that are there before any package is imported for a project.
        here: The working folder's name.
    """

    def __init__(self, state: str, key: str, base: Container[str], here: str) -> None:
        self.state, self.key, self.base, self.here = state, key, base, here

    def revise(self, spool: str, *, trial: bool) -> int:
        """Begin to make up what its next run is to have, in a process of its own; the pid of that.

        Args:
            spool: Of the run that has just ended; empty: of none.
            trial: Whether this process has imported nothing for a project yet, so that packages can be tried.
        """
        child = os.fork()
        if not child:
            self._revise(spool, trial=trial)
        return child

    def _revise(self, spool: str, *, trial: bool) -> NoReturn:
        try:
            os.nice(NICE)
            known = self.after(spool)
            if known:
                if trial and known.tried != digest(known):
                    learned.keep(self.state, known)
                    notes = learned.path_of(self.state, self.key) + ".trial"
                    known = known._replace(packages=tuple(tried(known.packages, self.here, notes)))
                    known = known._replace(tried=digest(known))
                learned.keep(self.state, _without_clashes(known))
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - nothing is learned then
            sys.stderr.write("nothing is learned: %r\n" % error)
        finally:
            os._exit(1)

    def after(self, spool: str) -> Optional[Learned]:
        """What is known of the project once the run has ended."""
        known = learned.find(self.state, self.key)
        run = Spool(spool)
        plan = run.readable_plan() if spool else None
        told = _imported(run) if spool else None
        if told is None or plan is None or learned.key_of(plan.workdir) != self.key:
            return known
        packages = packages_of(told, self.base)
        folders = _folders(plan)
        words = _project_words(folders)
        if known and words is not None and set(known.named) - words:
            packages = []
        named = sorted(one.name for one in packages if words and one.name in words)
        if known and packages and _modules(packages) <= _modules(known.packages):
            packages = list(known.packages)  # in the order that they were tried in
        found = Learned(
            workdir=plan.workdir, folders=folders, secrets=plan.secrets, packages=tuple(packages), named=tuple(named)
        )
        return _with_verdicts_of(known, found) if known else found

    def wanted(self) -> Optional[Learned]:
        """What is to be imported now; None: nothing, or it was not tried as it is."""
        known = learned.find(self.state, self.key) if self.key else None
        return known if known and known.wanted and known.tried == digest(known) else None

    def begins_anew(self, packages: Sequence[Package]) -> bool:
        """Whether a server that has imported these packages is to have others, or there are some to be tried."""
        known = learned.find(self.state, self.key)
        if known and known.packages and known.tried != digest(known):
            return True
        wanted = self.wanted()
        return [(one.name, one.modules) for one in (wanted.wanted if wanted else ())] != [
            (one.name, one.modules) for one in packages
        ]


def _modules(packages: Iterable[Package]) -> Set[str]:
    return {name for one in packages for name in one.modules}


def _with_verdicts_of(known: Learned, found: Learned) -> Learned:
    """With the verdicts of its last trial, where they are of the same packages."""
    if [(one.name, one.modules) for one in found.packages] != [(one.name, one.modules) for one in known.packages]:
        return found
    return found._replace(packages=known.packages, tried=known.tried)


def digest(known: Learned) -> str:
    """A digest of all that the verdicts hang on: the packages, and what is installed of all that they look for.

    Other files may come and go: an editable installation has a project's own folder in ``sys.path``.
    """
    packages = [[one.name, one.modules] for one in known.packages]
    asked = {name for one in known.packages for name in (one.name, *one.asks)}
    there = [[path, installed_state(path, asked)] for path in sys.path]
    return hashlib.sha256(json.dumps([sys.version, packages, there]).encode()).hexdigest()


def installed_state(folder: str, asked: Container[str]) -> object:
    """What an entry of ``sys.path`` provides of the names, with what changes when it does; and which distributions."""
    found = import_state(folder, asked)
    if not found or not os.path.isdir(folder):
        return found
    return [[entry, file_state(os.path.join(folder, str(entry)))] for entry in found]


def packages_of(modules: Iterable[str], base: Container[str]) -> List[Package]:
    """The installed packages among modules, those of ``base`` left out."""
    found: Dict[str, List[str]] = {}
    for name in modules:
        if name not in base:
            found.setdefault(name.partition(".")[0], []).append(name)
    there = installed(found, sys.path)
    return [Package(name=name, modules=tuple(inside)) for name, inside in found.items() if name in there]


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


def _without_clashes(known: Learned) -> Learned:
    asks = {name for one in known.packages for name in one.asks}
    reads = {name for one in known.packages for name in one.reads}
    clashes = clash_with(known.folders, asks, reads)  # mostly there is none
    packages = []
    for one in known.packages:
        secret = next((name for name in one.reads if name in known.secrets), "")
        clash = "it reads %s, a secret, when it is imported" % secret if secret else ""
        if clashes and not clash:
            clash = clash_with(known.folders, one.asks, one.reads)
        packages.append(one._replace(clash=clash))
    return known._replace(packages=tuple(packages))


def _imported(run: Spool) -> Optional[List[str]]:
    """What the newest of the run's attempts here has told."""
    pattern = run.in_attempt(0, "").folder
    places = glob.glob(os.path.join(glob.escape(os.path.dirname(os.path.dirname(pattern))), "*", "*-" + run.host))
    return learned.imported_in(max(places, key=_changed)) if places else None


def _changed(spool: str) -> int:
    return (file_state(os.path.join(spool, learned.IMPORTED)) or (0, 0, 0, 0))[3]


def _folders(plan: NodePlan) -> Tuple[str, ...]:
    """The first folders in the search path of the run's script, and its working folder."""
    before = os.getcwd()
    os.chdir(plan.cwd)
    try:
        return tuple(dict.fromkeys([plan.cwd, *first_folders([plan.python, *plan.worker_argv])]))
    finally:
        os.chdir(before)


def _project_words(folders: Sequence[str]) -> Optional[Set[str]]:
    """All words in import statements of the project's files; None where these cannot be read."""
    try:
        return import_words(project_files(folders))
    except (OSError, UnknownError):
        return None


def import_words(paths: Iterable[str]) -> Set[str]:
    """All words in import statements of Python files.

    Raises:
        OSError: one cannot be read.
    """
    words: Set[bytes] = set()
    for path in paths:
        with open(path, "rb") as stream:
            for line in IMPORT_LINE.findall(stream.read()):
                words.update(re.findall(rb"\w+", line))
    return {word.decode("utf-8", "replace") for word in words}
