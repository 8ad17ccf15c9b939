"""Decide from two looks at all workers whether a run hangs, in which operation, and which ranks are to blame. Pure.

Within a group, operations with the same sequence number belong together; ranks_groups.py says which groups do. A rank
that waits for one that waits elsewhere itself is not to blame for it: the judge follows the ranks to the one that waits
for nobody. Where the traces fit two causes both are named, or a note says so. Gloo records neither roots nor reduce
operations nor sends and receives.
"""

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from .ranks_groups import ROOTED, TWICE, Group, align_groups, believed
from .trace_records import CREATED, DONE, MAKING_GROUPS, NCCL, SAME_SHAPE, STARTED, Operation, WorkerTrace
from .two_looks import Looks, Wait, compare

ADVANCING, WAITING, HUNG, UNDECIDED = "advancing", "waiting", "hung", "undecided"  # states
MISSING, OTHER_OPERATION, OTHER_SHAPE, OTHER_ROOT = "missing", "other-operation", "other-shape", "other-root"  # classes
OTHER_ORDER, BEFORE_FIRST, TRANSPORT, DEVICE = "other-order", "before-first", "transport", "device"
BUSY_KINDS = (MISSING, BEFORE_FIRST, TRANSPORT, OTHER_ROOT)  # classes of which some are no hang while ranks work

# Notes: what speaks against a finding, or for something else as well.
TIE = "tie"  # as many ranks called the one as the other
LOOP = "loop"  # more ranks are missing than wait: those that wait may run one iteration more
ALONE = "alone"  # the same of a wait outside groups: those that wait may be in a call that the others never meant
SILENT = "silent"  # ranks say nothing of themselves: if all that are missing do, they are blamed for that
MEMBERS = "members"  # a subgroup's members are only those that were seen in it
CHAIN = "chain"  # other ranks wait elsewhere, for those that wait here or those to blame (``behind``)
MORE = "more"  # ranks that are not named are missing in other groups
ROOT = "root"  # roots are not recorded: different ones, or a connection that carries nothing, look alike
RESTARTED = "restarted"  # workers were started anew between the looks
STORES = "stores"  # all ranks wait outside groups: none is missing
WORLD = "world"  # the number of ranks is not known, or a worker has a rank beyond it
CLAIMED_TWICE = "twice"  # two workers say that they are the same rank
ENDED = "ended"  # those to blame have ended
BREAKPOINT = "breakpoint"  # stacks show that those to blame are at a breakpoint
NO_TRACES, NOBODY_WAITS = "no-traces", "nobody-waits"  # why nothing is decided


class Finding(NamedTuple):
    """What is wrong with a run, or that nothing is."""

    state: str
    kind: Optional[str] = None  # the class; None if nobody waits
    ranks: Tuple[int, ...] = ()  # to blame
    waiting: Tuple[int, ...] = ()  # for them
    group: str = ""  # the description of the group they wait in
    sequence: Optional[int] = None
    operation: Optional[Operation] = None  # the one that most ranks wait in
    others: Tuple[Tuple[int, str], ...] = ()  # what ranks do instead: rank and operation
    since_us: int = 0  # how long they have waited
    notes: Tuple[str, ...] = ()
    behind: Tuple[int, ...] = ()  # ranks that wait elsewhere, for those that wait here or those to blame
    mismatch: Optional["Finding"] = None  # an operation that ended although its ranks did not agree: a wrong result
    idle: Tuple[int, ...] = ()  # ranks that did nothing, where no recorded operation is waited in and others used CPU


def judge(world: Sequence[int], before: Sequence[WorkerTrace], after: Sequence[WorkerTrace]) -> Finding:
    """Judge two looks at a run with the ranks ``world``, the second about a second after the first."""
    looks = compare(world, before, after)
    notes = _doubts(world, looks, after)
    if looks.restarted():
        return Finding(UNDECIDED, notes=(RESTARTED, *notes))
    finding = _difference_waited_in(looks) or (_explain_waits(looks) if looks.waits else _without_waits(looks))
    if WORLD in notes and finding.kind in (TRANSPORT, OTHER_ROOT, DEVICE):  # a rank may be absent
        finding = finding._replace(state=UNDECIDED, kind=None, ranks=())
    return _with_mismatch(_calmed(finding, looks), looks, notes)


def wrong_result(world: Sequence[int], traces: Sequence[WorkerTrace]) -> Optional[Finding]:
    """The first operation that all its ranks finished although they did not agree in it, in a run that is over."""
    ranks = frozenset(world or [trace.rank for trace in traces])
    differences = map(_finished_difference, align_groups(ranks, believed(ranks, traces)))
    return next((difference._replace(state=ADVANCING) for difference in differences if difference), None)


def describe(operation: Operation) -> str:
    """An operation for people, as ``all_reduce (float32 [4])``."""
    return "%s (%s)" % (operation.name, operation.shape) if operation.shape else operation.name


