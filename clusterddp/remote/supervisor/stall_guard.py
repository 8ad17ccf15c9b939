"""The stall guard (``run --stall``): find out on the hosts alone that a run hangs, say so, and do what was chosen.

The leader looks at all workers again and again: it asks every node that takes part, each answers from a thread of its
own, and the judge of `why` compares two looks. A run is stalled when they say for the whole limit that it hangs
(shared/collectives/stall_clock.py). Then one more look takes a few stacks, for the sentence, and all nodes are told. A
look at which a node does not answer does not count, and a new leader starts the clock anew.
"""

import functools
import os
from typing import Dict, FrozenSet, List, Optional, Set, Tuple

from ..control.control_events import Event, MessageReceived
from ..control.look_messages import LookPart, LookRequest, StallNotice, look_parts
from ..control.message_fields import MAX_CAUSE, MAX_REASON, cut
from ..processes.debug_stops import stops_of
from ..processes.ownership import find_processes
from ..processes.stacks import live_workers, stack_reports
from ..processes.terminate import kill
from ..processes.traces import worker_traces
from ..shared.collectives import hang_sentence, stack_judge
from ..shared.collectives.hang_judge import Finding
from ..shared.collectives.stall_clock import Look, StallClock
from ..shared.collectives.trace_records import MAX_WORLD, WorkerTrace
from ..shared.processes.worker_stacks import WorkerStack, build_stack, cut_stack
from ..shared.run.event_schema import STALLED_EVENT, WORKER_STARTED, NodeEvent, of_kind
from ..shared.verdict.node_end import ranges
from ..spool.attention import is_attended
from ..spool.layout import Spool
from ..system.clock import boot_clock
from .bundle_process import save_bundle
from .file_work import FileWork
from .node_parts import NodeParts

ANSWER_TIMEOUT = 10.0  # seconds for all nodes' answers; stacks take longest
PROOF_PAUSE = 1.0  # seconds from the proof to the look that takes stacks
MAX_SENTENCE = MAX_REASON - 100  # characters
RESTART, STOP = "restart", "stop"  # values of --on-stall


class LookRound:
    """One look of the leader, while the nodes answer."""

    def __init__(self, number: int, began: float, members: FrozenSet[int]) -> None:
        self.number, self.began, self.members = number, began, members
        self.parts: Dict[int, Dict[int, LookPart]] = {}  # member → number → part

    @property
    def judgement(self) -> str:
        """What the work of the thread is called that judges it."""
        return "judge %d" % self.number

    def add(self, member: int, part: LookPart) -> None:
        """Take a part of a node's answer."""
        if member in self.members and part.number == self.number:
            self.parts.setdefault(member, {})[part.part] = part

    @property
    def complete(self) -> bool:
        """Whether all nodes have answered."""
        return all(self._is_whole(self.parts.get(member, {})) for member in self.members)

    def _is_whole(self, parts: Dict[int, LookPart]) -> bool:
        return bool(parts) and len(parts) == next(iter(parts.values())).parts

    def answers(self) -> List[Tuple[int, LookPart]]:
        """All parts, with the member that each came from."""
        return [(member, part) for member, parts in sorted(self.parts.items()) for part in parts.values()]

    @functools.cached_property
    def look(self) -> Look:
        """What they say, as the clock takes it."""
        answers = [part for _, part in self.answers()]
        sizes = {part.world_size for part in answers}
        return Look(
            at=self.began,
            world_size=sizes.pop() if len(sizes) == 1 else 0,
            traces=tuple(trace for part in answers for trace in part.traces),
            debugged=any(part.debugged for part in answers),
        )

    def stacks(self) -> Dict[int, WorkerStack]:
        """The stacks that were taken, by rank."""
        return {stack.rank: stack for _, part in self.answers() for stack in part.stacks}

    def hosts(self, names: List[str]) -> Dict[int, str]:
        """Each rank's host; ``names`` are the hosts' by member index."""
        return {trace.rank: names[member] for member, part in self.answers() for trace in part.traces}


