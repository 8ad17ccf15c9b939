"""Host patterns of ``--limit``, with Ansible's meaning: ``a:b``, ``a,b``, ``&a``, ``!a``, ``a*``, ``~a.``, ``g[0:2]``.

A range of host names as an inventory spells it, ``gpu[02:05]``, is accepted too, since our own messages name hosts so.
After a group's name it is Ansible's range of positions in the group, unless it has leading zeros, which no position
has. A part that matches nothing is ignored as in Ansible, but reported.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import InventoryError
from clusterddp.inventory.ranges import expand, split_port
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

_SUBSCRIPT = re.compile(r"(?P<base>.+)\[(?:(?P<one>-?[0-9]+)|(?P<first>[0-9]+)[:-](?P<last>[0-9]*))\]")
_PADDED = re.compile(r"\[0[0-9]")
_SPECIAL = frozenset(".?*[")


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSelection:
    """The hosts that a pattern selects, in the pattern's own order, and notices about parts that match nothing."""

    hosts: tuple[str, ...]
    notices: tuple[str, ...]


def select(pattern: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]]) -> HostSelection:
    """Evaluate a host pattern.

    ``hosts`` are all host names in order; ``groups`` each group's hosts in order, with ``all`` and ``ungrouped``.
    ``@file`` in the pattern reads one pattern per line. Raises ``InventoryError`` for a bad regular expression, a
    subscript beyond the hosts, or a missing ``@file``.
    """
    chosen: list[str] = []
    notices: list[str] = []
    for part in _order_parts(_read_parts(pattern)):
        sign, name = (part[0], part[1:]) if part[0] in "!&" else ("", part)
        found = [part] if part in hosts else _match(name, hosts, groups)
        range_hosts = _hosts_of_range(name, hosts)
        if range_hosts and found and found != range_hosts and _SUBSCRIPT.fullmatch(name):
            found, notice = _choose_reading(pattern, name, found, range_hosts)
            notices.append(notice)
        elif range_hosts:  # also where Ansible would read [1:3] as a set of characters
            found = range_hosts
        if not found and name not in groups:
            notices.append(_no_match_notice(pattern, name, (*groups, *hosts)))
        matched = set(found)
        if sign == "!":
            chosen = [host for host in chosen if host not in matched]
        elif sign == "&":
            chosen = [host for host in chosen if host in matched]
        else:
            chosen.extend(found)
    return HostSelection(hosts=tuple(dict.fromkeys(chosen)), notices=tuple(notices))


def _read_parts(pattern: str) -> list[str]:
    """Split a pattern into its parts, with those of the files that it names by ``@file``."""
    parts: list[str] = []
    for part in _split(pattern):
        parts.extend(_from_file(part[1:]) if part.startswith("@") else [part])
    if any(not part.lstrip("!&~") for part in parts):
        raise InventoryError(f"limit {pattern!r} has a sign with no name behind it", remedy="write !name or &name")
    return parts


def _split(pattern: str) -> list[str]:
    """Split at commas; else at colons outside brackets, unless the whole is one address (``::1``, ``gpu[1:3]``)."""
    if "," in pattern:
        parts = pattern.split(",")
    elif split_port(pattern):
        parts = [pattern]
    else:
        parts = re.split(r"[:\s]+(?![^\[]*\])", pattern)
    return [part.strip() for part in parts if part.strip()]


def _from_file(name: str) -> list[str]:
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise InventoryError(
            f"limit file {name!r} cannot be read", remedy="write @ before a file with one pattern a line"
        ) from None
    return [line.strip() for line in lines if line.strip()]


def _order_parts(parts: list[str]) -> list[str]:
    """Order the parts by their effect: first what adds, then ``&``, then ``!``, wherever they stand."""
    adding = [part for part in parts if part[0] not in "!&"]
    keeping = [part for part in parts if part[0] == "&"]
    removing = [part for part in parts if part[0] == "!"]
    return [*(adding or ["all"]), *keeping, *removing]


def _match(name: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The hosts of the groups that match a part without its sign, and matching hosts, as Ansible chooses them."""
    subscript = None if name.startswith("~") else _SUBSCRIPT.fullmatch(name)
    base = subscript["base"] if subscript else name
    matches = _matcher(base)
    in_groups = [group for group in groups if matches(group)]
    found = [host for group in in_groups for host in groups[group]]
    if not in_groups or base.startswith("~") or _SPECIAL.intersection(base):
        found.extend(host for host in hosts if matches(host))
    return _apply_subscript(found, subscript, name) if subscript and found else found


def _hosts_of_range(name: str, hosts: Sequence[str]) -> list[str]:
    """The hosts of a range spelled as in an inventory; empty if any of them does not exist."""
    if "[" not in name or name.startswith("~"):
        return []
    try:
        names = expand(name, "")[0]
    except InventoryError:  # it is another kind of pattern
        return []
    return names if set(hosts).issuperset(names) else []


def _choose_reading(pattern: str, name: str, positions: list[str], range_hosts: list[str]) -> tuple[list[str], str]:
    """Choose between a range's two meanings after a group's name: names if it has leading zeros, else positions."""
    by_name = bool(_PADDED.search(name))
    found, not_chosen = (range_hosts, positions) if by_name else (positions, range_hosts)
    how = ("by name", "by their places in the group") if by_name else ("by their places in the group", "by name")
    return (
        found,
        f"limit {pattern!r}: {name!r} is {folded_names(found)}, {how[0]}; {how[1]} it were {folded_names(not_chosen)}",
    )


def _matcher(base: str) -> Callable[[str], object]:
    """The test of a name against a shell pattern, or after ``~`` a regular expression."""
    try:
        return re.compile(base[1:] if base.startswith("~") else fnmatch.translate(base)).match
    except re.error as error:
        raise InventoryError(
            f"limit {base!r} is not a regular expression: {error}", remedy="quote it, and escape \\ ( [ *"
        ) from None


def _apply_subscript(found: list[str], subscript: re.Match[str], name: str) -> list[str]:
    """The hosts at the positions of ``[0]``, ``[0:2]`` or ``[0:]``; ``name`` is for the error."""
    first = int(subscript["one"] or subscript["first"])
    if subscript["one"] is None and not subscript["last"]:
        return found[first:]
    last = int(subscript["last"] or 0)
    if last:
        return found[first : last + 1]
    try:
        return [found[first]]  # also for [n:0], which means [n] in Ansible
    except IndexError:
        raise InventoryError(
            f"limit {name!r} asks for a host that is not there: {subscript['base']} has {len(found)}",
            remedy="count from 0, or from -1 backwards",
        ) from None


def _no_match_notice(pattern: str, name: str, existing: Collection[str]) -> str:
    close = get_close_matches(name, existing, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"limit {pattern!r}: {name!r} matches no host or group{hint}"