def _doubts(world: Sequence[int], looks: Looks, after: Sequence[WorkerTrace]) -> Tuple[str, ...]:
    """The notes that hold whatever is found."""
    notes = [WORLD] if not world or any(trace.rank not in looks.world for trace in after) else []
    return (*notes, CLAIMED_TWICE) if any(trace.why == TWICE for trace in looks.after.values()) else tuple(notes)


def _calmed(finding: Finding, looks: Looks) -> Finding:
    """The finding without the word hung where the second look is not the same, or those to blame may be at work."""
    if finding.state != HUNG:
        return finding
    at_work = finding.kind in BUSY_KINDS and looks.active(finding.ranks)
    not_started = finding.kind == BEFORE_FIRST and not looks.after.keys() & {*finding.ranks}
    if at_work or not_started or looks.changed((*finding.ranks, *finding.waiting)):
        return finding._replace(state=WAITING)
    return finding


# Operations in which the ranks of a group do not agree


def _difference_waited_in(looks: Looks) -> Optional[Finding]:
    """An operation in which ranks do not agree and somebody waits: that of the longest wait."""
    differences = {group.key: _first_difference(group) for group in looks.groups}
    for wait in looks.waits:
        difference = differences[wait.group.key]
        if difference and {*wait.group.waiting().get(difference.sequence or 0, ())} & {*wait.ranks}:
            return difference
    return None


def _with_mismatch(finding: Finding, looks: Looks, notes: Tuple[str, ...]) -> Finding:
    """The finding, and an earlier operation that ended although its ranks did not agree in it.

    That one is the cause itself if the ranks have agreed in nothing since, or if otherwise most ranks were to blame.
    """
    finding = finding._replace(notes=(*finding.notes, *notes))
    if finding.kind in (OTHER_OPERATION, OTHER_SHAPE):
        return finding
    for group in looks.groups:
        mismatch = _finished_difference(group)
        if mismatch is None:
            continue
        if _explains(mismatch, finding, group):
            return mismatch._replace(state=finding.state, notes=(*mismatch.notes, *notes))
        return finding._replace(mismatch=mismatch._replace(state=ADVANCING))
    return finding


def _explains(mismatch: Finding, finding: Finding, group: Group) -> bool:
    """Whether what ranks wait in follows from an earlier operation that they did not agree in."""
    if finding.kind not in (MISSING, TRANSPORT, OTHER_ROOT) or finding.group != group.description:
        return False
    if LOOP in finding.notes:
        return True
    same = finding.kind != MISSING or {*finding.ranks} <= {*mismatch.ranks}
    return same and not _agree_after(group, mismatch.sequence or 0)


def _agree_after(group: Group, sequence: int) -> bool:
    """Whether the ranks have finished a later operation in which they agree."""
    ranks = {*group.callers(sequence)}
    for number in {number for entries in group.entries.values() for number in entries if number > sequence}:
        called = group.callers(number)
        done = all(entry.progress == DONE for entry in called.values())
        if ranks <= {*called} and done and len({entry.operation.key for entry in called.values()}) == 1:
            return True
    return False


def _finished_difference(group: Group) -> Optional[Finding]:
    """The first operation in which the ranks of a group do not agree, if all of them have finished it."""
    difference = _first_difference(group)
    called = group.callers(difference.sequence or 0) if difference else {}
    return difference if all(entry.progress == DONE for entry in called.values()) else None


def _first_difference(group: Group) -> Optional[Finding]:
    """The first operation in which the ranks of a group do not agree; None if they all agree."""
    for sequence in sorted({sequence for entries in group.entries.values() for sequence in entries}):
        called = group.callers(sequence)
        names = {rank: entry.operation.name for rank, entry in called.items()}
        if len({*names.values()}) > 1:
            return _disagreement(OTHER_OPERATION, group, sequence, names)
        keys = {rank: entry.operation.key for rank, entry in called.items()}
        if len({*keys.values()}) > 1 and {*names.values()} <= {*SAME_SHAPE}:
            return _disagreement(OTHER_SHAPE, group, sequence, keys)
    return None


def _disagreement(kind: str, group: Group, sequence: int, values: Mapping[int, str]) -> Finding:
    """Blame the ranks whose value fewest ranks have; of a tie all are named."""
    called = group.callers(sequence)
    usual = _usual(values)
    blamed = tuple(rank for rank in values if rank not in usual)
    notes = [] if usual else [TIE]
    if kind == OTHER_OPERATION and len({group.last(rank) for rank in called}) > 1:
        notes.append(LOOP)
    return Finding(
        state=HUNG,
        kind=kind,
        ranks=blamed,
        waiting=usual,
        group=group.description,
        sequence=sequence,
        operation=called[(usual or blamed)[0]].operation,
        others=tuple((rank, describe(called[rank].operation)) for rank in blamed),
        since_us=max(entry.age for entry in called.values()),
        notes=tuple(notes),
    )


