"""What follows an attempt: another one, on which nodes, or none. Pure.

Not here: why a node failed (shared/failures.py), asking and telling the nodes (supervisor/main.py).
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set

from ..control.membership import ENDED
from ..shared.node_env import STATIC
from ..shared.plan import PORT_TO_COME

STANDBY = "standby"  # a node's word: it waits to be used
BACKOFF_LIMIT = 60.0  # seconds between attempts at most


class Decision(NamedTuple):
    """``places`` of the next attempt, in order; none: it is over, and why."""

    places: List[int]
    reason: str = ""


def decide(
    plan: Dict[str, Any], words: Dict[int, Dict[str, Any]], connected: Set[int], lost: Set[int]
) -> Optional[Decision]:
    """What follows the plan's attempt; None while that is not known.

    Args:
        plan: Any node's of the attempt.
        words: Each node's last word on itself, by place.
        connected: Places within reach, our own included.
        lost: Places that are lost for good.
    """
    attempt = plan["attempt"]
    places = set(plan["places"])
    told = [dict(word, place=place) for place, word in sorted(words.items()) if word["attempt"] == attempt]
    ended = [word for word in told if word["state"] == ENDED and word["place"] in places]
    here = {word["place"] for word in ended} & connected
    if here | lost < places:
        return None
    failed = [word for word in ended if word["code"]]
    if plan["elastic"] and len(ended) - len(failed) >= plan["min_nodes"]:
        return Decision([])
    if not failed and {word["place"] for word in ended} == places:
        return Decision([])
    for word in failed:
        if not word["curable"]:
            return Decision([], "%s would fail again" % word["cause"])
    if attempt > plan["relaunch"]:
        return Decision([], "all %d relaunches are used" % plan["relaunch"])
    spares = [place for place, word in sorted(words.items()) if word["state"] == STANDBY and place in connected]
    chosen = sorted([*here, *spares[: max(0, plan["max_nodes"] - len(here))]])
    if len(chosen) < plan["min_nodes"]:
        return Decision([], "%d of %d hosts are left" % (len(chosen), plan["min_nodes"]))
    return Decision(chosen)


def backoff(attempt: int) -> float:
    """Seconds between the end of an attempt and the next."""
    return min(2.0 ** (attempt - 1), BACKOFF_LIMIT)


def next_plan(plan: Dict[str, Any], attempt: int, places: Sequence[int], store: int) -> Dict[str, Any]:
    """A node's plan of the next attempt.

    Args:
        plan: Its last one.
        attempt: The new number.
        places: Which nodes, in order of their ranks.
        store: The place that has the rendezvous store.
    """
    places = list(places)
    if plan["rdzv_backend"] == STATIC and store in places:  # rank 0's agent has the store
        places = [store, *(place for place in places if place != store)]
    rank = places.index(plan["place"])
    peers = [plan["peers"][place] for place in places]
    world = sum(peer["nproc"] for peer in peers)
    address = plan["peers"][store]["address"]
    endpoint = "%s:%s" % ("[%s]" % address if ":" in address else address, PORT_TO_COME)
    argv = list(plan["argv"])
    for option, value in (("--rdzv-id", "%s.%d" % (plan["run"], attempt)), ("--rdzv-endpoint", endpoint)):
        if option in argv:
            argv[argv.index(option) + 1] = value
    hosts = [peer["host"] for peer in peers]
    before = {*plan["record"].get("lost", ()), *plan["record"]["hosts"]}
    lost = sorted(before - set(hosts))  # something of the run may be left there
    return dict(
        plan,
        attempt=attempt,
        places=places,
        node_rank=rank,
        node="%d-%s" % (rank, plan["host"]),
        nnodes=len(places),
        world_size=world,
        standby=False,
        argv=argv,
        store={"address": address} if store == plan["place"] else None,
        store_place=store,
        record=dict(plan["record"], hosts=hosts, lost=lost, world_size=world, nnodes=len(places)),
    )
