"""Watch a followed run: once one stream ends, find out whether the run has ended and which hosts need no waiting for.

A host without power, or behind a network that drops packets, leaves its stream open for half a minute or more. So the
hosts that have ended are asked; if their verdict settles how the run ended, the other streams are given up: those of
hosts missing from the verdict at once, unless they report now that they have ended, and the others when they are silent
too. Each host is pinged as soon as workers of any host have ended, so by then it is known which are silent. A host
without a connection may have come back since the last try to reach it: it is tried once more before it counts as
silent. If nobody else can tell how the run ended, a silent host is asked over a new connection: perhaps only its old
one is broken.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from clusterddp.errors import ClusterddpError
from clusterddp.remote.shared.run.run_state import ENDED_STATES
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

    from clusterddp.logs.merge import Merge
    from clusterddp.runs.run_on_hosts import RunOnHosts
    from clusterddp.runs.streams import Streams
    from clusterddp.runs.view.run_view import RunView

SILENCE_LIMIT = 1.0  # seconds without an answer to a ping after which a host counts as silent
CHECK_INTERVAL = 0.2  # seconds between checks, while a ping is unanswered and once the first stream has ended
SUSPENSION_GAP = 2.0  # seconds between two checks from which we conclude that this process itself was suspended
NEXT_ATTEMPT_LIMIT = 5.0  # seconds to wait for the lines of a responsive host once another attempt has begun
RECONNECT_AFTER = 2.0  # seconds after which a silent host whose answer is needed is asked over a new connection
REOPEN_LIMIT = 15.0  # seconds for one more try to reach a host: more than a connection may take to fail
LOST_AFTER = 30.0  # seconds to wait for a silent host if no host has saved a verdict, or a later attempt may include it


class EndDetector:
    """Detects, while the context lasts, how an attempt of a run ended, and gives up streams that are not needed."""

    def __init__(self, run: RunOnHosts, streams: Streams, merge: Merge) -> None:
        self.run, self.streams, self.merge = run, streams, merge
        self.given_up: dict[str, float | None] = {}  # host → when data last came from it (epoch); None: never
        self._silent: set[str] = set()  # hosts given up because they left a ping unanswered
        self._unanswered_since: dict[str, float] = {}  # host → when its unanswered ping was sent
        self._pinged_at: dict[str, float] = {}  # host → when it was last pinged
        self._reopened_at: dict[str, float] = {}  # host → when one more try to reach it was asked for
        self._closed_connections: set[str] = set()  # hosts whose unanswered connections were closed
        self._next_attempt_since: float | None = None  # when another attempt was seen
        self._exited = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, name="ending", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._exited.set()

    def missing_lines_notice(self) -> list[str]:
        """Return a message about lines that were not waited for: which they are, and how to see them."""
        given_up = {**self.merge.failed, **self.given_up}
        return [missing_lines(self.run, given_up)] if given_up else []

    def _watch(self) -> None:
        """Ping hosts whenever the merge reports a change, and check for the run's end; the body of the thread."""
        while not self.merge.done:
            began, pause = time.monotonic(), CHECK_INTERVAL if self._unanswered_since or self.merge.ended else None
            stirred = self.merge.something_ended.wait(pause)  # closing the merge sets it too
            self.merge.something_ended.clear()
            if self._exited.is_set():
                return
            if pause and time.monotonic() - began > SUSPENSION_GAP:  # we were suspended, with input still unread
                self._unanswered_since.clear()
            waited, ended = self.merge.waited_for, bool(self.merge.ended)
            pending = [host for host in self._unanswered_since if host in waited and self._unanswered_for(host)]
            self._unanswered_since = {host: self._unanswered_since[host] for host in pending}
            self._ping(waited if stirred or ended else list(self._unanswered_since))
            reached = [host for host in waited if not (ended and self._being_reopened(host))]
            silent = [host for host in reached if self._unanswered_for(host) >= SILENCE_LIMIT]
            # Other hosts end right after the first one: look closer only if a host is silent or nothing happens.
            if waited and ended and (silent or not stirred):
                self._check_end(waited, silent)

    def _ping(self, hosts: Sequence[str]) -> None:
        """Ping hosts, each at most once every ``CHECK_INTERVAL`` seconds."""
        for host in hosts:
            now = time.monotonic()
            self._unanswered_since.setdefault(host, now)
            if host not in self._pinged_at or now - self._pinged_at[host] >= CHECK_INTERVAL:
                self._pinged_at[host] = now
                self.streams.ping(host)

    def _unanswered_for(self, host: str) -> float:
        """Return for how many seconds a host has left a ping unanswered; 0 if it answered or was not pinged."""
        now, silence = time.monotonic(), self.streams.silence(host)
        since = self._unanswered_since.get(host, now)
        return 0.0 if silence is not None and now - silence > since else now - since

    def _being_reopened(self, host: str) -> bool:
        """Return whether a host is tried to be reached once more: it has no connection, and another host has ended."""
        if self.streams.connected(host):
            return False
        asked = self._reopened_at.setdefault(host, time.monotonic())
        return self.merge.reopen(host) and time.monotonic() - asked < REOPEN_LIMIT

    def _check_end(self, waited: Sequence[str], silent: Sequence[str]) -> None:
        """Ask the hosts that have ended; if their answers settle the run's end, give up streams that are not needed.

        ``waited``: the hosts whose streams are still open; ``silent``: those of them that leave pings unanswered.
        """
        view = self._query_view(set(self.merge.ended))
        if view and view.attempt > self.run.attempt:
            self._next_attempt_since = self._next_attempt_since or time.monotonic()
            late = time.monotonic() - self._next_attempt_since > NEXT_ATTEMPT_LIMIT
            self._give_up(waited if late else silent, silent)
            return
        if view and not view.live and not (view.kept and view.kept.stands):
            view = self._query_view(None)  # another host's verdict may take precedence, or the run may be live there
        if view and view.live:
            return
        answered = [node.host for node in view.nodes if node.host in silent] if view else []
        # These answered over a new connection, so their old ones are broken.
        self._close_connections([host for host in answered if self._unanswered_for(host) >= SILENCE_LIMIT])
        silent = [host for host in silent if host not in answered]
        if view and view.settled and view.kept:
            # The verdict may be that of a host that was cut off alone: the others have ended and still send lines.
            missing = set(view.kept.missing).difference(node.host for node in view.nodes if node.state in ENDED_STATES)
            self._give_up([host for host in waited if host in missing or host in silent], silent)
            return
        lost = [host for host in silent if self._unanswered_for(host) >= LOST_AFTER]
        self._give_up(lost, silent)
        needed = [host for host in silent if host not in lost]
        self._close_connections([host for host in needed if self._unanswered_for(host) >= RECONNECT_AFTER])

    def _close_connections(self, hosts: Sequence[str]) -> None:
        """Close connections on which nothing arrives, once each: the host may answer on another one."""
        for host in hosts:
            if host not in self._closed_connections:
                self._closed_connections.add(host)
                self.streams.close_connection(host, f"no answer for {self._unanswered_for(host):.0f} s")

    def silent_hosts(self) -> set[str]:
        """Return the hosts that need not be asked: they left a ping unanswered, or have long been unreachable."""
        broken = {host for host in set(self.merge.broken) if (self.streams.silence(host) or 0.0) > LOST_AFTER}
        return self._silent | broken

    def _give_up(self, hosts: Sequence[str], silent: Sequence[str]) -> None:
        """Wait for these hosts' lines no longer; note those that are silent, and when data last came from each."""
        self._silent.update(host for host in hosts if host in silent)
        for host in hosts:
            silence = self.streams.silence(host)
            last_data = None if silence is None else time.time() - silence
            if self.merge.give_up(host):
                self.given_up[host] = last_data

    def _query_view(self, hosts: set[str] | None) -> RunView | None:
        try:
            return query_view(self.run, hosts, self.silent_hosts(), brief=True)
        except ClusterddpError:  # no host answers; the code that follows the streams reports it
            return None


