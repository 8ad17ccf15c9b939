"""Find the environment variables that a project's code sets, by parsing its source.

``os.environ["OMP_NUM_THREADS"] = "4"`` above ``import torch`` is common. It has no effect on what torch reads at its
import if torch was imported earlier, as in a fork server. Where the source does not tell which variable is set, any may
be. Installed packages are not examined.
"""

import ast
import os
from itertools import chain, islice
from typing import Callable, Container, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from .environ_reads import is_free

MAX_FILES, MAX_BYTES = 2000, 32 << 20
FIRST_ENTRIES = 200  # of a folder that a link leads to: more than a folder of code mostly has
SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages"}
MENTIONS = (b"environ", b"putenv", b"unsetenv", b"dotenv")
_WATCHED = {"environ", "environb", "putenv", "unsetenv", "load_dotenv", "dotenv_values"}
_READS = {"get", "items", "keys", "values", "copy"}
_COPIES = {"dict", "list", "set", "sorted", "len", "print", "str", "repr"}


class UnknownError(Exception):
    """The variables that the code sets cannot be determined; the message is the line number or the reason."""


def mattering_write(folders: Sequence[str], script: str = "", reads: Optional[Container[str]] = None) -> Optional[str]:
    """Return where a project's code sets a variable that may matter, as ``FILE:LINE sets NAME``; None if nowhere.

    Its code is what the folders hold, and the file ``script``, whose name may have any suffix. The variables that
    matter are those in ``reads`` or, with None, all that torch may read. If the files cannot be examined, the reason is
    returned.
    """
    try:
        for path in chain([script] if os.path.isfile(script) else [], project_files(folders)):
            found = _first_write_in(path, reads)
            if found:
                return found
    except (OSError, UnknownError) as error:
        return str(error)
    return None


def project_files(folders: Sequence[str]) -> Iterator[str]:
    """Yield the Python files below the folders, except in hidden folders, installed packages and environments.

    Raises UnknownError if there are more than ``MAX_FILES`` files, or ``MAX_BYTES`` bytes; OSError if a folder or file
    cannot be read.
    """
    files = size = 0
    for base, names in _code_folders(folders):
        for name in names:
            path = os.path.join(base, name)
            if not name.endswith(".py") or not os.path.isfile(path):
                continue
            files, size = files + 1, size + os.path.getsize(path)
            if files > MAX_FILES or size > MAX_BYTES:
                raise UnknownError("%s has too many Python files to look for variables in" % base)
            yield path


def _code_folders(folders: Sequence[str]) -> Iterator[Tuple[str, List[str]]]:
    """Yield once each folder that may hold code, and the names of its files; those behind links come last.

    Imports go through links too, but most lead to data: of those only folders that look like code are entered, and
    what cannot be read there is left out. Raises UnknownError if there are more than ``MAX_FILES`` of these.
    """
    behind_links = 0
    seen: Set[Tuple[int, int]] = set()
    todo: List[Tuple[str, Optional[Callable[[OSError], None]]]] = [(folder, _raise) for folder in sorted(set(folders))]
    for top, on_error in todo:  # which grows meanwhile
        for base, inside, names in os.walk(top, onerror=on_error):
            state = os.stat(base)
            new = (state.st_dev, state.st_ino) not in seen and "pyvenv.cfg" not in names
            seen.add((state.st_dev, state.st_ino))
            inside[:] = sorted(one for one in inside if new and one not in SKIPPED_FOLDERS and not one.startswith("."))
            below = (os.path.join(base, name) for name in inside)
            todo += [(path, None) for path in below if os.path.islink(path) and _looks_like_code(path)]
            if new:
                behind_links += on_error is None
                if behind_links > MAX_FILES:
                    raise UnknownError("%s has too many folders to look for variables in" % top)
                yield base, names


def _raise(error: OSError) -> None:
    raise error


def _looks_like_code(folder: str) -> bool:
    """Whether a folder, or one in it, has Python files among its first entries."""
    found = _first_entries(folder)
    below = (os.path.join(folder, name) for name in found if name.isidentifier())
    return any(name.endswith(".py") for name in (*found, *chain.from_iterable(map(_first_entries, below))))


