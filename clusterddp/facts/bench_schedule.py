"""Schedules for the benchmark: rounds of pairs in which no host occurs twice, so that none shares its network."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    Pair = tuple[str, str]
    Round = tuple[Pair, ...]
    Group = tuple[str, ...]

ALL_PAIRS_HOSTS = 3  # of three hosts all pairs are the groups; fewer hosts have no groups
SAMPLED_HOSTS = 32  # of more hosts than this, a sample of the rounds comes first


def all_rounds(hosts: Sequence[str]) -> list[Round]:
    """Every pair once: N - 1 rounds for an even number of hosts, N with one host pausing in each for an odd one."""
    circle = _Circle(hosts)
    return [circle.pairs(number) for number in range(circle.rounds)]


def first_rounds(hosts: Sequence[str]) -> list[Round]:
    """All rounds; of many hosts about log2 N of them, evenly spread, so that each is measured with some others."""
    if len(hosts) <= SAMPLED_HOSTS:
        return all_rounds(hosts)
    circle, count = _Circle(hosts), len(hosts).bit_length()
    return [circle.pairs(number * circle.rounds // count) for number in range(count)]


def suspect_rounds(hosts: Sequence[str], suspects: Collection[str], measured: Collection[Pair]) -> list[Round]:
    """Rounds of the pairs that have a suspect (a host of a slow pair) and are not measured yet."""
    measured_pairs = {frozenset(pair) for pair in measured}
    circle = _Circle(hosts)
    remaining = [
        tuple(pair for pair in circle.pairs_of(suspects, number) if frozenset(pair) not in measured_pairs)
        for number in range(circle.rounds)
    ]
    return [pairs for pairs in remaining if pairs]


class _Circle:
    """The hosts, and a pause for an odd number of them, at places on a circle; each place faces one other.

    The first host stays; from round to round all others move on by a place, until every two have faced each other.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts: list[str | None] = [*hosts, None] if len(hosts) % 2 else [*hosts]
        self._index = {host: index for index, host in enumerate(hosts)}
        self.rounds = max(0, len(self._hosts) - 1)

    def pairs(self, number: int) -> Round:
        """All pairs of a round."""
        return self._pairs_at(range(len(self._hosts) // 2), number)

    def pairs_of(self, hosts: Collection[str], number: int) -> Round:
        """The pairs of a round in which one of some hosts is."""
        places = [self._place(self._index[host], number) for host in hosts]
        return self._pairs_at(sorted({min(place, self.rounds - place) for place in places}), number)

    def _place(self, index: int, number: int) -> int:
        return 1 + (index - 1 + number) % self.rounds if index else 0

    def _host(self, place: int, number: int) -> str | None:
        return self._hosts[1 + (place - 1 - number) % self.rounds if place else 0]

    def _pairs_at(self, places: Iterable[int], number: int) -> Round:
        facing = [(self._host(place, number), self._host(self.rounds - place, number)) for place in places]
        return tuple((one, other) for one, other in facing if one is not None and other is not None)


def first_groups(hosts: Sequence[str]) -> list[Group]:
    """The groups tried first: pairs of neighbours; the last of an odd number has three hosts; of three hosts all pairs.

    Empty for two hosts or fewer: a group cannot show which of two hosts is at fault.
    """
    if len(hosts) <= ALL_PAIRS_HOSTS:
        return [pair for turn in all_rounds(hosts) for pair in turn] if len(hosts) == ALL_PAIRS_HOSTS else []
    pairs: list[Group] = [tuple(hosts[index : index + 2]) for index in range(0, len(hosts) - len(hosts) % 2, 2)]
    return [*pairs[:-1], (*pairs[-1], hosts[-1])] if len(hosts) % 2 else pairs


def second_groups(first: Sequence[Group], bad: Collection[Group]) -> list[Group]:
    """Groups that isolate the faulty host of a slow group: each of its hosts with one of a fast group.

    Good hosts are used several times if there are too few. Empty if no group was bad, or none was good: then nothing
    can be concluded.
    """
    good = list(dict.fromkeys(host for group in first if group not in bad for host in group))
    suspects = dict.fromkeys(host for group in first if group in bad for host in group if host not in good)
    return [(host, good[index % len(good)]) for index, host in enumerate(suspects)] if good else []


def faulty_hosts(groups: Sequence[Group], bad: Collection[Group]) -> list[str]:
    """The hosts in two groups or more that were all bad; empty if no group was good."""
    if all(group in bad for group in groups):
        return []
    bad_by_host: dict[str, list[bool]] = {}
    for group in groups:
        for host in group:
            bad_by_host.setdefault(host, []).append(group in bad)
    return [host for host, outcomes in bad_by_host.items() if len(outcomes) > 1 and all(outcomes)]


def turns_of(groups: Sequence[Group]) -> list[list[Group]]:
    """Divide groups into turns so that no host is in two groups of one turn."""
    turns: list[list[Group]] = []
    for group in groups:
        free = (turn for turn in turns if not any(set(group) & set(other) for other in turn))
        turn = next(free, None)
        if turn is None:
            turns.append([group])
        else:
            turn.append(group)
    return turns