def missing_lines(run: RunOnHosts, hosts: Mapping[str, float | None]) -> str:
    """Return a message about a run's lines of hosts that are not waited for, by when the last came from each host."""
    since = f" since {clock_time(min(times))}" if (times := [time_ for time_ in hosts.values() if time_]) else ""
    shows = f"`clusterddp logs {run.id} --attempt {run.attempt} --host {','.join(sorted(hosts))}` asks for them again"
    return f"lines of {folded_names(sorted(hosts))}{since} may be missing, for nobody has waited for them; {shows}"


def query_view(run: RunOnHosts, hosts: set[str] | None, silent: set[str], *, brief: bool = False) -> RunView:
    """Return the run as all its hosts, or the given ones, report it now; hosts known to be silent are not asked."""
    # The view names these hosts too, as if they had been asked in vain.
    asked, without = (None, silent) if hosts is None else (hosts - silent, ())
    view = run.view(asked, brief=brief, quiet=True, patience=SILENCE_LIMIT, without=without)
    skipped = sorted(silent if hosts is None else silent & hosts)
    planned = [name for name in skipped if name in view.record.hosts]
    return replace(
        view,
        silent=tuple(dict.fromkeys((*view.silent, *planned))),
        unreachable=tuple(dict.fromkeys((*view.unreachable, *skipped))),
    )


def clock_time(seconds: float) -> str:
    """Return the local time of day for display, from seconds since the epoch."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%H:%M:%S")
