"""What a run's own fork server imports besides torch: packages that the script names, learned and tried before.

A warm server has tried them after an earlier run (worker/learning.py); here nothing is tried again. One that is not as
it was then is remembered, and this run's workers are started plainly.

Not here: what a warm server imports (worker/warm_server.py).
"""

import os
import re
import sys
from importlib.machinery import PathFinder
from typing import Callable, Dict, List, Optional, Sequence, Set

from ..spool.layout import Spool
from . import learned
from .environment_writes import UnknownError, project_files
from .fork_checks import RefusedError
from .fork_imports import Imports
from .import_trial import reason_against
from .learned import Learned, Package
from .learning import clash_with, digest, import_words


class Ahead:
    """The packages that one run's fork server is to have.

    Args:
        spool: The node's.
        folders: The project's.
        words: Of ``script_words``.
        tell: Takes ``ahead NAME`` and ``left NAME: REASON``.
    """

    def __init__(
        self, spool: str, folders: Sequence[str], words: Optional[Set[str]], tell: Callable[[str], object]
    ) -> None:
        run = Spool(spool)
        plan = run.readable_plan()
        self.state, self.folders, self.words, self.tell = run.state, folders, words, tell
        key = learned.key_of(plan.workdir) if plan and not plan.program else ""
        self.known = (learned.find(self.state, key) if key else None) or Learned(workdir="")

    def packages(self) -> List[Package]:
        """Those of the learned ones that the script names, if all is as it was when they were tried."""
        words = self.words
        if words is None or not self.known.named or self.known.tried != digest(self.known):
            return []
        named = [one for one in self.known.packages if one.name in words and one.name in self.known.named]
        for one in named:
            if one.left_out:
                self.tell("left %s: %s" % (one.name, one.left_out))
        wanted = [one for one in named if not one.left_out]
        # With a package come others: what these look for and read counts too.
        asks = {name for one in self.known.packages for name in one.asks}
        reads = {name for one in self.known.packages for name in one.reads}
        clash = clash_with(self.folders, asks, reads) if wanted else ""
        for one in wanted if clash else ():
            self.tell("left %s: %s" % (one.name, clash))
        return [] if clash else wanted

    def load(self, package: Package, imports: Imports) -> None:
        """Import it.

        Raises:
            RefusedError: it is not as it was when it was tried.
        """
        before = set(imports.reads)
        reason = reason_against(package, imports)
        more = {name for one in self.known.packages for name in one.reads}
        if not reason and imports.reads - before - more:
            reason = clash_with(self.folders, (), imports.reads)
        if reason:
            changed = [one._replace(left_out=reason) if one is package else one for one in self.known.packages]
            learned.keep(self.state, self.known._replace(packages=tuple(changed)))
            raise RefusedError("%s: %s" % (package.name, reason))
        self.tell("ahead %s" % package.name)


def script_words(argv: Sequence[str], folders: Sequence[str]) -> Optional[Set[str]]:
    """All words in import statements of a script, and of the project's files that it may import by those.

    None where the project's files cannot be read, or are too many.

    Args:
        argv: A worker's command line.
        folders: The project's.
    """
    try:
        return _words(argv, folders)
    except (OSError, UnknownError, ValueError):
        return None


def _words(argv: Sequence[str], folders: Sequence[str]) -> Set[str]:
    by_name: Dict[str, List[str]] = {}
    for path in project_files(folders):
        for part in re.findall(r"\w+", path[: -len(".py")]):
            by_name.setdefault(part, []).append(path)
    script = [word for word in argv[1:] if word != "-u"]
    module = script[1].split(".") if script[:1] == ["-m"] else []
    todo = [path for part in module for path in by_name.get(part, ())] if module else [os.path.abspath(script[0])]
    words: Set[str] = set()
    seen: Set[str] = set()
    while todo:
        path = todo.pop()
        if path not in seen:
            seen.add(path)
            more = import_words([path]) - words
            words |= more
            todo += [other for word in more for other in by_name.get(word, ())]
    return words


def needs_packages(argv: Sequence[str], folders: Sequence[str], words: Optional[Set[str]]) -> bool:
    """Whether a script may import a package that is neither Python's own nor the project's; True if in doubt.

    Args:
        argv: A worker's command line.
        folders: The project's.
        words: Of ``script_words``.
    """
    own = os.path.dirname(os.__file__)
    search = [path for path in sys.path if path not in (*folders, own, own + "/lib-dynload")]
    if words is None or ("-m" in argv[1:3] and not words):
        return True
    try:
        return any(PathFinder.find_spec(word, search) for word in words)
    except (OSError, ImportError, ValueError):
        return True
