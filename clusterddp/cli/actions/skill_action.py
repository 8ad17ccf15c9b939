"""``clusterddp skill``: print what a coding agent has to know, or write it where agents look for skills."""

from __future__ import annotations

import hashlib
from pathlib import Path

import click

from clusterddp.cli.output import say
from clusterddp.errors import UsageError
from clusterddp.project import project_folder
from clusterddp.project.user_folders import user_path

_PACKAGE = Path(__file__).parents[2]
# A wheel has it inside the package, a source tree at the top.
_PLACES = (_PACKAGE / "SKILL.md", _PACKAGE.parent / "SKILL.md")
# The last line of an installed file: by its digest one that nobody has edited is known, and replaced by a newer one.
_MARK = "<!-- clusterddp skill --install wrote this; unchanged: {} -->\n"
_FILE_MODE = 0o644


def act(folder: Path | None) -> int:
    """Print or install the skill; return 0. Raises UsageError where a file that was edited would be overwritten."""
    text = next(path for path in _PLACES if path.is_file()).read_text(encoding="utf-8")
    if folder is None:
        click.echo(text, nl=False)
        return 0
    path = user_path(str(folder)) / "clusterddp" / "SKILL.md"
    existing, new = _existing(path), _marked(text)
    if existing == new:
        say(f"{path} is up to date")
        return 0
    if existing is not None and not _is_unedited(existing):
        raise UsageError(
            f"{path} has been edited and is not overwritten",
            remedy="`clusterddp skill` prints this version's, to compare; move yours away first",
        )
    _write(path, new)
    say(f"wrote {path}" if existing is None else f"{path} was of another version and is replaced")
    return 0


def _existing(path: Path) -> bytes | None:
    """Return the content of an existing file; None if there is no file."""
    try:
        return project_folder.read(path)
    except FileNotFoundError:
        return None
    except OSError as error:  # a link, a folder, no permission
        reason = "is a link" if path.is_symlink() else f"cannot be read ({error.strerror})"
        raise UsageError(f"{path} {reason}", remedy="move it away, or name another folder") from None


def _marked(text: str) -> bytes:
    body = text.encode()
    return body + _mark(body)


def _is_unedited(content: bytes) -> bool:
    """Whether a file is as a version of clusterddp wrote it."""
    body = b"".join(content.splitlines(keepends=True)[:-1])
    return content == body + _mark(body)


def _mark(body: bytes) -> bytes:
    return _MARK.format(hashlib.sha256(body).hexdigest()[:12]).encode()


def _write(path: Path, content: bytes) -> None:
    with project_folder.raise_unwritable(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with project_folder.unfinished_file(path.parent, [content]) as new:
            new.chmod(_FILE_MODE)
            new.replace(path)
