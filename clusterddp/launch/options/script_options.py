"""Guess from a project's Python and YAML files whether its script may read an option."""

# Names are bytes here, because a file name may not be valid text; pathlib does not support that.
# ruff: noqa: PTH116, PTH118, PTH123
from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

from clusterddp.errors import SyncError
from clusterddp.sync.project_files.gitignore import walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from clusterddp.project.project import Project

_SUFFIXES = (b".py", b".yaml", b".yml")
_SKIPPED_FOLDERS = frozenset((b".git", b".clusterddp", b"__pycache__", b"node_modules"))
_MAX_FILES = 20_000
_MAX_BYTES = 64 * 2**20  # of all files together
# Parsers that derive option names from signatures, classes or elsewhere, or accept any name.
_OPEN_PARSER = re.compile(
    rb"^[ \t]*(?:from|import)\s[^\n#]*\b"
    rb"(?:hydra|fire|tyro|jsonargparse|typer|absl|cyclopts|simple_parsing|tap|pyrallis|draccus|chz|pydantic_settings|"
    rb"sacred)\b"
    rb"|\b(?:HfArgumentParser|TrlParser|LightningCLI|add_argparse_args|from_cli)\b",
    re.MULTILINE,
)


def is_in_project(script: str, project: Project, *, module: bool) -> bool:
    """Whether SCRIPT, or with ``module`` the module of that name, is a file of the project."""
    folder = project.root / project.subfolder
    path = script.replace(".", "/") if module else script
    names = (f"{path}.py", f"{path}/__init__.py", f"{path}/__main__.py") if module else (path,)
    return any((folder / name).is_file() and (folder / name).resolve().is_relative_to(project.root) for name in names)


def unread_options(options: Iterable[str], project: Project) -> frozenset[str]:
    """Return those long options that no file of the project mentions; empty if that cannot be determined.

    It cannot if a file of the project uses a parser with open names, if a file cannot be read, or if there is too much
    to read.
    """
    patterns = {option: _mention(option) for option in options}
    try:
        for text in _texts(os.fsencode(project.root)) if patterns else ():
            if _OPEN_PARSER.search(text):
                return frozenset()
            patterns = {option: pattern for option, pattern in patterns.items() if not pattern.search(text)}
            if not patterns:
                break
    except (OSError, SyncError):
        return frozenset()
    return frozenset(patterns)


def _mention(option: str) -> re.Pattern[bytes]:
    """Match an option in a program or configuration: ``--dry-run``, ``"dry_run"``, or ``dry_run:`` (a field, a key)."""
    name = re.sub(rb"[-_]", rb"[-_]", option.removeprefix("--").encode())
    return re.compile(rb"--" + name + rb"(?![\w-])|([\"'])" + name + rb"\1|^\s*" + name + rb"\s*:", re.MULTILINE)


def _texts(root: bytes) -> Iterator[bytes]:
    """Yield the content of each Python and YAML file that git does not ignore; raises OSError or SyncError."""
    size = 0
    for count, name in enumerate(walk(root, _SKIPPED_FOLDERS)):
        if count >= _MAX_FILES:
            raise OSError
        path = os.path.join(root, name)
        if not name.lower().endswith(_SUFFIXES) or not stat.S_ISREG(os.stat(path).st_mode):
            continue
        with open(path, "rb") as stream:
            text = stream.read(_MAX_BYTES)
        size += len(text)
        if size >= _MAX_BYTES:
            raise OSError
        yield text
