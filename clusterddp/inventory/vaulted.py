"""Finds individually encrypted values (``!vault``) in a YAML text, and replaces them by plain ones."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from clusterddp.inventory.yamlfile import VAULT_TAGS, compose

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

_ANCHOR = re.compile(r"(?:!\S+\s+)?(&\S+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Vaulted:
    """An encrypted value, and its first and last position in the text."""

    text: str = field(repr=False)
    start: int
    end: int


def vaulted_values(text: bytes, names: Collection[str]) -> Iterator[Vaulted]:
    """The encrypted values in a YAML text under keys of these names, at any depth below them, in order."""
    node = compose(text.decode(), "the file", yaml.SafeLoader)  # it was parsed before, so errors need no name
    found = {value.start: value for value in _vaulted_below(node, names, under_name=False)} if node else {}
    for start in sorted(found):
        yield found[start]


def _vaulted_below(node: Any, names: Collection[str], *, under_name: bool) -> Iterator[Vaulted]:
    """Yield the encrypted values in a node; ``under_name``: it is under a key of these names itself."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _vaulted_below(value, names, under_name=under_name or key.value in names)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _vaulted_below(value, names, under_name=under_name)
    elif under_name and node.tag in VAULT_TAGS:
        yield Vaulted(text=node.value, start=node.start_mark.index, end=node.end_mark.index)


def replace_values(text: bytes, values: Sequence[Vaulted], plain: Sequence[str]) -> bytes:
    """The text with plain values in place of the encrypted ones."""
    whole = text.decode()
    parts, position = [], 0
    for value, new in zip(values, plain, strict=True):
        old = whole[value.start : value.end]
        anchor = _ANCHOR.match(old)
        ending = "\n" if old.endswith("\n") else ""  # a block scalar includes its last line break
        parts += [whole[position : value.start], anchor[1] + " " if anchor else "", _quoted(new), ending]
        position = value.end
    return "".join([*parts, whole[position:]]).encode()


def _quoted(text: str) -> str:
    return str(yaml.safe_dump(text, default_style='"', width=len(text) * 10 + 80)).strip()