def _first_entries(folder: str) -> List[str]:
    """Return the names of some entries of a folder; of none if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in islice(entries, FIRST_ENTRIES)]
    except OSError:
        return []


def _first_write_in(path: str, reads: Optional[Container[str]]) -> Optional[str]:
    """Return what ``mattering_write`` does, for one file."""
    with open(path, "rb") as stream:
        source = stream.read()
    if b"\0" in source and not path.endswith(".py"):  # a zip file with the code in it, or byte code
        raise UnknownError("%s is no source file, so it is unknown which variables it sets" % path)
    if not any(mention in source for mention in MENTIONS):
        return None
    try:
        lines = variables_set(source)
    except (SyntaxError, ValueError, RecursionError):  # Python 2, or a template: nothing imports it
        return None
    except UnknownError as error:
        return "%s:%s may set any variable" % (path, error)
    for name, line in sorted(lines.items(), key=lambda one: one[1]):
        if _matters(name) if reads is None else name in reads:
            return "%s:%d sets %s" % (path, line, name)
    return None


def _matters(name: str) -> bool:
    return name != "PYTHONHASHSEED" and not is_free(name)  # PYTHONHASHSEED is read before any code runs


def variables_set(source: bytes) -> Dict[str, int]:
    """Return the variables that the source sets or removes, with a line number of each.

    Raises SyntaxError, ValueError or RecursionError if it is not valid source for this version of Python; UnknownError
    if it may set any variable.
    """
    tree = ast.parse(source)
    above: Dict[ast.AST, ast.AST] = {below: node for node in ast.walk(tree) for below in ast.iter_child_nodes(node)}
    found: Dict[str, int] = {}
    for node in ast.walk(tree):
        for name in _variables_set_by(node, above):
            found.setdefault(name, getattr(node, "lineno", 0))
    return found


def _variables_set_by(node: ast.AST, above: Dict[ast.AST, ast.AST]) -> Set[str]:
    """Return the environment variables that one node of a file's syntax tree assigns."""
    called = _name(node)
    parent = above.get(node)
    if isinstance(node, ast.alias) and node.asname and node.name in _WATCHED:  # what is done by that name is not seen
        raise UnknownError(getattr(node, "lineno", getattr(parent, "lineno", 0)))  # before 3.10 it has no line
    if called in ("putenv", "unsetenv"):
        return _first_argument(parent, node)
    if called in ("load_dotenv", "dotenv_values"):
        raise UnknownError(getattr(node, "lineno", 0))
    if called not in ("environ", "environb") or parent is None:
        return set()
    if isinstance(parent, ast.Subscript) and parent.value is node:
        return set() if isinstance(parent.ctx, ast.Load) else {_constant(_index(parent), node)}
    if isinstance(parent, ast.Attribute):
        return _set_by_method(parent, above.get(parent), node)
    reads = isinstance(parent, (ast.Compare, ast.For, ast.comprehension)) or (
        (isinstance(parent, ast.keyword) and parent.arg == "env")
        or (isinstance(parent, ast.Call) and getattr(parent.func, "id", "") in _COPIES)  # not patch.dict
        or (isinstance(parent, ast.Dict) and node in parent.values)
    )
    if not reads:
        raise UnknownError(getattr(node, "lineno", 0))
    return set()


def _set_by_method(method: ast.Attribute, call: Optional[ast.AST], node: ast.AST) -> Set[str]:
    """Return the variables that a call of a method of os.environ sets."""
    if method.attr in _READS:
        return set()
    if method.attr in ("setdefault", "pop"):
        return _first_argument(call, method)
    if method.attr == "update" and isinstance(call, ast.Call):
        names: List[Optional[ast.AST]] = []
        for given in call.args:
            names += given.keys if isinstance(given, ast.Dict) else [None]
        return {_constant(name, node) for name in names} | {_text(keyword.arg, node) for keyword in call.keywords}
    raise UnknownError(getattr(node, "lineno", 0))


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _first_argument(call: Optional[ast.AST], function: ast.AST) -> Set[str]:
    if isinstance(call, ast.Call) and call.func is function and call.args:
        return {_constant(call.args[0], function)}
    raise UnknownError(getattr(function, "lineno", 0))


def _index(node: ast.Subscript) -> ast.AST:
    return getattr(node.slice, "value", node.slice) if type(node.slice).__name__ == "Index" else node.slice  # 3.8


def _constant(node: Optional[ast.AST], origin: ast.AST) -> str:
    """Return the text of a node that is a constant; raises UnknownError for any other."""
    return _text(getattr(node, "value", None) if isinstance(node, ast.Constant) else None, origin)


def _text(value: object, origin: ast.AST) -> str:
    if isinstance(value, bytes):
        value = os.fsdecode(value)
    if not isinstance(value, str):
        raise UnknownError(getattr(origin, "lineno", 0))
    return value
