"""The connections of one command: one per host, opened in parallel when first needed."""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.errors import AuthenticationError, HelperError, UnreachableError, UsageError
from clusterddp.hosts.client import Host
from clusterddp.hosts.fanout import Outcome, each
from clusterddp.hosts.file_limit import make_room
from clusterddp.hosts.inquiry import Inquiry
from clusterddp.hosts.via_job_step import ThroughHost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from clusterddp.hosts.ssh import BytePipe, Connector
    from clusterddp.hosts.via_job_step import Opener
    from clusterddp.inventory import HostEntry

RETRY_INTERVAL = 5.0  # seconds after which a host that did not answer is dialled again
LONG_DIAL = 1.0  # seconds that a dial took: one that fails sooner may be repeated at any time


class Connections:
    """Open hosts by name. Thread-safe. ``notify`` is called with notices of a line each."""

    def __init__(self, connector: Connector, notify: Callable[[str], None]) -> None:
        self._connector, self._notify = connector, notify
        self._hosts: dict[str, Host] = {}
        # of hosts that did not answer for long, by name: when that was found, and why
        self._unanswered: dict[str, tuple[float, str, str]] = {}
        self._reported: set[str] = set()  # the lines of ``report``
        self._lock = threading.Lock()
        self._opening: dict[str, threading.Lock] = {}  # by key: held by the one thread that opens that host
        self._closed = False
        self._process: int | None = None  # the process that opened the first of them
        self.inquiry = Inquiry(lambda name: self._hosts.get(_key(name)))

    @property
    def hosts(self) -> list[Host]:
        """The open connections."""
        return list(self._hosts.values())

    def opened_by(self, entry: HostEntry, command: Sequence[str]) -> Opener:
        """An opener that reaches a host by a command on another host, ``entry`` (``ThroughHost``)."""
        return ThroughHost(self._connector, entry, command)

    def open(self, entry: HostEntry, by: Opener | None = None, *, way: str = "", writes: bool = False) -> Host:
        """The connection to a host, opened if it is not open or was lost; an unwritable state folder is reported once.

        A host that did not answer for long is dialled again only after ``RETRY_INTERVAL``: a command asks its hosts
        several times, and each dial may take the whole timeout. ``by`` opens it instead of the connector; ``way`` names
        that, if a host is reached in several ways. ``writes``: the host's state folder has to be writable. Raises
        ``HostError`` if there is no connection, the helper did not start, or nothing can be written where it must be;
        only ``UnreachableError`` or ``HostKeyError`` if a lost connection of the connector cannot be opened anew; and
        ``UsageError`` after ``close``, or in a fork of the process that has them open: a later try cannot succeed, as
        one to a host that does not answer may.
        """
        if self._closed:
            raise UsageError("this Cluster is closed", remedy="use it, and its runs, inside its with-block")
        if self._are_of_another_process:
            raise UsageError(
                "this Cluster's connections belong to the process that this one is a fork of",
                remedy="make a Cluster in each process",
            )
        self._process = os.getpid()
        key = _key(entry.name, way)
        host = self._live(key)
        if host is None:
            asked_at = time.monotonic()
            with self._lock:
                opening = self._opening.setdefault(key, threading.Lock())
            with opening:  # another thread may have opened it meanwhile
                host = self._live(key) or self._open(key, entry, by, asked_at)
        if (refusal := host.unwritable) is not None:
            if writes:
                raise refusal
            self.report(str(refusal))
        return host

    def report(self, line: str) -> None:
        """Report an error of a host, unless the same line was reported before."""
        with self._lock:
            is_new = line not in self._reported
            self._reported.add(line)
        if is_new:
            self._notify(line)

    @property
    def _are_of_another_process(self) -> bool:
        """Whether this process is a fork: of two that use one connection, each takes the other's answers."""
        return self._process not in {None, os.getpid()}

    def _live(self, key: str) -> Host | None:
        """Return the open connection with this key; None if there is none, or it was lost."""
        host = self._hosts.get(key)
        return None if host is None or host.lost else host

    def _open(self, key: str, entry: HostEntry, by: Opener | None, asked_at: float) -> Host:
        """Open a host that was never open or is lost; no other thread opens it at the same time."""
        lost = self._hosts.get(key)
        if lost is not None:
            lost.close()  # its process, files and login stay until then
        if by is not None:
            host = Host.open(entry, by)
        elif lost is not None:  # threads that waited for a dial in vain share its error
            host = self._dial(entry, self._reopen, asked_at)
        else:
            host = self._dial(entry, lambda one: Host.open(one, self._connector), asked_at - RETRY_INTERVAL)
        if noise := host.noise.strip():
            self._notify(f"{host.name}: its login shell prints {noise.splitlines()[0][:80]!r}")
        with self._lock:
            self._hosts[key] = host
        return host

    def _dial(self, entry: HostEntry, attempt: Callable[[HostEntry], Host], since: float) -> Host:
        """Open a host by calling ``attempt``; raise the error of a long attempt that failed after ``since``."""
        failed_at, message, remedy = self._unanswered.get(entry.name, (-math.inf, "", ""))
        if failed_at > since:
            raise UnreachableError(entry.name, message, remedy=remedy)
        began = time.monotonic()
        try:
            return attempt(entry)
        except UnreachableError as error:
            if time.monotonic() - began >= LONG_DIAL:
                message = error.message.removeprefix(f"{entry.name}: ")
                self._unanswered[entry.name] = (time.monotonic(), message, error.remedy)
            raise

    def _reopen(self, entry: HostEntry) -> Host:
        """Open a lost connection anew, in the middle of work: without a prompt.

        A host that has let us in and refuses us now (a locked agent, an expired certificate, a home that is not mounted
        yet) may let us in later, like one that does not answer.
        """
        try:
            return Host.open(entry, _WithoutPrompts(self._connector))
        except (AuthenticationError, HelperError) as error:
            message = error.message.removeprefix(f"{entry.name}: ")
            raise UnreachableError(entry.name, message, remedy=error.remedy) from error

    def open_all(
        self,
        entries: Iterable[HostEntry],
        progress: Callable[[str], None],
        on_open: Callable[[Host], None] = lambda _: None,
        *,
        writes: bool = False,
    ) -> list[Outcome[Host]]:
        """Open many hosts at once; each one's Host or its error, in order.

        ``on_open`` is called with each, in its own thread; ``writes`` is as in ``open``.
        """
        hosts = list(entries)
        make_room(hosts)
        notices_before = len(self._connector.notices)
        count = itertools.count(1)
        progress(f"connecting 0/{len(hosts)}")

        def open_one(entry: HostEntry) -> Host:
            host = self.open(entry, writes=writes)
            on_open(host)
            progress(f"connecting {next(count)}/{len(hosts)}")
            return host

        outcomes = each(hosts, open_one)
        for notice in self._connector.notices[notices_before:]:
            self._notify(notice)
        return outcomes

    @property
    def kept(self) -> dict[str, str]:
        """Why each host's connection is not kept for later commands, or an empty text, by the host's name."""
        return self._connector.kept

    def stop_keeping(self, entries: Iterable[HostEntry]) -> dict[str, str]:
        """End the kept connections to these hosts: what has gone wrong, or an empty text, by the host's name."""
        return self._connector.stop_keeping(entries)

    def close_hosts(self) -> None:
        """End every connection to a host; the next use opens a new one. Those of another process are left to it."""
        if self._are_of_another_process:
            return
        with self._lock:  # after Ctrl-C, threads still add hosts
            hosts = list(self._hosts.values())
            self._hosts.clear()
        for host in hosts:
            host.close()

    def close(self) -> None:
        """End every connection, including those to jump hosts; ``open`` is refused from then on."""
        self.close_hosts()
        self._closed = True
        if not self._are_of_another_process:
            self._connector.close()


@dataclass(frozen=True, slots=True)
class _WithoutPrompts:
    """Opens connections without ever prompting the user for a password or passphrase."""

    connector: Connector

    def open(self, entry: HostEntry, command: str) -> BytePipe:
        """Start the command and return its pipe."""
        return self.connector.open(entry, command, asks=False)


def _key(name: str, way: str = "") -> str:
    """The key of a connection: the host's name, and the way to it if there are several."""
    return f"{name} {way}"