class StallGuard:
    """One node's part in the guard, over all attempts; ``limit`` is in seconds."""

    def __init__(self, node: NodeParts, limit: float) -> None:
        self.node, self.limit = node, limit
        self.control = node.conditions.control
        self.looks = FileWork(node.loop.wake)  # its thread asks workers, and judges
        self.request: Optional[LookRequest] = None  # to which this node's answer is being made
        self.told: Dict[str, Tuple[float, str]] = {}  # stalls that all were told of: when, and in which words
        self.killed: List[int] = []  # the attempt of each worker that was to be killed, on any node
        self.ending, self.end_by = "", 0.0  # why the run is to end, until it is told to; the latest time
        self.number = 0  # of this node's last look as leader
        self.round: Optional[LookRound] = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        if self.round:
            self.looks.forget(self.round.judgement)
        self.clock = StallClock(self.limit)
        self.round = None
        self.next_at = 0.0
        self.ranks: Tuple[int, ...] = ()  # those whose stacks the next look takes: it is proved that they hang
        self.attempt = self.node.plan.attempt

    def handle_event(self, event: Event) -> None:
        """Take the guard's messages from other nodes."""
        if not isinstance(event, MessageReceived):
            return
        message = event.message
        if isinstance(message, LookRequest):
            self._accept(message)
        elif isinstance(message, LookPart) and self.round and message.attempt == self.attempt:
            self.round.add(event.member, message)
        elif isinstance(message, StallNotice):
            self._take_notice(message)

    def turn(self) -> None:
        """Do what is due; the loop calls this at every turn."""
        self._answer()
        if self.ending and self._has_saved():
            self.node.conditions.stalled, self.ending = self.ending, ""
        if not self._leads() or self.attempt != self.node.plan.attempt:
            if self.round or self.clock.started or self.attempt != self.node.plan.attempt:
                self._begin_anew()
            return
        now = boot_clock()
        if self.round is None:
            if now >= self.next_at:
                self._begin_round(now)
        elif self.round.members != self._members():
            self._end_round(self.round)  # it is not known what the run does
        elif self.round.complete:
            self._judge(self.round)
        elif now - self.round.began > ANSWER_TIMEOUT:
            self._end_round(self.round)  # a node cannot be asked

    # Any node

    def _accept(self, request: LookRequest) -> None:
        """Answer a request, one at a time."""
        if self.request is None and request.attempt == self.node.plan.attempt:
            self.request = request

    def _answer(self) -> None:
        """Send the answer to the leader, as soon as it is made."""
        request, spool = self.request, self.node.spool
        if request is None:
            return
        try:
            made = self.looks.ask("look", lambda: look_at_workers(spool, request))
        except Exception:
            self.request = None
            raise  # the loop records it
        if made is None:
            return
        self.request = None
        for part in look_parts(made.value):
            if self.round:
                self.round.add(self.node.member, part)
            elif not self.control.leading:
                self.control.send(part)

    def _take_notice(self, notice: StallNotice) -> None:
        """Record that the run is stalled, and kill the worker that the notice names if it is one of this node's."""
        node, spool = self.node, self.node.spool
        if notice.attempt != node.plan.attempt or notice.stall in self.told:
            return
        self.told[notice.stall] = boot_clock(), notice.text
        self.looks.do(lambda: save_bundle(spool))  # before a worker is killed
        if notice.member is not None:
            self.killed.append(notice.attempt)
        if notice.member == node.member:
            self.looks.do(lambda: kill_worker(spool, notice))
        else:
            node.work.do(lambda: record_stall(spool, notice))

    # The leader

    def _leads(self) -> bool:
        ending = self.node.shutdown.order or self.node.conditions.stalled or self.ending
        return self.control.leading and self.control.settled and not ending and bool(self._members())

    def _members(self) -> FrozenSet[int]:
        """The nodes that take part in the attempt; none while one may come back: nobody knows what it does."""
        known, lost = self.node.membership, self.node.conditions.limits.lost
        if any(boot_clock() - known.missing.get(member, -lost) < lost for member in known.excluded):
            return frozenset()
        part = known.participants
        return frozenset(part.members if part and part.attempt == self.node.plan.attempt else ())

    def _begin_round(self, now: float) -> None:
        self.number += 1
        self.round = LookRound(self.number, now, self._members())
        request = LookRequest(self.attempt, self.number, self.ranks)
        self.control.send(request)
        if self.node.member in self.round.members:
            self._accept(request)

    def _end_round(self, of: LookRound, pause: Optional[float] = None) -> None:
        self.looks.forget(of.judgement)
        self.round = None
        self.next_at = of.began + (self.clock.interval if pause is None else pause)

    def _judge(self, of: LookRound) -> None:
        """Judge a complete look, in the thread: many ranks take long."""
        clock, look = self.clock, of.look
        try:
            done = self.looks.ask(of.judgement, lambda: clock.see(look))
        except Exception:
            self._end_round(of)
            raise  # the loop records it
        if done is None:
            return
        finding, had_stacks = done.value, bool(self.ranks)
        self.ranks = ()
        stall = self._name(finding, look.traces) if finding else ""
        if finding is None:
            self._end_round(of)
        elif stall in self.told:
            self._end_round(of)
            self._stop_if_overdue(stall)
        elif not had_stacks:
            self.ranks = tuple(stack_judge.ranks_to_look_at(finding, look.traces))
            self._end_round(of, boot_clock() - of.began + PROOF_PAUSE)
        else:
            self._end_round(of)
            self._tell(stall, self._evidence(finding, of), look)

    def _name(self, finding: Finding, traces: Tuple[WorkerTrace, ...]) -> str:
        """What tells a stall from another one."""
        name = "%d.%d %s %s %s #%s" % (
            self.attempt, _newest_start(traces), finding.kind, ranges(finding.ranks), finding.group, finding.sequence,
        )  # fmt: skip
        return cut(name, MAX_CAUSE)

    def _evidence(self, finding: Finding, of: LookRound) -> stack_judge.Evidence:
        evidence = stack_judge.Evidence(
            finding=finding,
            traces={trace.rank: trace for trace in of.look.traces},
            hosts=of.hosts(self.node.membership.names),
            stacks=of.stacks(),
            workdirs=self.node.plan.record.workdirs,
        )
        return evidence._replace(finding=stack_judge.refine(evidence))

    def _tell(self, stall: str, evidence: stack_judge.Evidence, look: Look) -> None:
        """Tell all nodes of a stall, and let follow what ``--on-stall`` says."""
        text, action = _sentence(self.node.plan.run, evidence), self.node.plan.settings.on_stall
        notice = StallNotice(self.attempt, stall, text, start=_newest_start(look.traces))
        if action == RESTART:
            made, most = self._restarts_made(look), self.node.plan.record.max_restarts
            victim = _victim(evidence)
            if victim and made < most:
                again = "%s; its workers are started again (%d of %d)" % (text, made + 1, most)
                member = self.node.membership.names.index(evidence.hosts[victim.rank])
                notice = StallNotice(self.attempt, stall, again, member, victim.start, victim.local_rank)
            else:
                notice, action = notice._replace(text=text + "; no restart is left"), STOP
        self.control.send(notice)
        self._take_notice(notice)
        if action == STOP:
            self.ending, self.end_by = notice.text, boot_clock() + ANSWER_TIMEOUT

    def _restarts_made(self, look: Look) -> int:
        """How many of --max-restarts are used up: those of the agent that made most, or of this guard if it made more.

        Torchrun counts in each agent the failures of its own workers, and no start after hosts have left or joined.
        """
        return max(self.killed.count(self.attempt), *(trace.restarts for trace in look.traces))

    def _has_saved(self) -> bool:
        """Whether this node has written its part of a bundle, while its workers live, or takes too long for it."""
        return boot_clock() > self.end_by or self.looks.ask("all that was queued before", lambda: True) is not None

    def _stop_if_overdue(self, stall: str) -> None:
        """End a run that still hangs in a stall that was to end it, or its workers, long ago."""
        told_at, line = self.told[stall]
        acts = self.node.plan.settings.on_stall in (RESTART, STOP)
        if acts and boot_clock() - told_at > max(self.limit, self.node.plan.settings.grace + ANSWER_TIMEOUT):
            self.node.conditions.stalled = line


