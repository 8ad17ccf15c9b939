"""Fold equal lines of several ranks into one: each line is held briefly, so that equal lines of others can join it.

The lines of a worker, out and err together, keep their order; none is lost or shown twice. Lines fold if their text,
stream, attempt and start of the workers are equal. torchrun's own lines, and those of a worker whose rank is not known
yet, are never folded.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterddp.logs.view import FileView

HOLD_TIME = 0.05  # seconds a line waits for equal lines of other ranks
# ns of recorded time: a replay shows hours at once, and an equal line an hour later is another line
MAX_TIME_APART = 10**9
MAX_BYTES = 8 << 20  # bytes held at most, about
MAX_TRACKED = 1 << 14  # workers and ranks tracked before those no longer needed are forgotten
_LINE_OVERHEAD = 512  # memory of one line besides its text, in bytes, about

Key = tuple[int, "int | None", str, bytes]  # attempt, start of the workers, stream, text
_number = attrgetter("number")


@dataclass(kw_only=True, slots=True)
class HeldLine:
    """One line, and the ranks that printed it."""

    number: int  # its index among all lines held so far
    since: float  # when it arrived, by the fold's clock
    view: FileView  # the file it first came from
    time: int | None  # when it was first written, in ns by the operator's clock
    text: bytes  # without its line end
    key: Key | None  # equal for lines that may fold; None: never folded
    ranks: list[int] = field(default_factory=list)  # the ranks that printed it, in order of arrival

    @property
    def label(self) -> bytes:
        """``[0-31] ``, or the rank's own label if there is only one."""
        if len(self.ranks) < 2:
            return self.view.label
        return f"[{folded_names([str(rank) for rank in sorted(self.ranks)], ',')}] ".encode()


class Fold:
    """The lines being held, in the order in which the first of each arrived; ``clock`` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held: deque[HeldLine] = deque()
        self._equal: dict[Key, list[HeldLine]] = {}  # equal lines by key, ordered by number
        self._latest: dict[tuple[str, int | None] | int, int] = {}  # worker, rank → the number of its latest line
        self._max_tracked = MAX_TRACKED
        self._count = self._size = 0  # lines held so far; bytes held now
        self._oldest: float | None = None  # when the first held line arrived

    def wait(self) -> float | None:
        """Return the seconds until a held line is due; None if no line is held. Any thread may call it."""
        oldest = self._oldest
        return None if oldest is None else max(0.0, oldest + HOLD_TIME - self._clock())

    def take(self, view: FileView, attempt: int, time: int | None, text: bytes) -> list[HeldLine]:
        """Hold whole lines of one file; return the lines that are no longer held, in order."""
        now = self._clock()
        done = self._release_until(now)
        part = view.part
        worker, rank = (view.host, part.local_rank), None if part.local_rank is None else part.rank
        last = max(self._latest.get(worker, -1), -1 if rank is None else self._latest.get(rank, -1))
        for line in text.removesuffix(b"\n").split(b"\n"):
            key = None if rank is None else (attempt, part.start, part.stream, line)
            held = self._find_equal(last, key, time)
            if held is None:
                held = HeldLine(number=self._count, since=now, view=view, time=time, text=line, key=key)
                self._hold(held)
            if rank is not None:
                held.ranks.append(rank)
            last = held.number
        self._latest[worker] = last
        if rank is not None:
            self._latest[rank] = last
        if len(self._latest) > self._max_tracked:
            self._forget()
        while self._size > MAX_BYTES:
            done.append(self._pop())
        return done

    def _forget(self) -> None:
        """Forget workers and ranks whose latest line is no longer held: they can no longer constrain the order."""
        first = self._held[0].number if self._held else self._count
        self._latest = {tracked: number for tracked, number in self._latest.items() if number >= first}
        self._max_tracked = max(MAX_TRACKED, 2 * len(self._latest))

    def due(self) -> list[HeldLine]:
        """Release and return the lines that have been held long enough, in order."""
        return self._release_until(self._clock())

    def all(self) -> list[HeldLine]:
        """Release and return all held lines, in order."""
        return [self._pop() for _ in range(len(self._held))]

    def _find_equal(self, last: int, key: Key | None, time: int | None) -> HeldLine | None:
        """Return the first equal line after number ``last``; only such a line keeps the joining worker's own order."""
        equal = self._equal.get(key) if key else None
        if not equal or equal[-1].number <= last:
            return None
        held = equal[bisect_right(equal, last, key=_number)]
        is_far = time is not None and held.time is not None and abs(time - held.time) > MAX_TIME_APART
        return None if is_far else held

    def _hold(self, held: HeldLine) -> None:
        self._count += 1
        self._size += len(held.text) + _LINE_OVERHEAD
        if held.key:  # first, so that Ctrl-C between the two leaves no line that `_pop` stumbles over
            self._equal.setdefault(held.key, []).append(held)
        self._held.append(held)
        if self._oldest is None:
            self._oldest = held.since

    def _release_until(self, now: float) -> list[HeldLine]:
        """Release the lines that have been held for ``HOLD_TIME`` at ``now``."""
        done = []
        while self._held and self._held[0].since + HOLD_TIME <= now:
            done.append(self._pop())
        return done

    def _pop(self) -> HeldLine:
        """Release the first held line."""
        held = self._held.popleft()
        self._size -= len(held.text) + _LINE_OVERHEAD
        if held.key:
            equal = self._equal[held.key]
            equal.pop(0)
            if not equal:
                del self._equal[held.key]
        self._oldest = self._held[0].since if self._held else None
        return held
