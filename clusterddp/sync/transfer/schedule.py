"""Decides which host gets which unit of a transfer from whom. No I/O: values in, orders out.

The operator gives every unit to one host, and from there it goes on to the others: a host takes it from the least busy
host that has it. What no other host can give, the operator does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from clusterddp.sync.transfer.chunk_units import Unit

OPERATOR = None  # this machine, as a source
MAX_FIRST_COPIES = 6  # the most first copies under way at once from the operator
MAX_FROM_OPERATOR = 2  # the most units under way at once from the operator to one host
MAX_DOWNLOADS = 4  # the most units under way at once to one host from others
MAX_UPLOADS = 4  # the most units under way at once from one host
MAX_UPLOADS_EACH = 2  # the most of them to the same host
MIN_GAIN = 2.0  # seconds that passing on must save
_MAX_CONSIDERED = 32  # units considered at a time for a host that could take one
_MIN_MEASURED = 0.5  # seconds of transfer after which its rate is trusted
_MIN_TRIED = 2  # a host that cannot reach so many others is itself considered cut off
_MIN_SAMPLES = 3  # transfers after which their usual time is known
_MIN_LATE = 5.0  # seconds after which a unit from another host is late, at least
_LATE_DEFAULT = 15.0  # the same while the usual time is unknown; and for a unit from the operator, at least
_LATE_FACTOR = 5  # a unit is late after so many times the usual time


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitTransfer:
    """An order: a host gets a unit from another host, or from the operator."""

    host: str
    unit: int
    source: str | None


@dataclass(kw_only=True, slots=True)
class _ScheduledHost:
    """A host in a transfer."""

    wants: set[int]  # units that it lacks
    # those of them under way: source and start time of each
    taking: dict[int, tuple[str | None, float]] = field(default_factory=dict)
    from_hosts: dict[int, None] = field(default_factory=dict)  # a queue of those that other hosts can give
    from_operator: dict[int, None] = field(default_factory=dict)  # a queue of those that only the operator can give
    gives: bool | None = None  # it passes units on; None: not known yet
    isolated: bool = False  # it takes nothing from other hosts
    sending: Counter[str] = field(default_factory=Counter)  # the number of units it is sending, by receiver
    refused: set[str] = field(default_factory=set)  # hosts that refused or failed to give it a unit
    unreached: set[str] = field(default_factory=set)  # those of them that it could not even connect to
    received: int = 0  # the number of units it got in this transfer
    has_taken: bool = False  # it has received something from another host
    # units still on their way from the operator, which were late; until it has them it is sent no more from there
    overdue: set[int] = field(default_factory=set)
    reported: float = 0.0  # when it last got a unit, from anywhere
    silent: bool = False  # some are overdue, and it has got nothing at all for so long

    @property
    def loading(self) -> int:
        """The number of units under way from the operator."""
        return sum(source is OPERATOR for source, _ in self.taking.values())


class Schedule:
    """The state of a transfer; call ``orders`` after every event.

    ``wants`` has the units that each host lacks; a host takes part from ``add`` on.
    """

    def __init__(self, units: Sequence[Unit], wants: Mapping[str, Iterable[int]]) -> None:
        self.spreading = False  # whether hosts pass units on to each other
        self._units = units
        self._wants = {name: set(own) for name, own in wants.items()}
        self._members: dict[str, _ScheduledHost] = {}
        self._holders: list[set[str]] = [set() for _ in units]  # by unit, the hosts that have it
        # the units that no host has or is being sent
        self._unsent: dict[int, None] = dict.fromkeys(range(len(units)))
        self._began: float | None = None
        self._sent_bytes = 0  # from the operator
        self._durations = {True: [0.0, 0.0], False: [0.0, 0.0]}  # from the operator → seconds, units

    @property
    def done(self) -> bool:
        """Whether all hosts that take part have everything, not counting silent ones."""
        return not any(one.wants and not one.silent for one in self._members.values())

    def is_free(self, name: str, *, all_ready: bool) -> bool:
        """Whether a host has everything and no host can need it any more; ``all_ready``: no more will take part."""
        member = self._members.get(name)
        return member is not None and not member.wants and (not member.received or (self.done and all_ready))

    def add(self, name: str) -> None:
        """Add a host that is ready."""
        member = self._members[name] = _ScheduledHost(wants=self._wants.pop(name, set()))
        for unit in member.wants:
            self._queue_unit(member, unit)

    def remove(self, name: str) -> None:
        """Remove a host that no longer takes part."""
        self._wants.pop(name, None)
        member = self._members.pop(name, None)
        if member is None:
            return
        for source, _ in member.taking.values():
            if source in self._members:
                self._members[source].sending[name] -= 1
        for holders in self._holders:
            holders.discard(name)
        lost = {}
        for other in self._members.values():
            lost[id(other)] = [unit for unit, (source, _) in other.taking.items() if source == name]
            for unit in lost[id(other)]:
                del other.taking[unit]
        coming = {unit for other in self._members.values() for unit in other.taking}
        self._unsent.update(
            dict.fromkeys(unit for unit, own in enumerate(self._holders) if not own and unit not in coming)
        )
        for other in self._members.values():
            for unit in [*lost[id(other)], *other.from_hosts]:
                self._queue_unit(other, unit)

    def set_roles(self, name: str, *, gives: bool, takes: bool) -> None:
        """Record whether a host passes units on from now on, and takes what others pass on."""
        member = self._members.get(name)
        if member is None:
            return
        member.gives, member.isolated = gives, not takes
        for unit in member.wants if member.isolated else ():
            self._queue_unit(member, unit)
        for unit, holders in enumerate(self._holders):
            for other in self._members.values() if name in holders else ():
                self._queue_unit(other, unit)

    def count_sent(self, size: int) -> None:
        """Count bytes that have left the operator."""
        self._sent_bytes += size

    def record_arrival(self, name: str, unit: int, now: float) -> int:
        """Record that a host has a unit; the number of bytes that are new there."""
        member = self._members.get(name)
        if member is None or unit not in member.wants:
            return 0
        member.overdue.discard(unit)
        member.reported, member.silent = now, False
        if unit in member.taking:
            source, since = member.taking[unit]
            time = self._durations[source is OPERATOR]
            time[:] = time[0] + now - since, time[1] + 1
            member.has_taken = member.has_taken or source is not OPERATOR
        self._drop_transfer(name, unit)
        member.wants.discard(unit)
        member.received += 1
        self._holders[unit].add(name)
        self._queue_unit(member, unit)
        for other in self._members.values():
            if unit in other.wants and unit not in other.taking and unit not in other.from_hosts:
                self._queue_unit(other, unit)
        return self._units[unit].size

    def cannot_reach_others(self, name: str) -> bool:
        """Whether a host can reach none of the others, as far as it has tried."""
        member = self._members.get(name)
        tried = member is not None and member.unreached and not member.has_taken
        return bool(member and tried and (self._is_cut_off(member) or not member.wants))

    def record_failure(self, name: str, unit: int, source: str, *, reached: bool) -> None:
        """Record that a host did not get a unit from another; ``reached``: it could at least connect."""
        member = self._members.get(name)
        if member is None:
            return
        member.refused.add(source)
        if not reached:
            member.unreached.add(source)
        if unit in member.taking and member.taking[unit][0] == source:
            self._drop_transfer(name, unit)
        for other in [unit, *member.from_hosts]:
            self._queue_unit(member, other)

    def is_spreading_worth(self, now: float) -> bool:
        """Whether passing on would save time, by the rate at which units have left the operator so far."""
        if self._began is None or now - self._began < _MIN_MEASURED or not self._sent_bytes:
            return False
        wanted = [*self._wants.values(), *(member.wants for member in self._members.values())]
        everything = sum(self._units[unit].size for one in wanted for unit in one)
        once = sum(self._units[unit].size for unit in set[int]().union(*wanted) if not self._holders[unit])
        return (everything - once) * (now - self._began) / self._sent_bytes > MIN_GAIN

    def orders(self, now: float) -> list[UnitTransfer]:
        """The transfers to start now; they count as under way."""
        found = [*(self._between_hosts() if self.spreading else ()), *self._first_copies(), *self._from_operator()]
        if not found and not any(
            one.taking or one.gives is None for one in self._members.values()
        ):  # nothing more will come from hosts
            for member in self._members.values():
                member.from_hosts, member.from_operator = {}, dict.fromkeys(member.wants)
            found = [*self._from_operator()]
        for order in found:
            self._members[order.host].taking[order.unit] = (order.source, now)
        if found and self._began is None:
            self._began = now
        return found

    def replace_late(self, now: float) -> None:
        """Give up late transfers, and queue their units again: one from a host only if the unit has another source.

        A unit from the operator still arrives, as nothing takes it back: only other hosts are sent it meanwhile.
        """
        for name, member in self._members.items():
            for unit, (source, since) in list(member.taking.items()):
                if now - since <= self._late_after(source):
                    continue
                if source is OPERATOR:
                    self._drop_transfer(name, unit)
                    member.overdue.add(unit)
                    if not self._holders[unit]:
                        self._unsent[unit] = None
                elif self._sources(member, unit) - {source}:
                    member.refused.add(source)
                    self._drop_transfer(name, unit)
                    for other in [unit, *member.from_hosts]:
                        self._queue_unit(member, other)
            member.silent = bool(member.overdue) and now - member.reported > self._late_after(OPERATOR)

    def _late_after(self, source: str | None) -> float:
        """Return the seconds after which a unit from this source is late: a multiple of the usual time, if known.

        Until then a unit from the operator is never late, as no other host may have it.
        """
        total, count = self._durations[source is OPERATOR]
        if count < _MIN_SAMPLES:
            return float("inf") if source is OPERATOR else _LATE_DEFAULT
        return max(_LATE_DEFAULT if source is OPERATOR else _MIN_LATE, _LATE_FACTOR * total / count)

    def _drop_transfer(self, name: str, unit: int) -> None:
        """Record that a unit is no longer under way to a host."""
        source, _ = self._members[name].taking.pop(unit, (OPERATOR, 0.0))
        if source in self._members:
            self._members[source].sending[name] -= 1

    def _is_cut_off(self, member: _ScheduledHost) -> bool:
        """Whether a host takes nothing from others: it cannot, or seems to reach none of them."""
        tried = [other in member.unreached for other, one in self._members.items() if one.gives and one is not member]
        unreached = not member.has_taken and (sum(tried) >= _MIN_TRIED or (bool(tried) and all(tried)))
        return member.isolated or unreached

    def _sources(self, member: _ScheduledHost, unit: int) -> set[str]:
        """The hosts that can give ``member`` a unit, without those that have refused it one."""
        if self._is_cut_off(member):
            return set()
        return {name for name in self._holders[unit] if self._members[name].gives} - member.refused

    def _queue_unit(self, member: _ScheduledHost, unit: int) -> None:
        """Put a unit that a host wants into its queue for other hosts, or for the operator."""
        member.from_hosts.pop(unit, None)
        member.from_operator.pop(unit, None)
        if unit not in member.wants or unit in member.taking:
            return
        if self._sources(member, unit):
            member.from_hosts[unit] = None
        elif self._holders[unit] and (
            self._is_cut_off(member) or all(self._members[name].gives is not None for name in self._holders[unit])
        ):
            member.from_operator[unit] = None

    def _between_hosts(self) -> Iterator[UnitTransfer]:
        """Yield transfers from host to host: of units that a host wants, from the least busy host that has them."""
        free = {name for name, one in self._members.items() if one.gives and one.sending.total() < MAX_UPLOADS}
        for name, member in self._members.items():
            room = MAX_DOWNLOADS - (len(member.taking) - member.loading) if member.from_hosts and free else 0
            for unit in list(islice(member.from_hosts, _MAX_CONSIDERED)) if room > 0 else ():
                able = [
                    source
                    for source in (self._holders[unit] & free) - member.refused
                    if self._members[source].sending[name] < MAX_UPLOADS_EACH
                ]
                if not able:
                    continue
                source = min(able, key=lambda one: (self._members[one].sending.total(), one))
                sending = self._members[source].sending
                sending[name] += 1
                if sending.total() >= MAX_UPLOADS:
                    free.discard(source)
                del member.from_hosts[unit]
                room -= 1
                yield UnitTransfer(host=name, unit=unit, source=source)
                if room <= 0:
                    break

    def _first_copies(self) -> Iterator[UnitTransfer]:
        """Yield transfers from the operator of units that no host has; preferably to hosts that pass them on."""
        loads = {name: one.loading for name, one in self._members.items() if not one.overdue}
        room = MAX_FIRST_COPIES - sum(loads.values())
        for unit in list(self._unsent):
            if room <= 0 or all(load >= MAX_FROM_OPERATOR for load in loads.values()):
                return
            wanting = [name for name in loads if unit in self._members[name].wants]
            passing_on = [name for name in wanting if self._members[name].gives]
            able = [name for name in passing_on or wanting if loads[name] < MAX_FROM_OPERATOR]
            if not able:  # the hosts that want it are busy, or not ready yet
                continue
            name = min(able, key=lambda one: (loads[one], -len(self._members[one].wants)))
            loads[name] += 1
            room -= 1
            del self._unsent[unit]
            self._members[name].taking[unit] = (OPERATOR, 0.0)  # ``orders`` sets the time
            yield UnitTransfer(host=name, unit=unit, source=OPERATOR)

    def _from_operator(self) -> Iterator[UnitTransfer]:
        """Yield transfers of units that only the operator can give; without passing on, of all that are wanted."""
        for name, member in self._members.items():
            room = MAX_FROM_OPERATOR - member.loading
            wanted = member.from_operator if self.spreading else sorted(member.wants)
            if room <= 0 or member.overdue or not wanted or any(unit in member.wants for unit in self._unsent):
                continue
            for unit in [unit for unit in wanted if unit not in member.taking][:room]:
                member.from_operator.pop(unit, None)
                member.taking[unit] = (OPERATOR, 0.0)  # as above
                yield UnitTransfer(host=name, unit=unit, source=OPERATOR)
