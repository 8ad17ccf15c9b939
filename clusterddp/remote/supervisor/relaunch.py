"""Between two attempts: a node waits for what the lead decides, and makes the next attempt's spool.

Carried out by the supervisors alone, so a job is started again with every operator away. Only a lead that reaches a
majority decides, and only when every node of the attempt has ended or is lost; a node without a majority has ended
its own part by then (limits), so two attempts never run at once.

Not here: the decision itself (supervisor/next_attempt.py, pure), a node's part in an attempt (supervisor/main.py).
"""

import time
from typing import TYPE_CHECKING, Any, Dict, NamedTuple, Optional

from ..control.leader import Control
from ..control.membership import Peers
from ..shared.plan import NodePlan, next_plan, spool_environment
from ..spool.layout import Spool, create_spool
from ..system.bootstrap import write_json, write_private
from ..system.ports import bind_ports
from ..worker.environment import write_worker
from .next_attempt import STANDBY, backoff, decide
from .stop_conditions import Orders

if TYPE_CHECKING:
    from typing import Protocol

    from ..control.voice import Voice
    from .children import Children

    class Node(Protocol):
        """What is needed of this node's supervisor."""

        place: int
        spool: Spool
        voice: Voice
        children: Children
        order: Optional[Dict[str, Any]]

        @property
        def plan(self) -> NodePlan:
            """Its plan of the attempt under way."""

        def turn(self, timeout: float) -> None:
            """One turn of its loop."""

        def tell(self, state: str, **fields: Any) -> None:
            """Its new word on itself, to all."""


TICK = 0.1  # seconds between looks
ALONE = "no majority of the hosts reach each other; it waits for an operator"


class Next(NamedTuple):
    """What the next attempt begins with on this node."""

    spool: Spool
    environment: Dict[str, str]
    store: Optional[int]  # the store's listening socket


def may_follow(plan: NodePlan, order: Optional[Dict[str, Any]]) -> bool:
    """Whether another attempt may follow the plan's: there is one left, and nobody wants the run to end."""
    return plan.relaunch > 0 and (order is None or "attempt" in order)


class Relaunching:
    """One node's side."""

    def __init__(self, control: Control, peers: Peers, orders: Orders) -> None:
        self.control, self.peers, self.orders = control, peers, orders
        self.next: Optional[Dict[str, Any]] = None  # the lead's word: another attempt
        self.over: Optional[str] = None  # the lead's word: none, and why
        self.store: Optional[int] = None  # bound for the next attempt
        self.since: Optional[float] = None  # when this attempt was known to have ended everywhere

    def take_message(self, message: Dict[str, Any]) -> None:
        """The lead's decision."""
        if message["kind"] == "attempt":
            self.next = message
        elif message["kind"] == "over":
            self.over = str(message["reason"])

    def wait(self, node: "Node") -> Optional[Next]:
        """What follows the attempt that has ended here; None if nothing does, and then that is on record."""
        while may_follow(node.plan, node.order):
            node.turn(TICK)
            order = node.spool.stop_order() or self.orders.final(time.monotonic())
            if order:
                node.voice.pass_on(order)
                self._end(node, str(order["reason"]))
                return None
            if self.over is not None:
                self._end(node, self.over)
                return None
            if self.control.leading:
                self._decide(node)
            elif time.monotonic() - self.control.unsettled > self.orders.limits.lost:
                self._end(node, ALONE)
                return None
            if self.next and self.next["attempt"] == node.plan.attempt + 1:
                message, self.next, self.since = self.next, None, None
                if node.place in message["places"]:
                    return self._begin(node, message)
                places = tuple(int(place) for place in message["places"])
                self.peers.plan = node.plan._replace(attempt=int(message["attempt"]), places=places)
                node.tell(STANDBY)
        return None

    def _decide(self, node: "Node") -> None:
        now = time.monotonic()
        lost = set(self.peers.lost(now, self.orders.limits.lost)) | self.peers.left
        decision = decide(node.plan, self.peers.told, {node.place, *self.control.connected}, lost)
        if decision is None:
            return
        self.since = self.since or now
        if not decision.places:
            self.over = decision.reason
            self.control.say("over", reason=decision.reason)
        elif not self.control.majority:
            if now - self.control.unsettled > self.orders.limits.lost:
                self.over = ALONE
        elif now - self.since >= backoff(node.plan.attempt):
            (listener,) = bind_ports(node.plan.ports, 1, node.plan.peers[node.place].address)
            store = {"place": node.place, "port": listener.getsockname()[1]}
            self.store = listener.detach()
            self.next = {"attempt": node.plan.attempt + 1, "places": decision.places, "store": store}
            self.control.say("attempt", **self.next)

    def _end(self, node: "Node", reason: str) -> None:
        """Nothing follows: the exit record of the last attempt is the run's."""
        if node.plan.standby and not node.spool.exit_record():
            node.spool.write_exit("succeeded", 0, "it was not needed", agent_exit=None, survivors=[])
            return
        record = node.spool.exit_record() or {}
        record.pop("pending", None)
        node.spool.drop_secrets()
        write_json(node.spool.path("exit.json"), dict(record, final=reason))

    def _begin(self, node: "Node", message: Dict[str, Any]) -> Next:
        """Make this node's spool of the next attempt, ours from the first moment."""
        old, attempt = node.spool, int(message["attempt"])
        plan = next_plan(node.plan, attempt, message["places"], int(message["store"]["place"]))
        spool = old.in_attempt(attempt, plan.node)
        with open(old.path("remote.pyz"), "rb") as code:
            create_spool(spool, plan, code.read())
        spool.take_lock()
        spool.write_supervisor()
        for name in ("control.key", "secrets.json"):
            try:
                with open(old.path(name), "rb") as source:
                    write_private(spool.path(name), source.read())
            except FileNotFoundError:
                continue  # there are no secrets
        write_worker(spool, plan.python)
        write_json(spool.path("committed"), dict(old.committed() or {}, store=message["store"]["port"]))
        order = old.stop_order()
        if order:
            spool.write_stop_order(order["reason"], order["grace"])
        self._end(node, "attempt %d" % attempt)
        old.release_lock()
        environment = dict(node.children.environment, **spool_environment(spool.folder, plan))
        store, self.store = self.store, None
        return Next(spool, environment, store if plan.store else None)
