"""Say in plain words what a finding means: the sentence, the evidence below it and what helps. Pure."""

from typing import Dict, List, Optional, Sequence

from ..names.host_names import folded_names
from ..processes.worker_stacks import StackFrame, WorkerStack
from ..text.short_duration import short_duration
from ..verdict.node_end import ranges
from . import hang_judge
from .hang_judge import ADVANCING, BEFORE_FIRST, HUNG, MISSING, WAITING, Finding, describe
from .stack_judge import POINT_TO_POINT, Evidence
from .worker_activity import activity, operation_in_words, pending

MAX_ENDED = 8  # lines of evidence of ranks that have ended
_REMEDIES = {
    MISSING: "see what keeps the rank that is missing; all ranks have to call the same operations in the same order",
    hang_judge.OTHER_OPERATION: "let all ranks take the same branch: none may call a collective that the others do not",
    hang_judge.OTHER_SHAPE: "give the tensors of all ranks the same type and shape, or gather their sizes first",
    hang_judge.OTHER_ROOT: "give all ranks the same root (src, dst)",
    hang_judge.OTHER_ORDER: "let all ranks use their groups in the same order",
    BEFORE_FIRST: "see what keeps the rank that is missing; all ranks have to make their groups in the same order",
    hang_judge.TRANSPORT: "`clusterddp doctor --only network` tests the connections between the hosts",
    hang_judge.DEVICE: "`clusterddp doctor --only gpu-health` looks at the GPUs",
    POINT_TO_POINT: "give every recv a send of its peer, in the same order",
}
_REMEDY_OF_ENDED = "give all ranks the same number of steps, or use Join; a rank may end only when no other needs it"
_NOTES = {
    hang_judge.TIE: "as many ranks called the one as the other: either may be right",
    hang_judge.LOOP: "one batch more? in a loop, some ranks may have come to that line more often than the others",
    hang_judge.MEMBERS: "a subgroup's members are only those that were seen in it",
    hang_judge.ROOT: "roots are not recorded: different ones, and a connection that carries nothing, look alike",
    hang_judge.SILENT: "a rank that says nothing of itself counts as missing",
    hang_judge.ALONE: "those that wait may be in a call that the others never meant to make",
    hang_judge.MORE: "ranks that are not named are missing in other groups",
    hang_judge.CLAIMED_TWICE: "two workers say that they are the same rank",
}
_REASONS = {
    hang_judge.OTHER_ROOT: "with different roots, it seems",
    hang_judge.DEVICE: "but their GPUs do not complete it",
}
_UNKNOWN = {  # why nothing is decided
    hang_judge.RESTARTED: "its workers were started anew between the two looks: ask again",
    hang_judge.STORES: "all ranks wait for something at the store, and none is missing",
    hang_judge.WORLD: "the number of its ranks is not known",
    hang_judge.NOBODY_WAITS: "no rank waits in a collective operation, and none seems to do anything",
}


def place(evidence: Evidence, rank: int) -> Optional[str]:
    """Return where a rank is in its own code, ``FILE:LINE in FUNCTION``; None if that is not known."""
    frame = _own_frame(evidence, rank)
    return f"{_position(evidence, rank, frame)} in {frame.function}" if frame else None


def sentence(run: str, evidence: Evidence) -> str:
    """Return the one sentence that says it all."""
    finding = evidence.finding
    if finding.state == ADVANCING:
        wrong = wrong_result(evidence)
        return f"run {run} advances, {wrong}" if wrong else f"run {run} advances: no rank waits for another"
    if finding.kind is None and hang_judge.BREAKPOINT in finding.notes:
        return _at_breakpoint(evidence)
    if finding.kind is None or not finding.ranks:
        return f"run {run}: {_unknown(evidence)}"
    blamed = _named(evidence, finding.ranks)
    if finding.kind in {MISSING, BEFORE_FIRST}:
        verb = "did not join" if finding.kind == MISSING else "did not come to"
        yet = "has not joined" if finding.kind == MISSING else "has not come to"
        if finding.state == WAITING:
            verb = yet if len(finding.ranks) == 1 else yet.replace("has", "have")
        return f"{blamed} {verb} {_operation(finding)}: {_doing(evidence, finding.ranks)}{_waiters(evidence)}"
    if finding.kind in {hang_judge.OTHER_OPERATION, hang_judge.OTHER_SHAPE}:
        return f"{blamed} called {_others(finding)} as #{finding.sequence} of group {finding.group}{_scene(evidence)}"
    if finding.kind == hang_judge.OTHER_ORDER:
        return f"{blamed} wait for each other in different groups: {_each_wait(evidence)}{_since(finding)}"
    if finding.kind == POINT_TO_POINT:
        waits = "wait" if finding.ranks[1:] else "waits"
        at = _at(evidence, finding.ranks[0])
        text = f"{blamed} {waits} in a send or receive that nobody answers{f', at {at}' if at else ''}"
        others = set(finding.waiting) - set(finding.ranks)
        return f"{text}{_waiters(evidence)} in {_operation(finding)}" if others else text
    reason = _REASONS.get(finding.kind, "but nothing arrives between them")
    if finding.kind == hang_judge.DEVICE and set(finding.ranks) < set(finding.waiting):
        reason = f"but the GPU{'s' if finding.ranks[1:] else ''} of {blamed} did not begin it"
    return f"all ranks called {_operation(finding)}, {reason}{_waiters(evidence)}"


