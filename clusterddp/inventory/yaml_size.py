"""How large a value a YAML text makes: an alias or a merge key stands for all that its anchor holds.

A few lines of aliases of aliases mean a thousand million values. They are shared while they are read, but whoever walks
through them, to write, redact or compare them, meets each of them; merge keys are copied as they are read. So the
nodes are counted as often as they would be met, each looked at once, before anything is made of them.
"""

from __future__ import annotations

from typing import NamedTuple

import yaml

from clusterddp.errors import InventoryError

MOST_MORE = 500_000  # values that aliases may add: 20,000 hosts that each merge 25 variables
MOST_LETTERS = 16 << 20  # letters that they may add
DEEPEST = 100  # levels, through aliases too: whoever walks through a value goes down with it
_HUGE = 1 << 62  # numbers are counted up to here: they double with every line


class _Size(NamedTuple):
    values: int
    letters: int
    depth: int


def refuse_expanded(root: yaml.Node, shown: str, length: int) -> None:
    """Raise for nodes whose aliases make a huge value.

    Args:
        root: The nodes of a text.
        shown: How errors name it.
        length: Of the text, in letters.

    Raises:
        InventoryError: They do; it names the line of the first node that is too large.
    """
    sizes = _Sizes()
    sizes.of(root)
    for node, size in sizes.found:
        where = f"{shown}:{node.start_mark.line + 1}"
        remedy = "write fewer aliases (*) and merges (<<)"
        if size.values > MOST_MORE + len(sizes.found):
            much = f"more than {MOST_MORE:,} values" if size.values == _HUGE else f"{size.values:,} values"
            raise InventoryError(f"its aliases make {much} of {len(sizes.found):,}", where=where, remedy=remedy)
        if size.letters > MOST_LETTERS + length:
            raise InventoryError(f"its aliases make {size.letters >> 20:,} MiB of text", where=where, remedy=remedy)
        if size.depth > DEEPEST:
            raise InventoryError(f"is nested deeper than {DEEPEST} levels by its aliases", where=where, remedy=remedy)


class _Sizes:
    """The sizes of nodes, each found once: an anchor stands before its aliases, so what is inside is known by then."""

    def __init__(self) -> None:
        self.found: list[tuple[yaml.Node, _Size]] = []  # from the inside outwards
        self._known: dict[int, _Size] = {}

    def of(self, node: yaml.Node) -> _Size:
        known = self._known.get(id(node))
        if known is not None:
            return known
        self._known[id(node)] = _Size(0, 0, 0)  # of one that contains itself, which whoever reads it refuses
        size = self._counted(node)
        self._known[id(node)] = size
        self.found.append((node, size))
        return size

    def _counted(self, node: yaml.Node) -> _Size:
        if isinstance(node, yaml.MappingNode):
            inner = [self.of(one) for pair in node.value for one in pair]
        elif isinstance(node, yaml.SequenceNode):
            inner = [self.of(one) for one in node.value]
        else:
            return _Size(1, len(node.value), 0)
        values = min(_HUGE, 1 + sum(size.values for size in inner))
        letters = min(_HUGE, sum(size.letters for size in inner))
        return _Size(values, letters, 1 + max((size.depth for size in inner), default=0))
