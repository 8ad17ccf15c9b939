"""Judge which rank of a run the others wait for in each step, from the times at which ranks called operations. Pure.

A step counts once, by the first operation after a wait: one that no rank calls before all ranks have called the
operation before it. Of those the ones that follow the longest times of work begin the steps; the buckets of DDP, and
what follows a wait at once, carry the lateness of the step's first operation. A rank is late by what it comes after the
second-latest rank: where all ranks are slow on too few cores, no rank stands out from the second-latest.
"""

from statistics import median
from typing import Dict, FrozenSet, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..text.shortening import few
from .hang_judge import UNDECIDED

MIN_EXCESS_NS = 5_000_000  # after the second-latest rank
SPREADS = 3  # times the spread of the other ranks that a late rank must exceed
WINDOWS = 3  # in each of which it must be late
MIN_STEPS = 5  # of a window
MIN_STEPS_IN_TURN = 15  # of a window for ranks that are late in turn, as noise makes them too in few steps
MAX_CHANCE = 1e-4  # that one of two equal ranks is the last as often by chance
MIN_SPAN_NS = 6_000_000_000  # that the windows last together
MAX_GAP = 20  # times the median time of work that a longer one counts, as a pause for a checkpoint does
MIN_SHARE = 0.1  # of the steps in which each of the ranks that are late in turn is the last one
CLOCK_DRIFT = 50e-6  # of a clock against another, at most: seconds a second
MAX_REASON = 3  # ranks that a reason names

ALWAYS, IN_TURN, NOBODY = "always", "in-turn", "nobody"

Times = Mapping[int, Mapping[int, int]]  # sequence number → rank → ns when it called the operation


class Clock(NamedTuple):
    """The clock that a rank's times are of: its host, and how far the correction of its offset may be wrong."""

    host: str
    error_ns: int = 0


class GroupTimes(NamedTuple):
    """When the ranks of one process group called its operations, by one clock as far as possible."""

    name: str
    members: FrozenSet[int]
    times: Times


class LateRanks(NamedTuple):
    """Who the others wait for: ``kind`` is ALWAYS, IN_TURN, NOBODY or UNDECIDED."""

    kind: str
    ranks: Tuple[int, ...] = ()  # those that are late
    excess_ms: float = 0.0  # the median time after the second-latest rank
    share: float = 0.0  # of the steps in which one of them was the last
    steps: int = 0  # that were judged
    reason: str = ""  # why it is undecided


class _Step(NamedTuple):
    """The first operation of a step: when each member called it, in the order of their ranks."""

    work_ns: int  # between the end of the wait and the first call
    calls: Tuple[int, ...]


def judge(
    groups: Iterable[GroupTimes],
    clocks: Mapping[int, Clock],
    *,
    silent: Sequence[int] = (),
    crowded: Sequence[str] = (),
    busy: bool = False,
) -> LateRanks:
    """Judge all groups of a run.

    ``clocks``: of each rank that answers. ``silent``: ranks that do not. ``crowded``: hosts with more ranks than cores.
    ``busy``: processes wait for cores on one of the hosts, so that ranks are late in turn whatever they do.
    """
    if crowded:
        return _undecided("more ranks than cores on %s" % few(list(map(str, crowded)), MAX_REASON))
    if silent:
        one, several = "rank %s does not say when it calls operations", "ranks %s do not say when they call operations"
        return _undecided((several if len(silent) > 1 else one) % few(list(map(str, silent)), MAX_REASON))
    if len(clocks) < 2:
        return _undecided("one rank waits for nobody" if clocks else "no rank says when it calls operations")
    known = [group for group in groups if len(group.members) > 1 and group.members <= set(clocks)]
    return _together([(group, _judge_group(group, clocks)) for group in known], busy=busy)


def lateness_ms(group: GroupTimes) -> Dict[int, float]:
    """The median time by which each member comes after the first in the newest steps; empty while there are none."""
    steps = [(min(step.calls), step.calls) for step in _steps(group, 0)[-WINDOWS * MIN_STEPS :]]
    members = sorted(group.members) if steps else []
    return {rank: median(calls[place] - first for first, calls in steps) / 1e6 for place, rank in enumerate(members)}


