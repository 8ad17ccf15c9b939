"""Values of a YAML or JSON file that know where they stand: for messages, and for variables that are read as written.

Ordinary values are Python's. A mapping is :class:`Marked`; what has a tag of Ansible's (``!vault``, ``!unsafe``) is
:class:`Opaque`. inventory/yamlfile.py makes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from clusterddp.errors import InventoryError


@dataclass(frozen=True, kw_only=True, slots=True)
class Opaque:
    """A tagged value that only Ansible can interpret: ``kind`` is ``vault`` or ``unsafe``."""

    kind: str
    text: str = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One variable's value, and where it stands.

    ``text`` is a scalar exactly as written (``0010``, ``yes``, ``1:30:00``), else None.
    """

    key: str
    value: Any = field(repr=False)
    text: str | None = field(repr=False)
    file: str
    line: int

    @property
    def where(self) -> str:
        """The place as ``file:line:key``."""
        return f"{self.file}:{self.line}:{self.key}"


class Marked(dict[Any, Any]):
    """A mapping that knows its line, and the line and text of each key's value."""

    __slots__ = ("duplicates", "file", "line", "lines", "texts")

    def __init__(self, file: str, line: int) -> None:
        super().__init__()
        self.file = file
        self.line = line
        self.lines: dict[Any, int] = {}
        self.texts: dict[Any, str] = {}
        self.duplicates: list[tuple[Any, int, int]] = []  # key, its line, the earlier line

    def where(self, key: object) -> str:
        """The place of one of its keys, as ``file:line:key``."""
        shown = key if str(key).isprintable() else repr(key)  # no terminal escapes in an error
        return f"{self.file}:{self.lines.get(key, self.line)}:{shown}"

    def setting(self, key: str) -> Setting:
        """The value under a key, with its place."""
        line = self.lines.get(key, self.line)
        return Setting(key=key, value=self[key], text=self.texts.get(key), file=self.file, line=line)


def plain(value: Any) -> Any:
    """A copy as ordinary dicts and lists, without file and line, which every copier and encoder accepts."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def refuse_duplicates(mapping: Marked, kind: str, *, only: frozenset[str] | None = None) -> None:
    """Raise for the first duplicate key (among ``only``), as one of the two values would be lost."""
    for key, line, earlier in mapping.duplicates:
        if only is None or key in only:
            raise InventoryError(
                f"{kind} {key!r} is given twice, first at line {earlier}",
                where=f"{mapping.file}:{line}:{key}",
                remedy="keep one of the two, or join them",
            )