def _usual(values: Mapping[int, str]) -> Tuple[int, ...]:
    """The ranks with the value that most ranks have; none if two values have as many."""
    by_value: Dict[str, List[int]] = {}
    for rank, value in values.items():
        by_value.setdefault(value, []).append(rank)
    most = max(len(ranks) for ranks in by_value.values())
    usual = [ranks for ranks in by_value.values() if len(ranks) == most]
    return tuple(usual[0]) if len(usual) == 1 else ()


# Ranks that wait for others


def _explain_waits(looks: Looks) -> Finding:
    """Say what the ranks wait for that wait in operations in which they agree."""
    ring = _ring(looks)
    if ring:
        return ring
    for silent_count in (False, True):
        blamed = [(wait, _to_blame(wait, looks, silent_count)) for wait in looks.waits]
        ends = [(wait, ranks) for wait, ranks in blamed if ranks]
        if ends:
            wait, ranks = min(ends, key=lambda end: (-len(end[1]), len(end[0].absent & looks.blocked)))
            more = {rank for _, others in ends for rank in others} - {*ranks}
            return _missing(wait, ranks, looks, more=bool(more))
    for wait in looks.waits:
        if not wait.absent and (wait.group.whole or {*wait.group.members} == looks.world):
            return _nobody_absent(wait, looks)
    return _not_whole(looks)


def _to_blame(wait: Wait, looks: Looks, silent_count: bool) -> List[int]:
    """Those who are absent from a wait and wait in no operation themselves; ranks that wait in a store come last."""
    absent = [rank for rank in sorted(wait.absent - looks.blocked) if silent_count or rank not in looks.silent]
    return [rank for rank in absent if rank not in looks.storing] or absent


def _missing(wait: Wait, ranks: Sequence[int], looks: Looks, *, more: bool) -> Finding:
    if looks.storing.keys() >= {*ranks} and (len(ranks) >= len(wait.ranks) or _make_group(ranks, looks)):
        return _call_instead(wait, ranks, looks)
    if any(rank in looks.after and looks.after[rank].why == TWICE for rank in ranks):
        return Finding(UNDECIDED, waiting=wait.ranks)  # the note says why
    behind = _behind(wait, ranks, looks)
    notes = {
        LOOP: len(wait.absent - looks.silent) > len(wait.ranks),
        SILENT: bool(wait.absent & looks.silent),
        MEMBERS: not wait.group.whole,
        CHAIN: bool(behind),
        MORE: more,
        ENDED: all(rank in looks.after and looks.after[rank].ended for rank in ranks),
    }
    return _found(MISSING, ranks, wait)._replace(notes=tuple(note for note in notes if notes[note]), behind=behind)


def _behind(wait: Wait, ranks: Sequence[int], looks: Looks) -> Tuple[int, ...]:
    """The ranks that wait elsewhere, for those that wait here or for those to blame."""
    return tuple(sorted(looks.blocked.union(looks.storing) - {*wait.ranks} - {*ranks}))


def _make_group(storing: Sequence[int], looks: Looks) -> bool:
    """Whether these wait in a call that makes a group: they wait for its other members, not for a key of their own."""
    return all(looks.storing[rank].startswith(MAKING_GROUPS) for rank in storing)


def _call_instead(wait: Wait, storing: Sequence[int], looks: Looks) -> Finding:
    """Some ranks wait in an operation, others in a call outside groups: the fewer are to blame.

    A few that make a group may be right, for most ranks may be no members of it: then all are named.
    """
    both = len(storing) <= len(wait.ranks)
    others = {rank: describe(entry.operation) for rank, entry in wait.entries.items()}
    if both:
        others.update({rank: looks.storing[rank] for rank in storing})
    return Finding(
        state=HUNG,
        kind=OTHER_OPERATION,
        ranks=tuple(sorted(others)),
        waiting=() if both else tuple(storing),
        group=wait.group.description,
        sequence=wait.sequence,
        operation=wait.operation if both else Operation(looks.storing[storing[0]], "", ""),
        others=tuple(sorted(others.items())),
        since_us=wait.age,
        notes=(TIE if len(storing) == len(wait.ranks) else MEMBERS,) if both else (),
    )


def _found(kind: str, ranks: Sequence[int], wait: Wait) -> Finding:
    return Finding(
        state=HUNG,
        kind=kind,
        ranks=tuple(sorted(ranks)),
        waiting=wait.ranks,
        group=wait.group.description,
        sequence=wait.sequence,
        operation=wait.operation,
        since_us=wait.age,
    )