def _undecided(reason: str) -> LateRanks:
    return LateRanks(UNDECIDED, reason=reason)


def _together(found: Sequence[Tuple[GroupTimes, LateRanks]], *, busy: bool) -> LateRanks:
    """What all groups say together: a rank that waits for a late one in another group comes late to its own."""
    late = [(group, one) for group, one in found if one.kind == ALWAYS]
    named = {rank: one for _, one in late for rank in one.ranks}
    behind = {rank for group, one in late for rank in group.members.difference(one.ranks)}
    ranks = tuple(sorted(rank for rank in named if rank not in behind))
    if ranks:
        most = max((named[rank] for rank in ranks), key=lambda one: one.excess_ms)
        return most._replace(ranks=ranks)
    if named:
        return _undecided("ranks %s come late to different groups" % few(list(map(str, sorted(named))), MAX_REASON))
    turns = [one for _, one in found if one.kind == IN_TURN]
    if turns and busy:
        return _undecided("processes wait for cores, which makes ranks late in turn")
    judged = [one for _, one in found if one.kind == NOBODY]
    reasons = [one for _, one in found] or [_undecided("no operation has been called yet")]
    return max(turns or judged or reasons, key=lambda one: one.steps)


def _judge_group(group: GroupTimes, clocks: Mapping[int, Clock]) -> LateRanks:
    members = sorted(group.members)
    error = _clock_error([clocks[rank] for rank in members])
    seen = _steps(group, error)
    steps = _newest(seen, MIN_STEPS)
    if len(steps) < WINDOWS * MIN_STEPS or _span(steps) < MIN_SPAN_NS:
        return LateRanks(UNDECIDED, steps=len(steps), reason="too few steps were seen yet")
    if error:  # clocks on several hosts, compared at the end
        error += int(_span(steps) * CLOCK_DRIFT)
    found = _always_late([step.calls for step in steps], members, error)
    if found or len(members) == 2:
        return found or _nobody(steps, error)
    more = [step.calls for step in _newest(seen, MIN_STEPS_IN_TURN)]
    enough = len(more) >= WINDOWS * MIN_STEPS_IN_TURN
    if enough and all(_has_late_one(window, error) for window in _windows(more)):
        return _in_turn(members, more)
    return _nobody(steps, error)


def _always_late(rows: Sequence[Tuple[int, ...]], members: Sequence[int], error: int) -> Optional[LateRanks]:
    judged = {_late_one(window, error) for window in _windows(rows)}
    place = judged.pop()
    if judged or place is None:
        return None
    lasts = sum(calls[place] == max(calls) for calls in rows)
    if _chance(lasts, len(rows)) > MAX_CHANCE:
        return None
    excess = median(_excess(calls, place) for calls in rows)
    return LateRanks(ALWAYS, (members[place],), round(excess / 1e6, 3), lasts / len(rows), len(rows))


def _chance(lasts: int, count: int) -> float:
    """The probability that one of two equal ranks is the last in so many of the steps, or in more."""
    ways = total = 1
    for number in range(count, lasts, -1):
        ways = ways * number // (count - number + 1)
        total += ways
    return float(total / 2**count)


