"""What a look tells of all ranks' process groups: of each rank at most one worker, of each group one view.

Groups of different workers are the same if they have the same name and are the first, second, … of that name: torch's
own numbers differ between ranks, and names begin anew after ``destroy_process_group``. A worker is the user's process
and a host may be wrong: what contradicts itself counts as not said.
"""

from typing import Dict, FrozenSet, List, Mapping, NamedTuple, Sequence, Tuple

from .trace_records import DONE, NCCL, GroupTrace, Operation, WorkerTrace

DEFAULT_GROUP = "0"  # the name of the group of all ranks
ROOTED = ("broadcast", "reduce", "gather", "scatter")  # operations with a root, which the trace does not have
MANY_GROUPS = 8  # a worker that has so many may have more than its host sends
TWICE = "two workers say that they are this rank"

Key = Tuple[str, int]  # a group: its name, and which one of that name it is


class Entry(NamedTuple):
    """One operation of one rank."""

    operation: Operation
    progress: int  # CREATED, STARTED or DONE
    age: int  # microseconds since it was created


class Group(NamedTuple):
    """One process group, as all its ranks that answered know it."""

    key: Key
    description: str
    members: Tuple[int, ...]  # ranks; of a subgroup those that were seen in it
    whole: bool  # these are all its members
    unsure: Tuple[int, ...]  # ranks that may have called operations of it that are not told
    entries: Mapping[int, Mapping[int, Entry]]  # rank → sequence number → entry

    def last(self, rank: int) -> int:
        """The sequence number of a rank's last operation; 0 if it has none."""
        return max(self.entries.get(rank, ()), default=0)

    def absent(self, sequence: int) -> List[int]:
        """The members that have not called the operation with this sequence number, as far as is known."""
        return [rank for rank in self.members if self.last(rank) < sequence and rank not in self.unsure]

    def waiting(self) -> Dict[int, List[int]]:
        """The operations that are not done: sequence number → ranks, in ascending order."""
        found: Dict[int, List[int]] = {}
        for rank in sorted(self.entries):
            for sequence, entry in self.entries[rank].items():
                if entry.progress != DONE:
                    found.setdefault(sequence, []).append(rank)
        return found

    def callers(self, sequence: int) -> Dict[int, Entry]:
        """The entries with this sequence number, by rank in ascending order."""
        return {rank: self.entries[rank][sequence] for rank in sorted(self.entries) if sequence in self.entries[rank]}


def believed(world: FrozenSet[int], look: Sequence[WorkerTrace]) -> Dict[int, WorkerTrace]:
    """The worker of each rank of the world that was seen; of one that cannot be believed only why not."""
    by_rank: Dict[int, List[WorkerTrace]] = {}
    for trace in look:
        by_rank.setdefault(trace.rank, []).append(trace)
    return {rank: _one_of(by_rank[rank]) for rank in sorted(by_rank) if rank in world}


def _one_of(traces: Sequence[WorkerTrace]) -> WorkerTrace:
    """The newest of the workers that say they are one rank, if there is one."""
    newest = max(trace.start for trace in traces)
    first, *more = (trace for trace in traces if trace.start == newest)
    if any(trace != first for trace in more):
        return WorkerTrace(first.rank, 0, newest, 0, "", "", 0, 0, (), why=TWICE)
    return first


def align_groups(world: FrozenSet[int], looks: Mapping[int, WorkerTrace]) -> List[Group]:
    """The groups of all workers, each once; the default group has all ranks of ``world``."""
    by_name: Dict[str, Dict[int, List[GroupTrace]]] = {}
    for rank in sorted(looks):
        for group in sorted(looks[rank].groups, key=lambda group: group.ident):
            by_name.setdefault(group.name, {}).setdefault(rank, []).append(group)
    found: Dict[Key, Dict[int, GroupTrace]] = {}
    for name, traces in by_name.items():
        longest = max(traces.values(), key=len)
        for rank, groups in traces.items():
            first = _shift(groups, longest)
            for number, group in enumerate(groups):
                found.setdefault((name, first + number), {})[rank] = group
    return [_group(key, world, found[key], looks) for key in sorted(found)]


def _shift(groups: Sequence[GroupTrace], longest: Sequence[GroupTrace]) -> int:
    """The place of a rank's first group of a name in the longest list that a rank has: there operations have one age.

    A rank has fewer where it has not made the last ones, or where its recorder has lost the first ones.
    """

    def distance(shift: int) -> int:
        ages = {row[0]: row[3] for row in longest[shift].entries}
        return min((abs(row[3] - ages[row[0]]) for row in groups[0].entries if row[0] in ages), default=1 << 63)

    return min(range(len(longest) - len(groups) + 1), key=distance)


def _group(
    key: Key, world: FrozenSet[int], traces: Mapping[int, GroupTrace], looks: Mapping[int, WorkerTrace]
) -> Group:
    titles = sorted({group.title for group in traces.values()} - {key[0]})
    entries = {rank: _entries(group) for rank, group in traces.items()}
    others = sorted(world.difference(traces))
    complete = not others or any(
        entry.progress == DONE and entry.operation.name not in ROOTED
        for of_rank in entries.values()
        for entry in of_rank.values()
    )  # an operation that is done has had all members, and so they are in the traces
    unsure = tuple(rank for rank in others if rank in looks and len(looks[rank].groups) >= MANY_GROUPS)
    unheard = [rank for rank in others if rank not in looks or looks[rank].why or rank in unsure]
    is_default = key[0] in (DEFAULT_GROUP, DEFAULT_GROUP + NCCL)
    return Group(
        key=key,
        description=titles[0] if titles else key[0],
        members=tuple(sorted(world)) if is_default else tuple(sorted(traces)),
        whole=is_default or (complete and not unheard),
        unsure=unsure,
        entries=entries,
    )


def _entries(group: GroupTrace) -> Dict[int, Entry]:
    return {row[0]: Entry(group.operations[row[1]], row[2], row[3]) for row in group.entries}
