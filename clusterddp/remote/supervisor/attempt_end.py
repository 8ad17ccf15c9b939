"""The end of a node's part in an attempt: ends its processes and the store, writes the exit record."""

import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Set, Tuple

from ..rendezvous.store import count_clients
from ..shared.processes.exit_codes import EXIT_NOT_THE_SCRIPT, EXIT_STOPPED
from ..shared.run.run_state import RunState
from ..shared.run.spool_records import LeftProcess, Ready
from ..shared.schema.record import to_fields
from ..shared.verdict import failures
from ..spool.worker_traces import evidence
from ..system.clock import boot_clock
from .file_work import FileResult
from .next_attempt import may_follow
from .shutdown import NEVER

if TYPE_CHECKING:
    from ..control.messages import EndOrder
    from .node_parts import NodeParts


LEFTOVER_GRACE = 2.0  # seconds for processes left when the agent has ended: the script's, and our fork server
STORE_TIMEOUT = 330.0  # seconds the store waits for other nodes' agents: torchrun's exit barrier is 300
STORE_LOST_TIMEOUT = 10.0  # seconds out of reach after which the store no longer waits for a node
EXIT_RECORD = "exit record"  # name of the task in FileWork
STORE_IDLE_TIME = 0.3  # seconds without a client after which the store is no longer needed


class AttemptCleanup:
    """Ends what the agent left behind on a node, and decides when the store can end; made when the agent has ended."""

    def __init__(self, node: "NodeParts") -> None:
        self.node = node
        node.children.end_fork_server(for_good=not may_follow(node.plan, node.shutdown.order))
        left = node.shutdown.kill_at - time.monotonic()  # what remains of the grace of an order to end
        self.termination = node.children.end(max(0.0, min(LEFTOVER_GRACE, left)))
        self.survivors: Optional[List[LeftProcess]] = None  # None: processes are still being ended
        self.idle_since = time.monotonic()  # when an agent was last connected to the store
        # Whether the other nodes of an elastic job go on without our failed agent; theirs may still be starting.
        self.others_continue = bool(node.children.agent_exit) and node.job_continues()
        self.deadline = NEVER if self.others_continue else self.idle_since + STORE_TIMEOUT
        self.following_since: Optional[float] = None  # since when a leader of a majority, another node, leads us

    def is_ending_processes(self) -> bool:
        """Go on ending processes; return whether that is still under way. Survivors stay on the roster."""
        if self.survivors is None:
            self.survivors = self.termination.step()
            if self.survivors is not None:
                self.node.work.do(self.node.children.roster.update)
        return self.survivors is None

    def store_needed(self, order: "Optional[EndOrder]") -> bool:
        """Whether an agent may still need our store.

        Not after an order to end (``order``, or one being carried out), nor when our own agent has failed: a job of a
        fixed size is over then, and without the store the other agents end too, instead of waiting in their exit
        barrier. An elastic job may go on without our agent, for any time: other agents may be starting and not be
        connected yet.
        """
        now, node = time.monotonic(), self.node
        failed = node.children.agent_exit and not node.job_continues()
        at_once = failed or order or node.shutdown.given
        if not node.children.store or now >= self.deadline or at_once:
            return False
        # Connections of a host that has lost power still look established.
        if self._another_agent_remains() and (
            self.others_continue or count_clients((node.inbox.ready or Ready()).store)
        ):
            self.idle_since = now
        return now - self.idle_since <= STORE_IDLE_TIME

    def _another_agent_remains(self) -> bool:
        """Whether another node's agent may still need the store."""
        plan, membership = self.node.plan, self.node.membership
        done = set(membership.ended_statuses(plan.attempt)) | membership.beyond(plan.attempt)
        return bool(set(plan.members) - done - self._lost() - {plan.member})

    def _lost(self) -> Set[int]:
        """Nodes that need the store no more because they are lost.

        Who follows knows them by the leader's word alone, which replaces an own one from before after a moment. A node
        without a majority may be the one that is cut off: it waits for the others as long as they wait for it.
        """
        membership, now, limits = self.node.membership, boot_clock(), self.node.conditions.limits
        limit = STORE_LOST_TIMEOUT if membership.control.settled else max(STORE_LOST_TIMEOUT, limits.lost)
        lost = set(membership.lost(now, limit))
        if membership.control.leading or not membership.control.settled:
            self.following_since = None
            return lost
        self.following_since = self.following_since or now
        return lost.union(membership.excluded if now - self.following_since > STORE_LOST_TIMEOUT else ())


def record_end(
    node: "NodeParts", survivors: List[LeftProcess], finish: Callable[[], None] = lambda: None
) -> Optional[FileResult[Tuple[bool, str]]]:
    """Write the exit record, after ``finish``; None until it is written.

    The result is whether another attempt may succeed, and why this one ended. Raises OSError if it cannot be written
    now; the next call tries again.
    """
    is_begun = node.work.is_asked(EXIT_RECORD)
    record = {} if is_begun else _exit_fields(node, survivors)

    def write() -> Tuple[bool, str]:
        finish()
        node.spool.write_exit(**record)
        return _cause(node)

    return node.work.ask(EXIT_RECORD, write)


def _exit_fields(node: "NodeParts", survivors: List[LeftProcess]) -> Dict[str, Any]:
    """The fields of the exit record; its code is this node's view; the leader makes the verdict over all nodes."""
    agent_exit, order = node.children.agent_exit, node.shutdown.order
    if node.children.start_error:
        found: Dict[str, Any] = {"agent_exit": None, "survivors": [], "reason": node.children.start_error}
        return dict(found, state=RunState.FAILED, exit_code=EXIT_NOT_THE_SCRIPT)
    fields: Dict[str, Any] = {"agent_exit": agent_exit, "survivors": [to_fields(process) for process in survivors]}
    fields["ours"] = bool(order and order.ours)
    killed = node.children.killed - {process.identity for process in survivors}
    fields.update(killed=len(killed), unseen=node.children.hidden_children())
    if may_follow(node.plan, order):
        fields["pending"] = True
    if order:
        return dict(fields, state=RunState.STOPPED, exit_code=EXIT_STOPPED, reason=order.reason)
    if agent_exit == 0:
        return dict(fields, state=RunState.SUCCEEDED, exit_code=0, reason="")
    return dict(fields, state=RunState.FAILED, exit_code=agent_exit or 1, reason="the agent ended with %s" % agent_exit)


def _cause(node: "NodeParts") -> Tuple[bool, str]:
    """Whether another attempt may succeed, and why this one ended."""
    if node.children.start_error:
        return False, "what cannot be started"
    found = failures.node_cause(evidence(node.spool))
    if found is None:
        return True, node.shutdown.order.reason if node.shutdown.order else ""
    return found.curable, found.text
