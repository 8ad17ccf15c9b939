"""Find which packages a script may import, by the words in its project's import statements; no code is executed."""

import os
import re
import sys
from importlib.machinery import PathFinder
from typing import Dict, List, Sequence, Set

from .environ_writes import UnknownError, project_files

# a change of sys.path other than by append, which puts a folder behind all installed packages
_SEARCH_PATH = re.compile(rb"\bsys\s*\.\s*path\b(?!\s*\.\s*append\b)|\bfrom\s+sys\s+import\b|\baddsitedir\b")
IMPORT_LINE = re.compile(rb"^[ \t]*(?:from|import)[ \t]+([^\n#]+)", re.MULTILINE)


def needs_packages(argv: Sequence[str], folders: Sequence[str]) -> bool:
    """Whether a script may import a package other than Python's own and the project's; True if in doubt."""
    own = os.path.dirname(os.__file__)
    search = [path for path in sys.path if path not in (*folders, own, own + "/lib-dynload")]
    try:
        words = script_words(argv, folders)
        if "-m" in argv[1:3] and not words:
            return True
        return any(PathFinder.find_spec(word, search) for word in words)
    except (OSError, ImportError, UnknownError, ValueError):
        return True


def script_words(argv: Sequence[str], folders: Sequence[str]) -> Set[str]:
    """Return all words in import statements of a worker's script and of the project's files that it may import by them.

    Raises OSError, UnknownError or ValueError if the project's files cannot be read, or are too many.
    """
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
            more = import_words(path) - words
            words |= more
            todo += [other for word in more for other in by_name.get(word, ())]
    return words


def folders_put_first(folders: Sequence[str]) -> List[str]:
    """Return the project folders that its code may insert into sys.path before site-packages; mostly none.

    Raises OSError or UnknownError if the project's files cannot be read, or are too many.
    """
    files = list(project_files(folders))
    if not any(_SEARCH_PATH.search(_content(path)) for path in files):
        return []
    found = {os.path.dirname(path) for path in files}
    found |= {os.path.dirname(folder) for folder in found if folder not in folders}  # a package's own folder
    return sorted(found)


def _content(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read()


def import_words(path: str) -> Set[str]:
    """Return all words in the import statements of a Python file; raises OSError if it cannot be read."""
    lines = IMPORT_LINE.findall(_content(path))
    return {word.decode("utf-8", "replace") for line in lines for word in re.findall(rb"\w+", line)}
