"""Two looks at all workers, a second apart: which ranks wait in which operation, and which have moved meanwhile."""

from typing import Dict, FrozenSet, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from .ranks_groups import TWICE, Entry, Group, align_groups, believed
from .trace_records import DONE, LOCK, MAKING_GROUPS, READ, SLEEP, Operation, WorkerTrace

BUSY_MS = 50  # milliseconds of CPU time between two looks that only a worker at work takes
BUSY_BYTES = 1 << 20  # bytes read or written between two looks that only a worker at work reads or writes
WAKES = 3  # times that a thread is woken between two looks by a timer that is no mere monitor's


class Wait(NamedTuple):
    """An operation that the same ranks wait in at both looks."""

    group: Group
    sequence: int
    ranks: Tuple[int, ...]
    absent: FrozenSet[int]  # members that have not called it

    @property
    def entries(self) -> Dict[int, Entry]:
        """The entries of those that wait."""
        return {rank: self.group.entries[rank][self.sequence] for rank in self.ranks}

    @property
    def age(self) -> int:
        """Microseconds that the first has waited."""
        return max(entry.age for entry in self.entries.values())

    @property
    def operation(self) -> Operation:
        """What they wait in."""
        return self.entries[self.ranks[0]].operation


class Looks(NamedTuple):
    """Two looks at the ranks of a world."""

    world: FrozenSet[int]
    before: Mapping[int, WorkerTrace]
    after: Mapping[int, WorkerTrace]
    groups: Sequence[Group]  # at the second look
    waits: Sequence[Wait]  # those that have lasted longest first
    blocked: FrozenSet[int]  # ranks that wait in an operation
    silent: FrozenSet[int]  # ranks of which it is not known what they have called, nor what they wait in
    storing: Mapping[int, str]  # ranks that wait outside groups, and the call in which they do
    stepping: FrozenSet[int]  # ranks that go on from one such wait to the next

    def both(self, ranks: Iterable[int]) -> List[Tuple[WorkerTrace, WorkerTrace]]:
        """Both looks at each of these ranks that was seen twice."""
        return [(self.before[rank], self.after[rank]) for rank in ranks if rank in self.before and rank in self.after]

    def changed(self, ranks: Iterable[int]) -> bool:
        """Whether one of these has called or finished an operation, or ended a wait, between the looks."""
        return any(_has_moved(*both) for both in self.both(ranks)) or not self.stepping.isdisjoint(ranks)

    def active(self, ranks: Iterable[int]) -> bool:
        """Whether one of these, or a process below it, has done something between the looks."""
        # The threads that a script has on all ranks, as its monitors, wake in those that hang too.
        usual = max((_woken_threads(*both) for both in self.both(self.blocked.union(self.storing))), default=0)
        return self.changed(ranks) or any(
            after.cpu_ms - before.cpu_ms >= BUSY_MS
            or after.io_bytes - before.io_bytes >= BUSY_BYTES
            or _main_thread_read(before, after)
            or (_main_thread_is_locked(before, after) and _woken_threads(before, after) > usual)
            for before, after in self.both(ranks)
        )

    def restarted(self) -> bool:
        """Whether a rank is another worker at the second look."""
        return any(
            (before.start, before.pid) != (after.start, after.pid)
            for before, after in self.both(self.world)
            if TWICE not in (before.why, after.why)
        )


def compare(world: Sequence[int], before: Sequence[WorkerTrace], after: Sequence[WorkerTrace]) -> Looks:
    """Compare the looks, the second about a second after the first; ``world`` is empty where it is not known."""
    ranks = frozenset(world or [trace.rank for trace in (*before, *after)])
    earlier, now = believed(ranks, before), believed(ranks, after)
    now = {rank: _remembered(earlier.get(rank), trace) for rank, trace in now.items()}
    groups = align_groups(ranks, now)
    waits = _lasting(ranks, align_groups(ranks, earlier), groups)
    blocked = frozenset(rank for wait in waits for rank in wait.ranks)
    stepping = frozenset(rank for rank, trace in now.items() if rank in earlier and _has_stepped(earlier[rank], trace))
    return Looks(
        world=ranks,
        before=earlier,
        after=now,
        groups=groups,
        waits=waits,
        blocked=blocked,
        silent=ranks - {rank for rank, trace in now.items() if trace.waits or not trace.why},
        storing=_storing(earlier, now, stepping),
        stepping=stepping - blocked,
    )


