"""Ask many hosts a question at once, without waiting for hosts that send nothing."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from clusterddp.errors import ClusterddpError, UnreachableError
from clusterddp.hosts.fanout import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from clusterddp.hosts.client import Host

T = TypeVar("T")
CHECK_INTERVAL = 0.05  # seconds between two checks for hosts that are still silent
MAX_PATIENCES = 10  # times ``patience``: longer than that no host is waited for, even if it still sends something


class Inquiry:
    """Asks hosts in threads of their own, and gives up those that stay silent.

    A silent host that has not answered yet is not asked again, so it blocks one thread however often it is asked.
    ``find`` returns the open host of a name, or None.
    """

    def __init__(self, find: Callable[[str], Host | None]) -> None:
        self._find = find
        self._changed = threading.Condition()
        self._unanswered: dict[str, list[float]] = {}  # host → when each of its open questions was asked (monotonic)

    def each(self, items: Iterable[Any], work: Callable[[Any], T], patience: float) -> list[Outcome[T]]:
        """Call ``work`` for every item (each has its host's ``name``); outcomes in the items' order.

        A host that sends nothing for ``patience`` seconds gets an error as its outcome.
        """
        todo = list(items)
        found: dict[str, Outcome[T]] = {}
        bugs: list[Exception] = []
        answered: deque[str] = deque()

        def ask(item: Any) -> None:
            with self._record_question(item.name):
                try:
                    found[item.name] = Outcome(name=item.name, value=work(item))
                except ClusterddpError as error:
                    found[item.name] = Outcome(name=item.name, error=error)
                except Exception as bug:  # noqa: BLE001 - raised again in the caller's thread
                    bugs.append(bug)
                    answered.extend(one.name for one in todo)  # nobody need be waited for
                answered.append(item.name)

        asked = [item for item in todo if not self._is_stuck(item.name, patience)]
        for item in asked:
            threading.Thread(target=ask, args=(item,), name=f"ask {item.name}", daemon=True).start()
        self._wait({item.name for item in asked}, answered, patience)
        if bugs:
            raise bugs[0]
        return [found.get(item.name) or _no_answer(item.name, patience) for item in todo]

    def silence(self, name: str, since: float) -> float:
        """Seconds in which nothing came from a host, counted from ``since`` (monotonic) at the earliest."""
        host = self._find(name)
        silent = time.monotonic() - since
        return silent if host is None or host.lost else min(silent, host.silence)

    def _wait(self, waited: set[str], answered: deque[str], patience: float) -> None:
        """Wait until each of these hosts has answered (``answered`` grows), or has been silent for too long."""
        began = time.monotonic()
        pinged = False
        while True:
            with self._changed:
                while answered:
                    waited.discard(answered.popleft())
                passed = time.monotonic() - began
                if passed > MAX_PATIENCES * patience or all(self.silence(name, began) > patience for name in waited):
                    return
                self._changed.wait(CHECK_INTERVAL)
            if passed > patience / 2 and not pinged:
                pinged = True
                for name in waited:
                    if (host := self._find(name)) is not None and not host.lost:
                        host.send_ping()

    @contextlib.contextmanager
    def _record_question(self, name: str) -> Iterator[None]:
        """Count a question as unanswered while the block runs."""
        asked = time.monotonic()
        with self._changed:
            self._unanswered.setdefault(name, []).append(asked)
        try:
            yield
        finally:
            with self._changed:
                self._unanswered[name].remove(asked)
                self._changed.notify_all()

    def _is_stuck(self, name: str, patience: float) -> bool:
        """Whether a host has a question to answer, and has been silent for too long since it was asked."""
        with self._changed:
            oldest = min(self._unanswered.get(name, ()), default=None)
        return oldest is not None and self.silence(name, oldest) > patience


def _no_answer(name: str, patience: float) -> Outcome[Any]:
    return Outcome(name=name, error=UnreachableError(name, f"no answer within {patience:g} s"))