def _sentence(run: str, evidence: stack_judge.Evidence) -> str:
    """Why the run hangs, in one line that is short enough for a notice with what follows; hosts chose its names."""
    text = hang_sentence.sentence(run, evidence)
    return cut("".join(letter if letter.isprintable() else "?" for letter in text), MAX_SENTENCE)


def _newest_start(traces: Tuple[WorkerTrace, ...]) -> int:
    return max((trace.start for trace in traces), default=0)


def _victim(evidence: stack_judge.Evidence) -> Optional[WorkerTrace]:
    """The worker to kill so that torchrun starts all anew: one to blame, else one that waits; both can be killed."""
    ranks = (*evidence.finding.ranks, *evidence.finding.waiting)
    found = [evidence.traces[rank] for rank in ranks if rank in evidence.traces]
    return next((trace for trace in found if trace.state not in ("", "D", "Z")), None)


def look_at_workers(spool: Spool, request: LookRequest) -> LookPart:
    """What a node's workers do; the stacks of the ranks that are asked for are taken last."""
    events = spool.events()
    workers = live_workers(events)
    asked = [event for event in workers if event.rank in request.ranks]
    newest = max(of_kind(events, WORKER_STARTED), key=lambda event: event.start, default=None)
    return LookPart(
        attempt=request.attempt,
        number=request.number,
        part=0,
        parts=1,
        world_size=min(newest.world_size or 0, MAX_WORLD) if newest else 0,
        debugged=is_debugged(spool, workers),
        traces=tuple(worker_traces(spool, events)),
        stacks=tuple(cut_stack(build_stack(spool.host, report)) for report in stack_reports(spool, asked))
        if asked
        else (),
    )


def is_debugged(spool: Spool, workers: List[NodeEvent]) -> bool:
    """Whether a live worker waits at a breakpoint, or somebody is attached to one, on whatever host."""
    return is_attended(spool) or bool(stops_of(spool, workers))


def kill_worker(spool: Spool, notice: StallNotice) -> None:
    """Kill the worker that a notice names, if it still runs; record that first, so that its end is explained."""
    named = (notice.start, notice.local_rank)
    pids: Set[Optional[int]] = {
        event.pid for event in live_workers(spool.events()) if (event.start, event.local_rank) == named
    }
    found = [process for process in find_processes(spool, os.getpid()) if process.pid in pids]
    for process in found:
        record_stall(spool, notice, process.pid)
        kill(process)
    if not found:
        record_stall(spool, notice)


def record_stall(spool: Spool, notice: StallNotice, pid: Optional[int] = None) -> None:
    """Append the event; ``pid``: the worker that is killed."""
    line = "stalled: " + notice.text
    spool.event(STALLED_EVENT, reason=line, start=notice.start, local_rank=notice.local_rank, pid=pid)