def _lasting(world: FrozenSet[int], earlier: Sequence[Group], groups: Sequence[Group]) -> List[Wait]:
    """Return the operations that the same ranks wait in at both looks, the longest wait first."""
    past = {group.key: group.waiting() for group in earlier}
    waits = []
    for group in groups:
        for sequence, waiting in group.waiting().items():
            then = {*past.get(group.key, {}).get(sequence, ())}
            same = tuple(rank for rank in waiting if rank in then)
            absent = _absent(group, sequence, world)
            if same and (absent or not _left_behind(group, sequence, same)):
                waits.append(Wait(group, sequence, same, absent))
    return sorted(waits, key=lambda wait: -wait.age)


def _storing(
    before: Mapping[int, WorkerTrace], after: Mapping[int, WorkerTrace], stepping: FrozenSet[int]
) -> Dict[int, str]:
    """The ranks that wait outside groups at both looks, and the call in which they do: if possible one that lasts."""
    found: Dict[int, str] = {}
    for rank in sorted(after.keys() & before.keys() - stepping):
        first, second = before[rank], after[rank]
        waits = _lasting_calls(first, second) or {*first.waits} & {*second.waits}
        if waits:
            found[rank] = max(waits, key=_outermost)
    return found


def _lasting_calls(before: WorkerTrace, after: WorkerTrace) -> Set[str]:
    """The waits outside groups that a worker is in at both looks, and that it has not begun anew between them."""
    return {name for name, _ in {*zip(before.waits, before.calls)} & {*zip(after.waits, after.calls)}}


def _has_stepped(before: WorkerTrace, after: WorkerTrace) -> bool:
    """Whether a worker has begun or ended a wait outside groups between the looks.

    A call that makes a group waits at the store again and again, without getting any further.
    """
    if before.why or after.why or (before.waits, before.calls) == (after.waits, after.calls):
        return False
    return not any(name.startswith(MAKING_GROUPS) for name in _lasting_calls(before, after))


def _remembered(before: Optional[WorkerTrace], after: WorkerTrace) -> WorkerTrace:
    """A worker at the second look; what it has called before if it does not answer now."""
    if before is None or not after.why or TWICE in (after.why, before.why) or after.state == "T":
        return after
    return after._replace(groups=before.groups)


def _absent(group: Group, sequence: int, world: FrozenSet[int]) -> FrozenSet[int]:
    """The members that have not called an operation; a rank that waits alone has at least one other member."""
    others = world.difference(group.members, group.unsure)
    if not group.whole and len(group.members) == 1 == len(others):
        return others
    return frozenset(group.absent(sequence))


def _left_behind(group: Group, sequence: int, ranks: Sequence[int]) -> bool:
    """Whether all of these have finished later operations of the group: nobody waits in this one."""
    return all(
        any(number > sequence and entry.progress == DONE for number, entry in group.entries[rank].items())
        for rank in ranks
    )


def _has_moved(before: WorkerTrace, after: WorkerTrace) -> bool:
    """Whether a worker's newest or oldest unfinished operation is another at the second look."""
    first, second = (
        {
            group.ident: (
                max((row[0] for row in group.entries), default=0),
                min((row[0] for row in group.entries if row[2] != DONE), default=0),
            )
            for group in trace.groups
        }
        for trace in (before, after)
    )
    return not (before.why or after.why) and any(first.get(ident, (0, 0)) != at for ident, at in second.items())


def _same_waits(before: WorkerTrace, after: WorkerTrace, how: str) -> Dict[int, int]:
    """The threads that wait in this way at both looks: thread → how often it has been woken between them."""
    first = {wait.thread: wait.switches for wait in before.threads if wait.how == how}
    return {
        wait.thread: wait.switches - first[wait.thread]
        for wait in after.threads
        if wait.how == how and wait.thread in first
    }


def _main_thread_read(before: WorkerTrace, after: WorkerTrace) -> bool:
    return _same_waits(before, after, READ).get(after.pid, 0) > 0


def _main_thread_is_locked(before: WorkerTrace, after: WorkerTrace) -> bool:
    """Whether the main thread waits for another thread, so that what other threads do tells whether it goes on."""
    return after.pid in _same_waits(before, after, LOCK)


def _woken_threads(before: WorkerTrace, after: WorkerTrace) -> int:
    """How many threads beside the main one have got data, or have been woken often, between the looks."""
    woken = {READ: 1, SLEEP: WAKES}
    return sum(
        times >= least and thread != after.pid
        for how, least in woken.items()
        for thread, times in _same_waits(before, after, how).items()
    )


def _outermost(wait: str) -> Tuple[bool, str]:
    """Sort key of a wait's name: the call a user knows is behind those at the store."""
    return not wait.startswith(("TCPStore", "FileStore")), wait