def lines(evidence: Evidence) -> List[str]:
    """Return the evidence, a line each: where each rank is that was looked at, and what is not known."""
    found = []
    for rank, stack in sorted(evidence.stacks.items()):
        at, trace = place(evidence, rank), evidence.traces.get(rank)
        waits = pending(trace) if trace else ""
        doing = f"in {waits}" if waits else _activity(evidence, rank)
        found.append(f"rank {rank} ({_label(evidence, rank)}): {doing}{f', at {at}' if at else ''}{_way(stack)}")
    ended = [rank for rank in evidence.finding.ranks if rank in evidence.traces and evidence.traces[rank].ended]
    found += [f"rank {rank} ({_label(evidence, rank)}): has ended" for rank in ended[:MAX_ENDED]]
    unanswered: Dict[str, List[int]] = {}
    for rank, trace in sorted(evidence.traces.items()):
        if trace.why:
            unanswered.setdefault(trace.why, []).append(rank)
    found += [f"no traces of {_ranks(ranks)}: {why}" for why, ranks in unanswered.items()]
    if evidence.silent:
        found.append(f"{folded_names(evidence.silent)} {'do' if evidence.silent[1:] else 'does'} not answer")
    finding = evidence.finding
    if finding.behind:
        found.append(f"{_ranks(finding.behind)} wait{'' if finding.behind[1:] else 's'} elsewhere, because of these")
    wrong = wrong_result(evidence) if finding.state != ADVANCING else ""
    if wrong:
        found.append(f"the run went on before, {wrong}")
    return [*found, *(_NOTES[note] for note in finding.notes if note in _NOTES)]


def remedy(finding: Finding) -> Optional[str]:
    """Return what helps; None where nothing is known to be wrong."""
    if hang_judge.BREAKPOINT in finding.notes:
        if finding.ranks[1:]:
            return "`clusterddp debug` lists the ranks at breakpoints, and `clusterddp debug RANK` attaches pdb to one"
        return f"`clusterddp debug {finding.ranks[0]}` attaches pdb, and the rank goes on when you leave"
    if finding.state == ADVANCING and finding.mismatch:
        return _REMEDIES.get(finding.mismatch.kind or "")
    if finding.state != HUNG:
        return None
    return _REMEDY_OF_ENDED if hang_judge.ENDED in finding.notes else _REMEDIES.get(finding.kind or "")


def _way(stack: WorkerStack) -> str:
    """Say that a stack was printed on a signal, which the worker may notice."""
    if stack.source == "faulthandler":
        return " (stack by signal, without py-spy: it may have ended a blocking C call early, EINTR)"
    return f" (no stack: {stack.why})" if stack.why else ""


def _at_breakpoint(evidence: Evidence) -> str:
    ranks = evidence.finding.ranks
    places = {at for rank in ranks if (at := _at(evidence, rank))}
    return (
        f"{_named(evidence, ranks)} stand{'' if ranks[1:] else 's'} at a breakpoint()"
        f"{f' at {places.pop()}' if len(places) == 1 else ''}, and no rank waits in a collective operation"
    )


def _unknown(evidence: Evidence) -> str:
    reasons = sorted({trace.why for trace in evidence.traces.values() if trace.why})
    if not evidence.traces:
        return "no worker is there yet, or no host answers"
    if hang_judge.NO_TRACES in evidence.finding.notes and reasons:
        return f"its workers do not say which operations they are in: {reasons[0]}"
    if evidence.finding.waiting:
        waiters = _waiters(evidence)[len("; ") :]
        return f"it is not known for whom {waiters} in {_operation(evidence.finding)}"
    known = [_UNKNOWN[note] for note in evidence.finding.notes if note in _UNKNOWN]
    return "; ".join(known) or "what its ranks do is not known"


def wrong_result(evidence: Evidence) -> str:
    """Say that an operation ended although its ranks did not agree in it; empty if none did."""
    mismatch = evidence.finding.mismatch
    if mismatch is None:
        return ""
    called = f"called {_others(mismatch)} as #{mismatch.sequence} of group {mismatch.group}"
    text = f"but with a wrong result: {_named(evidence, mismatch.ranks)} {called}"
    if not mismatch.waiting or mismatch.operation is None:
        return text
    return f"{text}, {_ranks(mismatch.waiting)} called {describe(mismatch.operation)}"


def _operation(finding: Finding) -> str:
    if not finding.operation:
        return "the others"
    return operation_in_words(finding.operation, finding.sequence, finding.group)


