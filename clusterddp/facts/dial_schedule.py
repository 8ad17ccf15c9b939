"""Chooses whom each host dials: all others, or of many hosts a few by which any faulty host is found.

Dialling all pairs grows with the square of the number of hosts: a thousand make two million connections. So of more
than ALL_PAIRS_HOSTS hosts a pair is dialled, always both ways, for one of these reasons:

- one of the two is the first node, which every node of a run connects to;
- NCCL would connect them as its ring's or its two trees' neighbours: in inventory order, which is the ranks' order with
  a static rendezvous, and in order of the addresses as text, which it is with c10d;
- no other pair connects their two subnets, or connects two hosts of their one subnet;
- one of them has fewer than PARTNERS others yet.

So every host dials, and is dialled by, at least PARTNERS others: whatever one host does to all packets that it sends,
or to all that it receives, fails on all of these. A fault of a single pair shows only if the pair is dialled.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from clusterddp.facts.host import Interface

    Schedule = Mapping[str, tuple[str, ...]]  # the hosts that each host dials, in inventory order

ALL_PAIRS_HOSTS = 32  # of so many hosts or fewer all pairs are dialled
PARTNERS = 8  # other hosts that each host dials at least, besides the first node
_HOST_ROUTE_BITS = {4: 31, 6: 127}  # a network of such a prefix has one link or one host, and tells no place
_PLACE_BITS = {4: 24, 6: 64}  # then the prefix that is taken for a subnet
_GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, lie far from each other


@lru_cache(maxsize=4)
def some_others(names: tuple[str, ...]) -> Schedule:
    """The others that each host is asked about, where no network is known: all, or of many hosts a few."""
    return partners(names, names, dict.fromkeys(names, ""))


def connected(seen: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """From what each host sees of others: all that it is connected with by a chain of such sights, in order."""
    neighbours: dict[str, set[str]] = {name: set() for name in seen}
    for name, others in seen.items():
        for other in neighbours.keys() & set(others):
            neighbours[name].add(other)
            neighbours[other].add(name)
    found: dict[str, tuple[str, ...]] = {}
    for name in seen:
        if name in found:
            continue
        group, waiting = {name}, [name]
        while waiting:
            new = neighbours[waiting.pop()] - group
            group |= new
            waiting += new
        members = [one for one in seen if one in group]
        found |= {one: tuple(other for other in members if other != one) for one in members}
    return found


def dial_schedule(where: Mapping[str, Interface], *, all_pairs: bool = False) -> Schedule:
    """Whom each host dials on a network; ``where`` has the hosts' interfaces there, in inventory order."""
    by_address = sorted(where, key=lambda name: where[name].address)
    subnets = {name: _subnet(one) for name, one in where.items()}
    return partners(list(where), by_address, subnets, all_pairs=all_pairs)


def partners(
    names: Sequence[str], other_order: Sequence[str], groups: Mapping[str, str], *, all_pairs: bool = False
) -> Schedule:
    """The hosts that each of ``names`` dials.

    ``other_order`` has the same names in another order; ``groups`` has each one's group, such as its subnet: any two
    groups are connected by a pair.
    """
    if all_pairs or len(names) <= ALL_PAIRS_HOSTS:
        return {name: tuple(other for other in names if other != name) for name in names}
    chosen = _Pairs(names)
    for other in names[1:]:
        chosen.add(names[0], other)
    for order in (names, other_order):
        for rank, neighbour in _neighbours(len(order)):
            chosen.add(order[rank], order[neighbour])
    _add_groups(chosen, groups)
    _fill_up(chosen, names)
    index = {name: number for number, name in enumerate(names)}
    return {name: tuple(sorted(chosen.of[name], key=lambda other: index[other])) for name in names}


class _Pairs:
    """The chosen pairs, as each host's set of others."""

    def __init__(self, names: Sequence[str]) -> None:
        self._first = names[0]
        self.of: dict[str, set[str]] = {name: set() for name in names}

    def add(self, one: str, other: str) -> None:
        if one != other:
            self.of[one].add(other)
            self.of[other].add(one)

    def lacks(self, name: str) -> bool:
        """Whether a host has too few others yet."""
        return len(self.of[name]) - (self._first in self.of[name]) < PARTNERS


def _neighbours(count: int) -> Iterator[tuple[int, int]]:
    """The pairs of ranks, one a node, between which NCCL sends in its ring and its two trees.

    The second tree is the first one mirrored, or with an odd number of nodes shifted by one, so that inner nodes of one
    are leaves of the other.
    """
    for rank in range(count):
        yield rank, (rank + 1) % count
        if rank:
            parent = _tree_parent(rank, count)
            yield rank, parent
            yield ((rank + 1) % count, (parent + 1) % count) if count % 2 else (count - 1 - rank, count - 1 - parent)


def _tree_parent(rank: int, count: int) -> int:
    """A rank's parent in a binary tree whose leaves are the odd ranks, and whose root is 0."""
    lowest = rank & -rank
    parent = (rank ^ lowest) | (lowest << 1)
    return parent if parent < count else rank ^ lowest


def _add_groups(chosen: _Pairs, groups: Mapping[str, str]) -> None:
    """Add a pair for every two groups, and within each, that no pair connects yet; in turn by other members."""
    members: dict[str, list[str]] = {}
    for name, group in groups.items():
        members.setdefault(group, []).append(name)
    joined = {frozenset((groups[one], groups[other])) for one, others in chosen.of.items() for other in others}
    turn = dict.fromkeys(members, 0)
    for one, other in combinations_with_replacement(members, 2):
        if frozenset((one, other)) in joined:
            continue
        pair = []
        for group in (one, other):
            pair.append(members[group][turn[group] % len(members[group])])
            turn[group] += 1
        chosen.add(*pair)


def _fill_up(chosen: _Pairs, names: Sequence[str]) -> None:
    """Give every host enough others, at distances that differ from round to round."""
    for turn in range(1, len(names)):
        lacking = [number for number, name in enumerate(names) if chosen.lacks(name)]
        if not lacking:
            return
        distance = 2 + int(turn * _GOLDEN % 1 * (len(names) - 3))
        for number in lacking:
            other = names[(number + distance) % len(names)]
            # in the last rounds there is nobody left who has too few, too
            if chosen.lacks(names[number]) and (chosen.lacks(other) or turn > PARTNERS):
                chosen.add(names[number], other)


def _subnet(interface: Interface) -> str:
    """The subnet of an address; of a point-to-point link, or an address of a host route, the usual wider one."""
    prefix, family = interface.prefix, interface.family
    network = interface.network
    if prefix >= _HOST_ROUTE_BITS[family]:
        network = network.supernet(new_prefix=_PLACE_BITS[family])
    return str(network)
