"""Decide what follows an attempt: another one, on which nodes, or none; without any input or output."""

from typing import Mapping, NamedTuple, Optional, Set, Tuple

from ..control.messages import NodeState, Word
from ..shared.run.plan import NodePlan
from ..shared.text.counted import counted

BACKOFF_LIMIT = 60.0  # seconds between attempts at most


class Following(NamedTuple):
    """``places`` of the next attempt, in order; empty: the run is over, with the reason."""

    places: Tuple[int, ...]
    reason: str = ""


def decide(plan: NodePlan, words: Mapping[int, Word], connected: Set[int], lost: Set[int]) -> Optional[Following]:
    """What follows the plan's attempt; None while that is not known.

    ``plan`` is any node's of the attempt. ``words`` are the nodes' last statuses, by place. ``connected`` are the
    places in contact, our own included; ``lost`` those that are lost for good, or do not begin the attempt.
    """
    places = set(plan.places)
    ended = {p: words[p] for p in sorted(places & words.keys()) if _has_ended(words[p], plan.attempt)}
    here = ended.keys() & connected
    if here | lost < places:
        return None
    failed = [word for word in ended.values() if word.code]
    if plan.settings.elastic and len(ended) - len(failed) >= plan.settings.min_nodes:
        return Following(())
    if not failed and ended.keys() == places:
        return Following(())
    for word in failed:
        if not word.curable:
            return Following((), "%s would fail again" % word.cause)
    if plan.attempt > plan.settings.relaunch:
        return Following((), "all %d relaunches are used" % plan.settings.relaunch)
    spares = [p for p, word in sorted(words.items()) if word.state is NodeState.STANDBY and p in connected]
    chosen = sorted([*here, *spares[: max(0, plan.settings.max_nodes - len(here))]])
    if len(chosen) < plan.settings.min_nodes:
        return Following((), "%d of %s are left" % (len(chosen), counted(plan.settings.min_nodes, "host")))
    return Following(tuple(chosen))


def _has_ended(word: Word, attempt: int) -> bool:
    return word.state is NodeState.ENDED and word.attempt == attempt


def backoff(attempt: int) -> float:
    """Seconds between the end of an attempt and the next."""
    return min(2.0 ** (attempt - 1), BACKOFF_LIMIT)