def _nobody(steps: Sequence[_Step], error: int) -> LateRanks:
    """Nobody is late, unless clocks that are known better might tell."""
    windows = _windows([step.calls for step in steps])
    if error >= MIN_EXCESS_NS and any(_late_one(window, 0) is not None for window in windows):
        why = "the hosts' clocks are known to %d ms only" % (error // 1_000_000)
        return LateRanks(UNDECIDED, steps=len(steps), reason=why)
    return LateRanks(NOBODY, steps=len(steps))


def _clock_error(clocks: Sequence[Clock]) -> int:
    """How far the clocks of two of these ranks may differ after their correction: not at all on one host."""
    errors = sorted({clock.host: clock.error_ns for clock in clocks}.values())
    return sum(errors[-2:]) if len(errors) > 1 else 0


def _steps(group: GroupTimes, error: int) -> List[_Step]:
    """The first operation of each step, in order."""
    members = sorted(group.members)
    fresh: List[_Step] = []
    before: Optional[Tuple[int, Tuple[int, ...]]] = None
    for sequence in sorted(group.times):
        called = group.times[sequence]
        if not all(rank in called for rank in members):
            continue
        calls = tuple(called[rank] for rank in members)
        if before and before[0] == sequence - 1 and min(calls) + error >= max(before[1]):
            fresh.append(_Step(max(0, min(calls) - max(before[1])), calls))
        before = sequence, calls
    least = _usual_work([step.work_ns for step in fresh]) / 2
    return [step for step in fresh if step.work_ns >= least]


def _usual_work(work: Sequence[int]) -> float:
    """The time of work such that half of all work is done in times as long or longer; a pause counts little."""
    if not work:
        return 0.0
    most = MAX_GAP * max(median(work), 1)
    longest = sorted((min(one, most) for one in work), reverse=True)
    left = sum(longest) / 2
    for one in longest:
        left -= one
        if left <= 0:
            return one
    return longest[-1]


def _newest(steps: Sequence[_Step], least: int) -> Sequence[_Step]:
    """The newest steps: ``least`` of each window, or so many more that they last long enough; else all."""
    for count in range(WINDOWS * least, len(steps)):
        if _span(steps[-count:]) >= MIN_SPAN_NS:
            return steps[-count:]
    return steps


def _span(steps: Sequence[_Step]) -> int:
    return min(steps[-1].calls) - min(steps[0].calls) if steps else 0


def _windows(rows: Sequence[Tuple[int, ...]]) -> List[Sequence[Tuple[int, ...]]]:
    count = len(rows)
    return [rows[count * part // WINDOWS : count * (part + 1) // WINDOWS] for part in range(WINDOWS)]


def _excess(calls: Sequence[int], place: int) -> int:
    """How long after the last of the others a rank comes; negative if it is not the last."""
    return calls[place] - max(_others(calls, place))


def _others(calls: Sequence[int], place: int) -> List[int]:
    return [*calls[:place], *calls[place + 1 :]]


def _late_one(rows: Sequence[Sequence[int]], error: int) -> Optional[int]:
    """The place of the rank that is late in a window, if there is one: only the last of most steps can be."""
    lasts = [max(range(len(calls)), key=calls.__getitem__) for calls in rows]
    place = max({*lasts}, key=lasts.count)
    excess = median(_excess(calls, place) for calls in rows)
    spread = median(_spread(_others(calls, place)) for calls in rows)
    return place if excess >= MIN_EXCESS_NS + error and excess >= SPREADS * spread else None


def _has_late_one(rows: Sequence[Sequence[int]], error: int) -> bool:
    """Whether in most steps of a window some rank is late."""
    ordered = [sorted(calls) for calls in rows]
    excess = median(calls[-1] - calls[-2] for calls in ordered)
    spread = median(_spread(calls[:-1]) for calls in ordered)
    return excess >= MIN_EXCESS_NS + error and excess >= SPREADS * spread


def _spread(calls: Sequence[int]) -> int:
    return max(calls) - min(calls)


def _in_turn(members: Sequence[int], rows: Sequence[Tuple[int, ...]]) -> LateRanks:
    lasts = [members[max(range(len(calls)), key=calls.__getitem__)] for calls in rows]
    ranks = tuple(rank for rank in members if lasts.count(rank) >= MIN_SHARE * len(rows))
    if len(ranks) < 2:
        return LateRanks(NOBODY, steps=len(rows))
    share = sum(map(lasts.count, ranks)) / len(rows)
    excess = median(max(calls) - sorted(calls)[-2] for calls in rows)
    return LateRanks(IN_TURN, ranks, round(excess / 1e6, 3), share, len(rows))
