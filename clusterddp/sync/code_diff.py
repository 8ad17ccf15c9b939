"""Compares two versions of a project's code, file by file and line by line, as far as they are kept (code_store.py)."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.remote.shared.workdir import manifest
from clusterddp.sync import code_store
from clusterddp.text.paths import shown
from clusterddp.text.units import human_size

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from clusterddp.project.project import Project
    from clusterddp.remote.shared.workdir.manifest import Entry

_MAX_BYTES = 1 << 20  # the lines of larger files are not compared


@dataclass(frozen=True, kw_only=True, slots=True)
class FileDiff:
    """One file that differs."""

    path: str  # as shown in messages
    change: Literal["added", "removed", "changed"]
    lines: tuple[str, ...] = ()  # a unified diff; empty if its lines cannot be compared
    note: str = ""  # why they cannot, in a few words


def code_diff(project: Project, old: str, new: str) -> tuple[FileDiff, ...] | None:
    """The files that differ between two versions, named by digest, in order; None if one of them is not kept here."""
    before, after = code_store.load(project, old), code_store.load(project, new)
    if before is None or after is None:
        return None
    entries = {entry.path: entry for entry in before}, {entry.path: entry for entry in after}
    differing = code_store.changes(before, after)
    paths = sorted((*differing.added, *differing.removed, *differing.changed))
    return tuple(_file_diff(project, path, *entries) for path in paths)


def _file_diff(project: Project, path: str, before: Mapping[str, Entry], after: Mapping[str, Entry]) -> FileDiff:
    old, new = before.get(path), after.get(path)
    name = shown(path)
    lines, note = _lines(project, name, old, new)
    return FileDiff(
        path=name, change="added" if old is None else "removed" if new is None else "changed", lines=lines, note=note
    )


def _lines(project: Project, name: str, old: Entry | None, new: Entry | None) -> tuple[tuple[str, ...], str]:
    """The diff of a file's lines, or why there is none."""
    if old and new and (old.kind, old.content) == (new.kind, new.content):
        return (), "executable now" if new.executable else "no longer executable"
    texts = []
    for entry in (old, new):
        if entry is None:
            texts.append("")
        elif entry.kind == manifest.LINK:
            texts.append(f"link to {shown(entry.content)}\n")
        elif entry.size > _MAX_BYTES:
            return (), f"large: {_sizes(old, new)}"
        else:
            data = code_store.content(project, entry)
            if data is None:
                return (), "its lines are no longer kept"
            try:
                texts.append(data.decode())
            except UnicodeDecodeError:
                return (), f"no text: {_sizes(old, new)}"
    before, after = (text.splitlines() for text in texts)
    diff = difflib.unified_diff(
        before, after, f"a/{name}" if old else "/dev/null", f"b/{name}" if new else "/dev/null", lineterm=""
    )
    return tuple(diff), ""


def _sizes(old: Entry | None, new: Entry | None) -> str:
    return " → ".join(human_size(entry.size) for entry in (old, new) if entry)
