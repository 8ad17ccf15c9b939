"""Limits the size of the value that a YAML text makes: an alias or merge key stands for all that its anchor holds.

A few lines of aliases of aliases can mean a thousand million values. They are shared in memory, but code that walks
through them, to write, redact or compare them, meets each of them; merge keys are copied when read. So before anything
is made of the nodes, they are counted as often as they would be met, visiting each only once.
"""

from __future__ import annotations

from typing import NamedTuple

import yaml

from clusterddp.errors import InventoryError

MAX_ALIAS_VALUES = 500_000  # values that aliases may add: 20,000 hosts that each merge 25 variables
MAX_ALIAS_LETTERS = 16 << 20  # letters that aliases may add
MAX_DEPTH = 100  # levels, through aliases too: code that walks through a value recurses
_HUGE = 1 << 62  # counts stop here, as each line of aliases can double them


class _Size(NamedTuple):
    values: int
    letters: int
    depth: int


def refuse_expanded(root: yaml.Node, shown: str, length: int) -> None:
    """Raise ``InventoryError`` if aliases make a huge value; it names the line of the first node that is too large."""
    sizes = _Sizes()
    sizes.of(root)
    for node, size in sizes.found:
        where = f"{shown}:{node.start_mark.line + 1}"
        remedy = "write fewer aliases (*) and merges (<<)"
        if size.values > MAX_ALIAS_VALUES + len(sizes.found):
            amount = f"more than {MAX_ALIAS_VALUES:,} values" if size.values == _HUGE else f"{size.values:,} values"
            raise InventoryError(f"its aliases make {amount} of {len(sizes.found):,}", where=where, remedy=remedy)
        if size.letters > MAX_ALIAS_LETTERS + length:
            raise InventoryError(f"its aliases make {size.letters >> 20:,} MiB of text", where=where, remedy=remedy)
        if size.depth > MAX_DEPTH:
            raise InventoryError(f"is nested deeper than {MAX_DEPTH} levels by its aliases", where=where, remedy=remedy)


class _Sizes:
    """The sizes of nodes, each computed once; an anchor precedes its aliases, so the size inside is known by then."""

    def __init__(self) -> None:
        self.found: list[tuple[yaml.Node, _Size]] = []  # inner nodes before outer ones
        self._known: dict[int, _Size] = {}

    def of(self, node: yaml.Node) -> _Size:
        """The size of the value that a node makes."""
        known = self._known.get(id(node))
        if known is not None:
            return known
        self._known[id(node)] = _Size(0, 0, 0)  # for a node that contains itself, refused when it is read
        size = self._count(node)
        self._known[id(node)] = size
        self.found.append((node, size))
        return size

    def _count(self, node: yaml.Node) -> _Size:
        if isinstance(node, yaml.MappingNode):
            inner = [self.of(one) for pair in node.value for one in pair]
        elif isinstance(node, yaml.SequenceNode):
            inner = [self.of(one) for one in node.value]
        else:
            return _Size(1, len(node.value), 0)
        values = min(_HUGE, 1 + sum(size.values for size in inner))
        letters = min(_HUGE, sum(size.letters for size in inner))
        return _Size(values, letters, 1 + max((size.depth for size in inner), default=0))