def _nobody_absent(wait: Wait, looks: Looks) -> Finding:
    """All ranks have called the same operation, and some or all of them do not finish it."""
    started = [rank for rank, entry in wait.entries.items() if entry.progress == STARTED]
    if started:
        not_started = [rank for rank, entry in wait.entries.items() if entry.progress == CREATED]
        return _found(DEVICE, not_started or wait.ranks, wait)
    done = len(wait.group.waiting()[wait.sequence]) < len(wait.group.members)
    rooted = wait.operation.name in ROOTED
    finding = _found(OTHER_ROOT if rooted and done else TRANSPORT, wait.group.members if rooted else wait.ranks, wait)
    behind = _behind(wait, (), looks)
    return finding._replace(notes=(ROOT,) if rooted else (), behind=behind)


def _not_whole(looks: Looks) -> Finding:
    """Judge waits in subgroups whose members are not all known, so that nobody can be said to be absent."""
    wait = looks.waits[0]
    lone = any(len(each.ranks) == len(each.group.members) == 1 for each in looks.waits)
    if lone and looks.blocked == looks.world and len({each.group.key for each in looks.waits}) > 1:
        return _other_order(looks.waits)._replace(notes=(MEMBERS,))
    unknown = Finding(UNDECIDED, waiting=wait.ranks, group=wait.group.description, sequence=wait.sequence)
    return unknown._replace(operation=wait.operation, since_us=wait.age, notes=(MEMBERS,))


def _ring(looks: Looks) -> Optional[Finding]:
    """Say that ranks wait for each other in different groups, each in one of these waits."""
    needs: Dict[int, Set[int]] = {}
    for wait in looks.waits:
        for rank in wait.ranks:
            needs.setdefault(rank, set()).update(wait.absent)
    reached = {rank: _reachable(rank, needs) for rank in needs}
    for wait in looks.waits:
        rank = wait.ranks[0]
        ring = {other for other in reached[rank] if rank in reached.get(other, ())}
        if ring:
            return _other_order([each for each in looks.waits if ring & {*each.ranks} and ring & each.absent], ring)
    return None


def _reachable(rank: int, needs: Mapping[int, Set[int]]) -> Set[int]:
    """The ranks that one waits for, directly or by others."""
    found: Set[int] = set()
    new = [rank]
    while new:
        more = needs.get(new.pop(), set()) - found
        found |= more
        new += more
    return found


def _other_order(waits: Sequence[Wait], ring: Optional[Set[int]] = None) -> Finding:
    """Name all who wait in these, or those of them that are in the ring."""
    others: Dict[int, str] = {}
    for wait in waits:
        for rank, entry in wait.entries.items():
            if ring is None or rank in ring:
                others.setdefault(rank, "%s of group %s" % (describe(entry.operation), wait.group.description))
    ranks = tuple(sorted(others))
    finding = _found(OTHER_ORDER, ranks, waits[0])
    return finding._replace(waiting=ranks, others=tuple(sorted(others.items())))


# Runs in which nobody waits in an operation of a group


def _without_waits(looks: Looks) -> Finding:
    """Nobody waits in an operation of a group: they advance, wait in a store, or it is not known what they do."""
    if looks.changed(looks.world):
        return Finding(ADVANCING)
    if looks.silent == looks.world:
        return Finding(UNDECIDED, notes=(NO_TRACES,))
    if looks.storing:
        return _before_first(looks)
    if looks.active(looks.world):
        return Finding(ADVANCING if looks.groups else WAITING, idle=_idle(looks))
    return Finding(UNDECIDED, notes=(NOBODY_WAITS,))


def _idle(looks: Looks) -> Tuple[int, ...]:
    """The ranks that did nothing between the looks, where the others may be busy waiting in NCCL; none on gloo."""
    if looks.groups and not any(group.key[0].endswith(NCCL) for group in looks.groups):
        return ()
    seen = [trace.rank for _, trace in looks.both(sorted(looks.world)) if not trace.ended]
    return tuple(rank for rank in seen if not looks.active([rank]))


def _before_first(looks: Looks) -> Finding:
    """Some wait outside groups: blame those that do not, and of these the ones that say something of themselves."""
    storing = looks.storing
    absent = sorted(looks.world.difference(storing))
    ranks = [rank for rank in absent if rank not in looks.silent] or absent
    operation = Operation(storing[min(storing)], "", "")
    waiting = tuple(sorted(storing))
    if not ranks or any(rank in looks.after and looks.after[rank].why == TWICE for rank in ranks):
        return Finding(UNDECIDED, waiting=waiting, operation=operation, notes=() if ranks else (STORES,))
    notes = {ALONE: len(ranks) > len(storing), SILENT: bool({*absent} & looks.silent)}
    return Finding(
        HUNG,
        BEFORE_FIRST,
        tuple(ranks),
        waiting,
        operation=operation,
        notes=tuple(note for note in notes if notes[note]),
    )
