"""What only stacks show of a hang: calls that no trace has, and breakpoints; and whose stacks to take. Pure."""

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from ..processes.worker_stacks import WorkerStack
from . import hang_judge
from .hang_judge import ADVANCING, BEFORE_FIRST, HUNG, MISSING, UNDECIDED, WAITING, Finding
from .stack_calls import first_collective, in_send_or_receive, waiting_call
from .trace_records import LOCK, Operation, WorkerTrace
from .worker_activity import pending

POINT_TO_POINT = "point-to-point"  # a class that only stacks show
MAX_STACKS = 8  # ranks whose stacks are taken


class Evidence(NamedTuple):
    """What `why` knows of a run: the finding, and the trace, host and stack of each rank where they are known."""

    finding: Finding
    traces: Mapping[int, WorkerTrace]
    hosts: Mapping[int, str]
    stacks: Mapping[int, WorkerStack]
    silent: Sequence[str] = ()  # hosts that do not answer
    workdirs: Mapping[str, str] = {}  # by host


def refine(evidence: Evidence) -> Finding:
    """Return the finding with what only stacks show: calls that are in no trace of gloo, and breakpoints."""
    finding = _with_calls(evidence)
    seen = [stack for rank, stack in sorted(evidence.stacks.items()) if rank in (finding.ranks or evidence.stacks)]
    stopped = tuple(stack.rank for stack in seen if stack.at_breakpoint)
    notes = (*finding.notes, hang_judge.BREAKPOINT)
    if stopped and finding.kind is None and finding.state != ADVANCING and not finding.waiting:
        return finding._replace(state=WAITING, ranks=stopped, notes=notes)
    if stopped and finding.kind in {MISSING, BEFORE_FIRST} and len(stopped) == len(seen):
        return finding._replace(state=WAITING, notes=notes)  # until somebody has debugged it, or its time is over
    return finding


def _with_calls(evidence: Evidence) -> Finding:
    finding = evidence.finding
    if finding.idle or (finding.state == UNDECIDED and hang_judge.NOBODY_WAITS in finding.notes):
        return _by_stacks(evidence) or finding
    stacks = [evidence.stacks.get(rank) for rank in finding.ranks]
    if finding.kind in (MISSING, BEFORE_FIRST) and all(_sends_or_receives(evidence, rank) for rank in finding.ranks):
        if finding.kind == MISSING:
            return finding._replace(state=HUNG, kind=POINT_TO_POINT)
        callers = [rank for rank in finding.waiting if _sends_or_receives(evidence, rank)]
        return finding._replace(kind=POINT_TO_POINT, ranks=tuple(sorted({*finding.ranks, *callers})))
    if finding.kind == BEFORE_FIRST and all(stack and waiting_call(stack) for stack in stacks):
        everybody = tuple(sorted({*finding.ranks, *finding.waiting}))
        state = UNDECIDED if finding.state == HUNG else finding.state
        return finding._replace(state=state, kind=None, ranks=(), waiting=everybody)
    return (_in_first_collective(evidence) if finding.kind == BEFORE_FIRST else None) or finding


def _in_first_collective(evidence: Evidence) -> Optional[Finding]:
    """Judge ranks that wait at the store in a group's first collective; None where that is not what they do.

    There NCCL's ranks wait for an id from the lowest rank of their group. Which ranks are in the group nothing tells:
    a rank is to blame only where no other can be that lowest one.
    """
    finding = evidence.finding
    stacks = [evidence.stacks[rank] for rank in finding.waiting if rank in evidence.stacks]
    calls = [first_collective(stack) for stack in stacks]
    lower = tuple(rank for rank in finding.ranks if rank < min(finding.waiting))
    if not calls or not all(calls) or not lower:
        return None
    finding = finding._replace(operation=Operation(calls[0], "", ""), notes=())
    if not lower[1:]:
        return finding._replace(ranks=lower)
    state = UNDECIDED if finding.state == HUNG else finding.state
    return finding._replace(state=state, kind=None, ranks=(), notes=(hang_judge.MEMBERS,))


def _sends_or_receives(evidence: Evidence, rank: int) -> bool:
    stack = evidence.stacks.get(rank)
    return stack is not None and in_send_or_receive(stack)


def _by_stacks(evidence: Evidence) -> Optional[Finding]:
    """Blame the ranks that are in no call of torch.distributed, if others are; if all are, those that send or receive.

    A rank whose own line waits in C may be in such a call: of ``work.wait()`` there is no frame. NCCL's calls keep a
    core busy while they wait: where some ranks are at work, one that is idle outside a call is to blame.
    """
    idle = {*evidence.finding.idle}
    calls = {rank: call for rank, stack in sorted(evidence.stacks.items()) if (call := waiting_call(stack))}
    outside = [rank for rank in sorted(evidence.stacks) if rank not in calls and not _may_wait_in_c(evidence, rank)]
    if not calls:
        return None
    waiting = Finding(UNDECIDED, waiting=tuple(calls), operation=Operation(calls[min(calls)], "", ""))
    if outside:
        unseen = evidence.traces.keys() - idle - evidence.stacks.keys()  # at work, perhaps outside a call as well
        hung = not idle or (idle >= {*outside} and not unseen)
        return waiting._replace(state=HUNG if hung else WAITING, kind=MISSING, ranks=tuple(outside))
    ranks = tuple(rank for rank in calls if _sends_or_receives(evidence, rank))
    if ranks and not idle and len(calls) == len(evidence.stacks):
        return waiting._replace(state=HUNG, kind=POINT_TO_POINT, ranks=ranks, waiting=ranks)
    return None if idle else waiting


def _may_wait_in_c(evidence: Evidence, rank: int) -> bool:
    """Whether a rank's own line waits for another thread, or it is not known where it is."""
    stack, trace = evidence.stacks[rank], evidence.traces.get(rank)
    if trace is None or trace.state in ("T", "D"):
        return trace is None
    waits = {wait.thread: wait.how for wait in trace.threads}
    return not stack.frames or (not stack.frames[-1].installed and waits.get(trace.pid, LOCK) == LOCK)


def ranks_to_look_at(finding: Finding, traces: Sequence[WorkerTrace], most: int = MAX_STACKS) -> List[int]:
    """Choose the ranks whose stacks are worth the disturbance: those to blame, and one of each group of waiters.

    Ranks that call the same are one group, so that all of them are represented before ``most`` is reached. If nobody
    waits and nobody is to blame, any rank is worth it; where all do nothing, each is.
    """
    ended = {trace.rank for trace in traces if trace.ended}
    traces = [trace for trace in traces if not trace.ended]
    if hang_judge.NOBODY_WAITS in finding.notes:
        return [trace.rank for trace in traces]
    if finding.idle:
        busy = [trace.rank for trace in traces if trace.rank not in finding.idle]
        return [*finding.idle[: most // 2], *busy[: most // 2]]
    called = dict(finding.others)
    waiting = {trace.rank: pending(trace) for trace in traces}
    groups: Dict[str, int] = {}
    for rank in (*finding.ranks, *finding.waiting, *(rank for rank, what in waiting.items() if what)):
        groups.setdefault(called.get(rank) or waiting.get(rank) or f"rank {rank}", rank)
    blamed = [rank for rank in finding.ranks if rank not in finding.waiting or rank in called]
    chosen = [rank for rank in dict.fromkeys((*groups.values(), *blamed)) if rank not in ended]
    return (chosen or [trace.rank for trace in traces])[:most]
