"""Asks many hosts a question at once without being held up by hosts that show no sign of life."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from clusterddp.errors import ClusterddpError, UnreachableError
from clusterddp.hosts.fanout import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from clusterddp.hosts.client import Host

T = TypeVar("T")
LOOK = 0.05  # seconds between two checks for hosts that are still silent
LONGEST = 10  # times the patience, after which even a host that is alive is not waited for any longer


class Inquiry:
    """Asks hosts in threads of their own, and gives up those that stay silent.

    A silent host that still owes an answer is not asked again, so it blocks one thread however often it is asked.
    ``find`` returns the open host of a name, or None.
    """

    def __init__(self, find: Callable[[str], Host | None]) -> None:
        self._find = find
        self._changed = threading.Condition()
        self._owed: dict[str, list[float]] = {}  # host → when each question that it has not answered was asked

    def each(self, items: Iterable[Any], work: Callable[[Any], T], patience: float) -> list[Outcome[T]]:
        """Call ``work`` for every item (each has its host's ``name``); outcomes in the items' order."""
        todo = list(items)
        found: dict[str, Outcome[T]] = {}
        bugs: list[Exception] = []

        def ask(item: Any) -> None:
            with self._owing(item.name):
                try:
                    found[item.name] = Outcome(name=item.name, value=work(item))
                except ClusterddpError as error:
                    found[item.name] = Outcome(name=item.name, error=error)
                except Exception as bug:  # noqa: BLE001 - raised again in the caller's thread
                    bugs.append(bug)

        asked = [item for item in todo if not self._is_stuck(item.name, patience)]
        for item in asked:
            threading.Thread(target=ask, args=(item,), name=f"ask {item.name}", daemon=True).start()
        self._wait([item.name for item in asked], lambda name: name in found or bool(bugs), patience)
        if bugs:
            raise bugs[0]
        answers = dict(found)
        return [answers.get(item.name) or _silent(item.name, patience) for item in todo]

    def silence(self, name: str, since: float) -> float:
        """Seconds in which nothing came from a host, counted from ``since`` (monotonic) at the earliest."""
        host = self._find(name)
        silent = time.monotonic() - since
        return silent if host is None or host.lost else min(silent, host.silence)

    def wake(self, name: str) -> None:
        """Ask a host, if it is open, for a sign of life."""
        host = self._find(name)
        if host is not None and not host.lost:
            host.ask_for_life()

    def _wait(self, names: Iterable[str], is_done: Callable[[str], bool], patience: float) -> None:
        """Wait until each of these hosts is done, or has been silent for too long."""
        began = time.monotonic()
        waited, woken = set(names), False
        while True:
            with self._changed:
                waited -= {name for name in waited if is_done(name)}
                passed = time.monotonic() - began
                if passed > LONGEST * patience or all(self.silence(name, began) > patience for name in waited):
                    return
                self._changed.wait(LOOK)
            if passed > patience / 2 and not woken:
                woken = True
                for name in waited:
                    self.wake(name)

    @contextlib.contextmanager
    def _owing(self, name: str) -> Iterator[None]:
        asked = time.monotonic()
        with self._changed:
            self._owed.setdefault(name, []).append(asked)
        try:
            yield
        finally:
            with self._changed:
                self._owed[name].remove(asked)
                self._changed.notify_all()

    def _is_stuck(self, name: str, patience: float) -> bool:
        """Whether a host owes an answer, and has been silent for too long since it was asked."""
        with self._changed:
            first = min(self._owed.get(name, ()), default=None)
        return first is not None and self.silence(name, first) > patience


def _silent(name: str, patience: float) -> Outcome[Any]:
    return Outcome(name=name, error=UnreachableError(name, f"no answer within {patience:g} s"))
