"""Beside the streams of a run: once one has ended, finds out whether the run has, and who need not be waited for.

A host without power, or behind a network that drops packets, leaves its stream open for half a minute or more. How the
run ended is known long before: its hosts have judged it and keep it (``verdict.json``). So who has ended is asked, and
where that tells the run's end, the others' streams are given up: of hosts that the verdict did without at once, of the
others when they say nothing either. What is left out so is told.

Each host is asked for a sign of life as soon as workers of any host have ended, which is before the verdict: so by then
it is known who says nothing. Where the hosts that answer cannot tell how the run ended, a silent one may: only its
connection may be dead, and it is asked over a new one.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from clusterddp.errors import ClusterddpError
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Container, Sequence
    from typing import Protocol

    from clusterddp.logs.merge import Merge
    from clusterddp.runs.run_view import RunView

    class Followed(Protocol):
        """The part of a ``Run`` that is used here."""

        id: str
        attempt: int

        @property
        def hosts(self) -> set[str]:
            """Every host that may have a part in it."""

        def view(
            self, hosts: Container[str] | None = None, *, brief: bool = False, quiet: bool = False, patience: float
        ) -> RunView:
            """The run as these hosts tell it now."""

    class Senders(Protocol):
        """The part of ``Streams`` that is used here."""

        def silence(self, host: str) -> float | None:
            """Seconds since something last came from who sends a host's lines; None: never."""

        def wake(self, host: str) -> None:
            """Ask it for a sign of life."""

        def drop(self, host: str, reason: str) -> None:
            """End its connection, so that a new one is made."""


SILENT = 1.0  # seconds after which a host that was asked for a sign of life, and gave none, counts as silent
LOOK = 0.2  # seconds between looks, while a host owes a sign of life and from the end of the first stream on
STOPPED = 2.0  # seconds between two looks after which this process itself was stopped
LATE = 5.0  # seconds for the lines of a host that lives when another attempt has begun
DEAF_AFTER = 2.0  # seconds after which a silent host whose answer is needed is asked over a new connection
LOST_AFTER = 30.0  # seconds a silent host is looked for where no verdict is kept, or it may be in a later attempt


