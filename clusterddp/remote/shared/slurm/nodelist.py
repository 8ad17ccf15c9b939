"""Expand Slurm's lists of node names, such as ``gpu[01-03,07],login1``, in their order. Pure."""

import re
from typing import List, Tuple

MAX_NODES = 1 << 16  # names; a longer list is refused
MAX_DIGITS = 9  # digits of a number
MAX_BRACKETS = 8  # brackets in one name
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_PART = re.compile(r"[^\[\],\s]*(?:\[[0-9,-]*\][^\[\],\s]*)*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def expand_nodelist(text: str) -> Tuple[str, ...]:
    """Expand a Slurm node list to its names; raises ValueError."""
    names: List[str] = []
    offset = 0
    while offset < len(text):
        part = _PART.match(text, offset)
        if not part or not part.group():
            raise ValueError("%r is no list of nodes" % text[:80])
        names += _expand(part.group())
        if len(names) > MAX_NODES:
            raise ValueError("a list of more than %d nodes" % MAX_NODES)
        offset = part.end()
        if text[offset : offset + 1] == ",":
            offset += 1
            if offset == len(text):
                raise ValueError("%r is no list of nodes: it ends in a comma" % text[-80:])
    if not names or not all(map(_NAME.fullmatch, names)):
        raise ValueError("%r is no list of nodes" % text[:80])
    return tuple(names)


def _expand(part: str) -> List[str]:
    """Expand one comma-separated part, which may hold several brackets."""
    before, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    if part.count("[") > MAX_BRACKETS:
        raise ValueError("%r is no name of nodes" % part[:80])
    inside, _, after = rest.partition("]")
    tails = _expand(after)
    numbers: List[str] = []
    for item in inside.split(","):
        numbers += _numbers(item)
        if len(numbers) * len(tails) > MAX_NODES:
            raise ValueError("a list of more than %d nodes" % MAX_NODES)
    return [before + number + tail for number in numbers for tail in tails]


def _numbers(text: str) -> List[str]:
    """Expand ``07`` or ``01-03``, padded with zeros as the first number is."""
    found = _RANGE.fullmatch(text)
    if not found:
        raise ValueError("%r is no range of numbers" % text[:80])
    first, last = found.group(1), found.group(2) or found.group(1)
    if max(len(first), len(last)) > MAX_DIGITS or not int(first) <= int(last) < int(first) + MAX_NODES:
        raise ValueError("%r is no range of numbers" % text[:80])
    return ["%0*d" % (len(first), number) for number in range(int(first), int(last) + 1)]
