"""The files below a folder outside git, without those that its .gitignore files match, by git's own rules."""

# Names are bytes, because a file name may be no valid text; pathlib has text only.
# ruff: noqa: PTH118
from __future__ import annotations

import itertools
import os
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import SyncError
from clusterddp.project.project_folder import read
from clusterddp.remote.shared.wire.partial_files import PARTS_FOLDER
from clusterddp.remote.shared.workdir.manifest import as_text
from clusterddp.text.paths import shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pathspec import GitIgnoreSpec

    Rules = tuple[tuple[bytes, GitIgnoreSpec], ...]  # folders and their .gitignore, the outermost first

_GITIGNORE = b".gitignore"
_MAX_GITIGNORE = 1 << 20  # bytes
# Of pathspec's regular expressions: a star and what stands before the next one of that name; a ** and the names before
# the next one.
_STAR = re.compile(r"\[\^/\]\*((?:\[\^/\](?![*+])|[^/])*?)(?=\[\^/\]\*)")
_STARS = re.compile(r"(\(\?:\.\+/\)\?|\(\?:/\.\+\)\?)(.*?)(?=\(\?:/\.\+\)\?)")


def walk(root: bytes, excluded: Collection[bytes]) -> Iterator[bytes]:
    """Yield the paths of all files not ignored; skip folders named in ``excluded``.

    Parts of unfinished transfers are skipped, too; of a virtual environment comes only the file that tells it is one.
    """
    pending: list[tuple[bytes, Rules]] = [(b"", ())]
    while pending:
        inside, rules = pending.pop()
        try:
            with os.scandir(os.path.join(root, inside)) as scanned:
                entries = sorted(scanned, key=lambda entry: entry.name)
        except OSError as error:
            raise unreadable(inside, error) from error
        names = {entry.name for entry in entries}
        if _GITIGNORE in names:
            rules = (*rules, *_rules_of(root, inside))
        if b"pyvenv.cfg" in names and inside:
            entries = [entry for entry in entries if entry.name == b"pyvenv.cfg"]
        for entry in entries:
            path = os.path.join(inside, entry.name)
            folder = entry.is_dir(follow_symlinks=False)
            excluded_folder = folder and (entry.name in excluded or entry.name.startswith(PARTS_FOLDER))
            if excluded_folder or _ignored(path, rules, folder=folder):
                continue
            if folder:
                pending.append((path, rules))
            else:
                yield path


def rule_for(path: str) -> str:
    """Return the rule of the project's .gitignore that matches this path alone."""
    escaped = re.sub(r"[\\*?\[]", r"\\\g<0>", path)
    return f"/{escaped[:-1]}\\ " if escaped.endswith(" ") else f"/{escaped}"


def unreadable(name: bytes, error: OSError) -> SyncError:
    """Build the error for something in the project that cannot be read."""
    return SyncError(
        f"{shown(as_text(name)) or '.'}: cannot be read ({error.strerror})",
        remedy="make it readable, or keep it out of the sync with .gitignore",
    )


def _ignored(path: bytes, rules: Rules, *, folder: bool) -> bool:
    """Whether a path is ignored: by the last rule that matches, in the innermost .gitignore that has one."""
    for base, spec in reversed(rules):
        relative = as_text(path[len(base) + 1 if base else 0 :])
        found = spec.check_file(relative + "/" if folder else relative).include
        if found is not None:
            return found
    return False


def _rules_of(root: bytes, folder: bytes) -> Rules:
    """Read a folder's .gitignore; empty if that is a folder. As in git, an invalid pattern is skipped."""
    path = os.path.join(folder, _GITIGNORE)
    whole_path = Path(os.fsdecode(os.path.join(root, path)))
    if os.path.isdir(whole_path):  # noqa: PTH112 - Path's raises
        return ()
    try:
        lines = as_text(read(whole_path, _MAX_GITIGNORE, follow_link=True)).splitlines()
    except OSError as error:
        raise unreadable(path, error) from error
    return ((folder, _spec([line for line in lines if _is_pattern(line)])),)


def _is_pattern(line: str) -> bool:
    """Whether a line of a .gitignore is valid."""
    try:
        _spec([line])
    except ValueError:
        return False
    return True


def _spec(lines: list[str]) -> GitIgnoreSpec:
    """Compile patterns; ``ValueError`` if one is invalid."""
    from pathspec import GitIgnoreSpec  # noqa: PLC0415 - in a git project git itself is asked

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # Python warns of sets such as `[[]`
        spec = GitIgnoreSpec.from_lines(lines)
        for pattern in spec.patterns:
            linear = _linear(pattern.regex.pattern) if pattern.regex else ""
            if pattern.regex and linear != pattern.regex.pattern:
                pattern.regex = re.compile(linear)
    return spec


def _linear(expression: str) -> str:
    """Return an expression of pathspec's such that its time does not grow with a power of the number of its stars.

    What stands between two stars is matched where it comes first, and nowhere else: the second takes all the rest.
    """
    numbers = itertools.count()

    def match_once(part: str) -> str:
        name = f"part{next(numbers)}"
        return f"(?=(?P<{name}>{part}))(?P={name})"  # an atomic group, which Python has from 3.11

    expression = _STAR.sub(lambda found: match_once(f"[^/]*?{found[1]}"), expression)
    return _STARS.sub(lambda found: match_once(f"{found[1].replace('+', '+?')}?{found[2]}(?=/)"), expression)