class Ending:
    """Gives up streams of one attempt of a run while the context lasts.

    Args:
        run: The run, as of that attempt.
        senders: Who sends its lines.
        merge: Its streams.
    """

    def __init__(self, run: Followed, senders: Senders, merge: Merge) -> None:
        self.run, self.senders, self.merge = run, senders, merge
        self.given_up: dict[str, float | None] = {}  # host → when something last came from it (epoch), None: never
        self._silent: set[str] = set()  # of them, those that gave no sign of life
        self._asked: dict[str, float] = {}  # host → since when it owes a sign of life
        self._woken: dict[str, float] = {}  # host → when it was last asked for one
        self._dropped: set[str] = set()  # hosts whose dead connections were ended
        self._behind_since: float | None = None  # when another attempt was seen
        self._over = threading.Event()

    def __enter__(self) -> Ending:  # noqa: PYI034 - typing.Self is Python 3.11
        threading.Thread(target=self._watch, name="ending", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def missing_lines(self) -> list[str]:
        """What to say of lines that were not waited for: which, and how to see them."""
        if not self.given_up:
            return []
        names, times = folded_names(sorted(self.given_up)), [time_ for time_ in self.given_up.values() if time_]
        since = f" since {clock_time(min(times))}" if times else ""
        hosts = ",".join(sorted(self.given_up))
        shows = f"`clusterddp logs {self.run.id} --host {hosts}` asks for them again"
        return [f"lines of {names}{since} may be missing, for nobody has waited for them; {shows}"]

    def _watch(self) -> None:
        while not self.merge.done:
            began, pause = time.monotonic(), LOOK if self._asked or self.merge.ended else None
            stirred = self.merge.stirred.wait(pause)  # the end of the merge stirs it too
            self.merge.stirred.clear()
            if self._over.is_set():
                return
            if pause and time.monotonic() - began > STOPPED:  # we were stopped, and have not read what came meanwhile
                self._asked.clear()
            waited, ended = self.merge.waited_for, bool(self.merge.ended)
            self._asked = {host: since for host, since in self._asked.items() if host in waited and self._owes(host)}
            self._ask(waited if stirred or ended else list(self._asked))
            silent = [host for host in waited if self._owes(host) >= SILENT]
            # Right after an end others end too: there is something to look for only where somebody says nothing.
            if waited and ended and (silent or not stirred):
                self._look(waited, silent)

    def _ask(self, hosts: Sequence[str]) -> None:
        """Ask hosts for a sign of life; who owes one is asked again, but not more often than every look."""
        for host in hosts:
            now = time.monotonic()
            self._asked.setdefault(host, now)
            if host not in self._woken or now - self._woken[host] >= LOOK:
                self._woken[host] = now
                self.senders.wake(host)

    def _owes(self, host: str) -> float:
        """Seconds for which a host has owed a sign of life; 0 where it has given it, or was not asked."""
        now, silence = time.monotonic(), self.senders.silence(host)
        since = self._asked.get(host, now)
        return 0.0 if silence is not None and now - silence > since else now - since

    def _look(self, waited: Sequence[str], silent: Sequence[str]) -> None:
        """Ask who has ended; where they tell the run's end, give up whom it can do without."""
        view = self._view(set(self.merge.ended))
        if view and view.attempt > self.run.attempt:
            self._behind_since = self._behind_since or time.monotonic()
            late = time.monotonic() - self._behind_since > LATE
            self._give_up(waited if late else silent, silent)
            return
        if view and not view.live and not (view.kept and view.kept.stands):
            view = self._view(None)  # another host's verdict may count before it, or the run live there
        if view and view.live:
            return
        if view and view.settled and view.kept:
            missing = view.kept.missing
            self._give_up([host for host in waited if host in missing or host in silent], silent)
            return
        lost = [host for host in silent if self._owes(host) >= LOST_AFTER]
        self._give_up(lost, silent)
        self._drop([host for host in silent if host not in lost and self._owes(host) >= DEAF_AFTER])

    def _drop(self, hosts: Sequence[str]) -> None:
        """End connections on which nothing comes, once each: the host may answer on another one."""
        for host in hosts:
            if host not in self._dropped:
                self._dropped.add(host)
                self.senders.drop(host, f"no answer for {self._owes(host):.0f} s")

    def silent(self) -> set[str]:
        """Hosts that need not be asked: they gave no sign of life, or have long been out of reach."""
        broken = {host for host in set(self.merge.broken) if (self.senders.silence(host) or 0.0) > LOST_AFTER}
        return self._silent | broken

    def _give_up(self, hosts: Sequence[str], silent: Sequence[str]) -> None:
        self._silent.update(host for host in hosts if host in silent)
        for host in hosts:
            silence = self.senders.silence(host)
            heard = None if silence is None else time.time() - silence
            if self.merge.give_up(host):
                self.given_up[host] = heard

    def _view(self, hosts: set[str] | None) -> RunView | None:
        try:
            return view_of(self.run, hosts, self.silent(), brief=True)
        except ClusterddpError:  # none answers; who follows the streams says so
            return None


def view_of(run: Followed, hosts: set[str] | None, silent: set[str], *, brief: bool = False) -> RunView:
    """The run as its hosts, or these, tell it now; those that are known to be silent are not asked.

    Raises:
        ClusterddpError: none answers.
    """
    asked = (run.hosts if hosts is None else hosts) - silent
    view = run.view(asked, brief=brief, quiet=True, patience=SILENT)
    wanted = silent if hosts is None else silent & hosts
    return replace(view, silent=tuple(dict.fromkeys((*view.silent, *sorted(wanted & set(view.record.hosts))))))


def clock_time(seconds: float) -> str:
    """A time of day for people, from seconds since the epoch."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%H:%M:%S")