def _named(evidence: Evidence, ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} ({_label(evidence, ranks[0])})"
    unseen = evidence.silent[0] if len(evidence.silent) == 1 else ""
    hosts = {evidence.hosts.get(rank, unseen) for rank in ranks}
    return f"{_ranks(ranks)} ({hosts.pop()})" if len(hosts) == 1 and "" not in hosts else _ranks(ranks)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if ranks[1:] else ''} {ranges(ranks)}"


def _label(evidence: Evidence, rank: int) -> str:
    trace = evidence.traces.get(rank)
    if trace and rank in evidence.hosts:
        return f"{evidence.hosts[rank]}:{trace.local_rank}"
    return evidence.silent[0] if len(evidence.silent) == 1 else "no answer"


def _doing(evidence: Evidence, ranks: Sequence[int]) -> str:
    """What the first of these ranks that was looked at does instead."""
    rank = next((rank for rank in ranks if rank in evidence.stacks), ranks[0])
    subject = "it" if len(ranks) == 1 else f"rank {rank}"
    if rank not in evidence.traces:
        return f"what {'it does' if len(ranks) == 1 else 'they do'} is not known"
    if evidence.traces[rank].ended:
        return f"{subject} has ended"
    frame = _own_frame(evidence, rank)
    if frame is None:
        return f"{subject} is {_activity(evidence, rank)}"
    position = _position(evidence, rank, frame)
    inside = f"at {position}" if frame.function == "<module>" else f"in {frame.function}, {position}"
    return f"{subject} is {inside}, {_activity(evidence, rank)}"


def _activity(evidence: Evidence, rank: int) -> str:
    trace = evidence.traces.get(rank)
    if trace is None:
        return "not known: it does not answer"
    return activity(trace, evidence.stacks.get(rank), busy=evidence.finding.state == WAITING)


def _waiters(evidence: Evidence) -> str:
    finding = evidence.finding
    if not finding.waiting:
        return ""
    waits = "waits" if len(finding.waiting) == 1 else "wait"
    return f"; {_ranks(finding.waiting)} {waits}{_at_first(evidence, finding.waiting)}{_since(finding)}"


def _since(finding: Finding) -> str:
    return f" since {short_duration(finding.since_us / 1e6)}" if finding.since_us else ""


def _others(finding: Finding) -> str:
    return " and ".join(_ranks_by_call(finding))


def _scene(evidence: Evidence) -> str:
    """Where those to blame are, what the others called, and where these are."""
    finding = evidence.finding
    parts = []
    for ranks in _ranks_by_call(finding).values():
        at = _at_first(evidence, ranks)
        if at:
            parts.append(f"{_ranks(ranks)}{at}" if finding.ranks[1:] else at.strip())
    text = f" ({'; '.join(parts)})" if parts else ""
    if not finding.waiting:
        return f"{text}{_since(finding)}"
    usual = describe(finding.operation) if finding.operation else "another"
    return f"{text}, {_ranks(finding.waiting)} called {usual}{_at_first(evidence, finding.waiting)}{_since(finding)}"


def _each_wait(evidence: Evidence) -> str:
    calls = _ranks_by_call(evidence.finding).items()
    return "; ".join(f"{_ranks(ranks)} in {what}{_at_first(evidence, ranks)}" for what, ranks in calls)


def _ranks_by_call(finding: Finding) -> Dict[str, List[int]]:
    """Group the ranks that called another operation than most by the operation that they called."""
    calls: Dict[str, List[int]] = {}
    for rank, what in finding.others:
        calls.setdefault(what, []).append(rank)
    return calls


def _at_first(evidence: Evidence, ranks: Sequence[int]) -> str:
    """`` at FILE:LINE`` of the first of these ranks whose stack is known; empty if none is."""
    return next((f" at {at}" for rank in ranks if (at := _at(evidence, rank))), "")


def _at(evidence: Evidence, rank: int) -> Optional[str]:
    """``FILE:LINE`` of a rank's own code; None if its stack is not known."""
    frame = _own_frame(evidence, rank)
    return _position(evidence, rank, frame) if frame else None


def _own_frame(evidence: Evidence, rank: int) -> Optional[StackFrame]:
    """The innermost frame of a rank's own code: of its main thread, else, where the script has ended, of another."""
    stack = evidence.stacks.get(rank)
    for frames in (stack.frames, *stack.threads) if stack else ():
        own = [frame for frame in frames if not frame.installed]
        if own:
            return own[-1]
    return None


def _position(evidence: Evidence, rank: int, frame: StackFrame) -> str:
    """Return a frame as ``FILE:LINE``; the file is relative to the host's workdir if it lies below it."""
    workdir = evidence.workdirs.get(evidence.hosts.get(rank, ""), "").rstrip("/")
    below = bool(workdir) and frame.file.startswith(workdir + "/")
    return f"{frame.file[len(workdir) + 1 :] if below else frame.file}:{frame.line}"
