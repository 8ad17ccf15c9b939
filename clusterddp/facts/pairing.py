"""Who is measured with whom, and when: rounds of pairs in which no host is twice, so that no card is shared.

Pure. The circle method: one host stays, the others go round; every pair meets exactly once.

Not here: measuring (clusterddp/bench.py), what the speeds mean (speeds.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    Pair = tuple[str, str]
    Round = tuple[Pair, ...]

MANY = 32  # hosts; from more on a sample of the rounds comes first


def all_rounds(hosts: Sequence[str]) -> list[Round]:
    """Every pair once: N - 1 rounds for an even number of hosts, N with one host pausing in each for an odd one."""
    circle: list[str | None] = [*hosts, None] if len(hosts) % 2 else [*hosts]
    rounds: list[Round] = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        facing = zip(circle[:half], reversed(circle[half:]), strict=True)
        rounds.append(tuple((one, other) for one, other in facing if one is not None and other is not None))
        circle[1:] = [circle[-1], *circle[1:-1]]
    return rounds


def first_rounds(hosts: Sequence[str]) -> list[Round]:
    """All rounds; of many hosts about log2 N of them, evenly spread, so that each is measured with some others."""
    rounds = all_rounds(hosts)
    if len(hosts) <= MANY:
        return rounds
    count = len(hosts).bit_length()
    return [rounds[number * len(rounds) // count] for number in range(count)]


def rows_of(hosts: Sequence[str], suspects: Collection[str], measured: Collection[Pair]) -> list[Round]:
    """The rounds that are left to measure the suspects with everybody."""
    known = {frozenset(pair) for pair in measured}
    left = [
        tuple(pair for pair in one if set(pair) & set(suspects) and frozenset(pair) not in known)
        for one in all_rounds(hosts)
    ]
    return [one for one in left if one]


def second_round(first: Sequence[tuple[str, ...]], bad: Collection[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Groups that tell which host of a bad group is at fault: each of its hosts with hosts of good groups alone.

    Args:
        first: The groups of the first round.
        bad: Those of them that failed or were slow.

    Returns:
        One group for each host of a bad group, as far as there are good hosts to go with them; a good host is
        taken again where there are too few. Empty where no group was good: nothing can be told apart.
    """
    good = [host for group in first if group not in bad for host in group]
    doubtful = [host for group in first if group in bad for host in group]
    return [(host, good[place % len(good)]) for place, host in enumerate(doubtful)] if good else []


def neighbours(hosts: Sequence[str]) -> list[tuple[str, ...]]:
    """The groups of the first round: two neighbours each, and three in the last where the number is odd."""
    if len(hosts) < 4:
        return [tuple(hosts)] if len(hosts) > 1 else []
    pairs = [tuple(hosts[place : place + 2]) for place in range(0, len(hosts) - len(hosts) % 2, 2)]
    return [*pairs[:-1], (*pairs[-1], hosts[-1])] if len(hosts) % 2 else pairs


def at_once(groups: Sequence[tuple[str, ...]]) -> list[list[tuple[str, ...]]]:
    """Groups in as few turns as it takes that no host is in two groups of one turn."""
    turns: list[list[tuple[str, ...]]] = []
    for group in groups:
        free = (turn for turn in turns if not any(set(group) & set(other) for other in turn))
        turn = next(free, None)
        if turn is None:
            turns.append([group])
        else:
            turn.append(group)
    return turns


def twice_bad(
    first: Collection[tuple[str, ...]], second: Sequence[tuple[str, ...]], again: Collection[tuple[str, ...]]
) -> list[str]:
    """The hosts at fault: in a bad group of the first round, and again with good hosts in the second.

    Args:
        first: The bad groups of the first round.
        second: All groups of the second; the doubtful host stands first.
        again: Those of them that were bad.
    """
    doubtful = {host for group in first for host in group}
    return [group[0] for group in second if group in again and group[0] in doubtful]
