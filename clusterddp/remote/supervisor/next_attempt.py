"""Decide what follows an attempt: another one, on which nodes, or none; without any input or output."""

from typing import Iterable, Mapping, NamedTuple, Optional, Set, Tuple

from ..control.messages import EndOrder, NodeState, NodeStatus
from ..shared.run.plan import NodePlan
from ..shared.text.counted import counted

MAX_BACKOFF = 60.0  # seconds between attempts at most


class NextAttempt(NamedTuple):
    """``members`` of the next attempt, in order; empty: the run is over, with the reason."""

    members: Tuple[int, ...]
    reason: str = ""


def may_follow(plan: NodePlan, order: Optional[EndOrder]) -> bool:
    """Whether another attempt may follow the plan's: one is left, and no order ends the run."""
    return plan.settings.relaunch > 0 and (order is None or order.attempt is not None)


def why_none_follows(plan: NodePlan, ended: Iterable[NodeStatus]) -> str:
    """Return why no further attempt can follow if this one fails, given the nodes that have ended; "" if one can."""
    for status in ended:
        if status.code and not status.curable:
            return "%s would fail again" % status.cause
    return "all %d relaunches are used" % plan.settings.relaunch if plan.attempt > plan.settings.relaunch else ""


def decide(
    plan: NodePlan, statuses: Mapping[int, NodeStatus], connected: Set[int], lost: Set[int]
) -> Optional[NextAttempt]:
    """What follows the plan's attempt; None while that is not known.

    ``plan`` is the leader's, of the attempt. A spare that leads takes part, in place of the last node if there is no
    other room, since the store is on the leader's host. ``statuses`` are the nodes' last statuses, by member index.
    ``connected`` are the members in contact, our own included; ``lost`` those that are lost for good, or do not begin
    the attempt.
    """
    members = set(plan.members)
    reported = {member: statuses[member] for member in sorted(members & statuses.keys())}
    ended = {member: status for member, status in reported.items() if _has_ended(status, plan.attempt)}
    available = ended.keys() & connected
    if not members <= available | lost:
        return None
    failed = [status for status in ended.values() if status.code]
    if plan.settings.elastic and len(ended) - len(failed) >= plan.settings.min_nodes:
        return NextAttempt(())
    if not failed and ended.keys() == members:
        return NextAttempt(())
    refusal = why_none_follows(plan, failed)
    if refusal:
        return NextAttempt((), refusal)
    spares = [member for member in sorted(statuses.keys() & connected) if statuses[member].state is NodeState.STANDBY]
    chosen = sorted([*available, *spares[: max(0, plan.settings.max_nodes - len(available))]])
    if plan.member in spares and plan.member not in chosen:
        chosen = sorted([*chosen[: plan.settings.max_nodes - 1], plan.member])
    if len(chosen) < plan.settings.min_nodes:
        return NextAttempt((), "%d of %s are left" % (len(chosen), counted(plan.settings.min_nodes, "host")))
    return NextAttempt(tuple(chosen))


def _has_ended(status: NodeStatus, attempt: int) -> bool:
    return status.state is NodeState.ENDED and status.attempt == attempt


def backoff(attempt: int) -> float:
    """Seconds between the end of an attempt and the next."""
    return min(2.0 ** (attempt - 1), MAX_BACKOFF)
