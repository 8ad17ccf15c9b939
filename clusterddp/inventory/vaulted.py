"""Finds what is encrypted in a YAML text, single values (``!vault``) or the whole, and replaces it by plain text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from clusterddp.inventory.variables.variable_names import USED, settings
from clusterddp.inventory.yaml_values import Marked
from clusterddp.inventory.yamlfile import (
    VAULT_HEADER,
    VAULT_TAGS,
    compose,
    decode,
    is_json,
    join_surrogates,
    syntax_error,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

_ANCHOR = re.compile(r"(?:!\S+\s+)?(&\S+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Vaulted:
    """An encrypted value, and its first and last position in the text."""

    text: str = field(repr=False)
    start: int
    end: int


def is_encrypted(text: bytes) -> bool:
    """Whether a file is encrypted as a whole."""
    return text.startswith(VAULT_HEADER.encode())


def vaulted_values(text: bytes, names: Collection[str], shown: str) -> Iterator[Vaulted]:
    """The encrypted values in a YAML text under keys of these names, at any depth below them, in order.

    A text that is encrypted as a whole is one value. Raises ``InventoryError``, which names the file as ``shown``, if
    it is not YAML.
    """
    if is_encrypted(text):
        yield Vaulted(text=text.decode(), start=0, end=len(text))
        return
    whole = text.decode("utf-8-sig")
    if is_json(whole):  # it has no tags
        return
    try:
        node = compose(whole, shown)
    except yaml.YAMLError as error:
        raise syntax_error(error, whole, shown) from None
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
    whole = text.decode("utf-8-sig")  # as `vaulted_values` counts
    parts, position = [], 0
    for value, new in zip(values, plain, strict=True):
        old = whole[value.start : value.end]
        anchor = _ANCHOR.match(old)
        ending = "\n" if old.endswith("\n") else ""  # a block scalar includes its last line break
        parts += [whole[position : value.start], anchor[1] + " " if anchor else "", _quoted(new), ending]
        position = value.end
    return "".join([*parts, whole[position:]]).encode()


def only_used(text: bytes, shown: str) -> bytes:
    """The variables that we use, of a file of variables that was encrypted; the others may be secrets of Ansible's."""
    data = decode(text, shown).data
    if not isinstance(data, Marked):
        return text
    settings(data)  # raises for a misspelled name
    node = compose(as_yaml(text).decode(), shown)
    yaml.constructor.SafeConstructor().flatten_mapping(node)  # the merge key <<, whose values come first
    node.value = list({key.value: (key, value) for key, value in node.value if key.value in USED}.values())
    return str(yaml.serialize(node, Dumper=yaml.SafeDumper, allow_unicode=True)).encode()


def as_yaml(text: bytes) -> bytes:
    """The text, without a byte order mark; YAML if it is JSON, each scalar as it is written."""
    whole = text.decode("utf-8-sig")
    if not is_json(whole):
        return whole.encode()
    events = list(yaml.parse(whole.replace("\t", " "), yaml.SafeLoader))
    for event in events:
        if isinstance(event, yaml.ScalarEvent):
            event.value = join_surrogates(event.value)  # libyaml reads no pair that is escaped
    return str(yaml.emit(events, Dumper=yaml.SafeDumper, allow_unicode=True)).encode()


def _quoted(text: str) -> str:
    return str(yaml.safe_dump(text, default_style='"', width=len(text) * 10 + 80)).strip()
