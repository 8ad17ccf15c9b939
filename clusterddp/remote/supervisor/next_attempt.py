"""What follows an attempt: another one, on which nodes, or none. Pure.

Not here: the plan of the next attempt (shared/plan.py), why a node failed (shared/failures.py), asking and telling
the nodes (supervisor/main.py).
"""

from typing import Any, Dict, List, NamedTuple, Optional, Set

from ..control.membership import ENDED
from ..shared.plan import NodePlan

STANDBY = "standby"  # a node's word: it waits to be used
BACKOFF_LIMIT = 60.0  # seconds between attempts at most


class Decision(NamedTuple):
    """``places`` of the next attempt, in order; none: it is over, and why."""

    places: List[int]
    reason: str = ""


def decide(plan: NodePlan, words: Dict[int, Dict[str, Any]], connected: Set[int], lost: Set[int]) -> Optional[Decision]:
    """What follows the plan's attempt; None while that is not known.

    Args:
        plan: Any node's of the attempt.
        words: Each node's last word on itself, by place.
        connected: Places within reach, our own included.
        lost: Places that are lost for good.
    """
    attempt = plan.attempt
    places = set(plan.places)
    told = [dict(word, place=place) for place, word in sorted(words.items()) if word["attempt"] == attempt]
    ended = [word for word in told if word["state"] == ENDED and word["place"] in places]
    here = {word["place"] for word in ended} & connected
    if here | lost < places:
        return None
    failed = [word for word in ended if word["code"]]
    if plan.elastic and len(ended) - len(failed) >= plan.min_nodes:
        return Decision([])
    if not failed and {word["place"] for word in ended} == places:
        return Decision([])
    for word in failed:
        if not word["curable"]:
            return Decision([], "%s would fail again" % word["cause"])
    if attempt > plan.relaunch:
        return Decision([], "all %d relaunches are used" % plan.relaunch)
    spares = [place for place, word in sorted(words.items()) if word["state"] == STANDBY and place in connected]
    chosen = sorted([*here, *spares[: max(0, plan.max_nodes - len(here))]])
    if len(chosen) < plan.min_nodes:
        return Decision([], "%d of %d hosts are left" % (len(chosen), plan.min_nodes))
    return Decision(chosen)


def backoff(attempt: int) -> float:
    """Seconds between the end of an attempt and the next."""
    return min(2.0 ** (attempt - 1), BACKOFF_LIMIT)
