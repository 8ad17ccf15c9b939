"""Decide what follows an attempt: another one, on which nodes, or none; without any input or output."""

from typing import Mapping, NamedTuple, Optional, Set, Tuple

from ..control.messages import NodeState, NodeStatus
from ..shared.run.plan import NodePlan
from ..shared.text.counted import counted

BACKOFF_LIMIT = 60.0  # seconds between attempts at most


class Following(NamedTuple):
    """``members`` of the next attempt, in order; empty: the run is over, with the reason."""

    members: Tuple[int, ...]
    reason: str = ""


def decide(
    plan: NodePlan, statuses: Mapping[int, NodeStatus], connected: Set[int], lost: Set[int]
) -> Optional[Following]:
    """What follows the plan's attempt; None while that is not known.

    ``plan`` is any node's of the attempt. ``statuses`` are the nodes' last statuses, by member index. ``connected`` are
    the members in contact, our own included; ``lost`` those that are lost for good, or do not begin the attempt.
    """
    members = set(plan.members)
    ended = {p: statuses[p] for p in sorted(members & statuses.keys()) if _has_ended(statuses[p], plan.attempt)}
    here = ended.keys() & connected
    if here | lost < members:
        return None
    failed = [status for status in ended.values() if status.code]
    if plan.settings.elastic and len(ended) - len(failed) >= plan.settings.min_nodes:
        return Following(())
    if not failed and ended.keys() == members:
        return Following(())
    for status in failed:
        if not status.curable:
            return Following((), "%s would fail again" % status.cause)
    if plan.attempt > plan.settings.relaunch:
        return Following((), "all %d relaunches are used" % plan.settings.relaunch)
    spares = [p for p, status in sorted(statuses.items()) if status.state is NodeState.STANDBY and p in connected]
    chosen = sorted([*here, *spares[: max(0, plan.settings.max_nodes - len(here))]])
    if len(chosen) < plan.settings.min_nodes:
        return Following((), "%d of %s are left" % (len(chosen), counted(plan.settings.min_nodes, "host")))
    return Following(tuple(chosen))


def _has_ended(status: NodeStatus, attempt: int) -> bool:
    return status.state is NodeState.ENDED and status.attempt == attempt


def backoff(attempt: int) -> float:
    """Seconds between the end of an attempt and the next."""
    return min(2.0 ** (attempt - 1), BACKOFF_LIMIT)
