"""Opens all connections of one command, and ends them."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from clusterddp.errors import ClusterddpError, HostError, UnreachableError
from clusterddp.hosts.ssh.config import SshConfig
from clusterddp.hosts.ssh.invoke_later import import_invoke_later
from clusterddp.hosts.ssh.kept import KeptConnections
from clusterddp.hosts.ssh.known_hosts import KnownHosts, UnknownHostKeyError
from clusterddp.hosts.ssh.openssh_pipe import open_pipe
from clusterddp.hosts.ssh.pipes import ChildPipe, DroppedError
from clusterddp.hosts.ssh.private_keys import Credentials
from clusterddp.hosts.ssh.resolve import Resolver
from clusterddp.inventory import HostEntry
from clusterddp.text.folding import few, folded_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import fabric

    from clusterddp.hosts.ssh.fabric_pipe import Link
    from clusterddp.hosts.ssh.pipes import BytePipe
    from clusterddp.hosts.ssh.private_keys import Ask
    from clusterddp.hosts.ssh.target import Target

_log = logging.getLogger("clusterddp")
MAX_ATTEMPTS = 4  # for one host, if its sshd hangs up before its banner; each after a longer, random wait
MAX_LOGINS_PER_JUMP_HOST = 10
_JUMP_FAILURE_LIFETIME = 3.0  # seconds during which hosts behind a jump host share its error
_MAX_HOSTS_IN_NOTICE = 3

T = TypeVar("T")


class Connector:
    """Opens byte pipes to hosts; one per command. Thread-safe."""

    def __init__(
        self,
        *,
        # record unknown host keys instead of refusing them (a changed one is always refused)
        accept_new_host_keys: bool = False,
        connect_timeout: float = 10,  # seconds for the TCP connect, unless the host's ssh settings say otherwise
        # seconds for the server's banner and the key exchange; ``connect_timeout`` if None
        banner_timeout: float | None = None,
        # prompts the user for a passphrase, password or second factor; None if there is no user to ask
        ask: Ask | None = None,
        # make connections that later commands use, and that end so many seconds after their last use
        keep: float | None = None,
    ) -> None:
        self._banner_timeout = banner_timeout or connect_timeout
        self._credentials = Credentials(ask)
        self._config = SshConfig()
        self._known = KnownHosts()
        self._resolver = Resolver(
            config=self._config,
            known=self._known,
            accept_new=accept_new_host_keys,
            connect_timeout=connect_timeout,
            notice=self._notice,
        )
        self._kept = KeptConnections(self._config.program, None if keep is None else max(1, round(keep)), ask)
        self._keeps = keep is not None
        self._lock = threading.Lock()
        self._notices: dict[str, list[str]] = {}
        self._pipes: list[BytePipe] = []
        self._jumps: dict[Target, _JumpHost] = {}
        self._closed = False

    @property
    def notices(self) -> list[str]:
        """Settings that were used differently than written, a line each."""
        with self._lock:
            return [
                f"{few(folded_words(hosts), _MAX_HOSTS_IN_NOTICE)}: {text}" for text, hosts in self._notices.items()
            ]

    def open(self, entry: HostEntry, command: str, *, asks: bool = True) -> BytePipe:
        """Run ``command``, one string for the login shell, on a host; raises UsageError or HostError.

        ``asks``: the user may be prompted.
        """
        try:
            pipe = self._open(entry, command, asks=asks)
        except OSError as error:  # too many open files or processes here
            why = error.strerror or error
            raise UnreachableError(entry.name, f"cannot be dialled from this machine: {why}") from error
        return self._register(pipe, entry.name)

    def over(self, connection: fabric.Connection, command: str) -> BytePipe:
        """Run ``command``, one string for the login shell, over the caller's connection, which stays open.

        The connection is opened if necessary, with the same strict host keys as ours.
        """
        from clusterddp.hosts.ssh import fabric_pipe  # noqa: PLC0415 - paramiko is expensive to import

        keys = connection.ssh_config.get("userknownhostsfile")  # it may have another configuration: `fab -S FILE`
        entry = HostEntry(
            name=connection.original_host,
            address=connection.host,
            port=connection.port,
            user=connection.user,
            transport="fabric",
            ssh_args=("-o", f"UserKnownHostsFile={keys}") if keys else (),
        )
        target = self._resolver.route(entry).target
        pipe = fabric_pipe.pipe_over(connection, command, target, self._known)
        return self._register(pipe, entry.name)

    def close(self) -> None:
        """End every connection and child process; returns when none is left."""
        with self._lock:
            self._closed = True
            pipes, self._pipes = self._pipes, []
            jumps, self._jumps = list(self._jumps.values()), {}
        if pipes:  # at once, as each child that must be killed takes seconds
            with ThreadPoolExecutor(min(32, len(pipes)), thread_name_prefix="clusterddp-close") as pool:
                list(pool.map(lambda pipe: pipe.close(), pipes))
        self._kept.close()
        for jump in reversed(jumps):  # the first hop, which carries the others, was opened first
            jump.close()

    def _register(self, pipe: BytePipe, name: str) -> BytePipe:
        """Remember a pipe, to be closed with all others; raises UnreachableError if that has happened."""
        with self._lock:
            if not self._closed:
                self._pipes.append(pipe)
                return pipe
        pipe.close()
        raise UnreachableError(name, "the command is ending")

    def _open(self, entry: HostEntry, command: str, *, asks: bool) -> BytePipe:
        if entry.connection == "local":
            _log.debug("%s: a child process on this machine", entry.name)
            return ChildPipe(["/bin/sh", "-c", command])
        if (pipe := self._over_kept(entry, command)) is not None:
            return pipe
        route = self._resolver.route(entry)
        target = route.target
        _log.debug("%s: %s", entry.name, route.description)
        if route.openssh:
            program = self._config.program or "ssh"
            return _retry_dropped(lambda: open_pipe(target, command, program))
        import_invoke_later()
        from clusterddp.hosts.ssh import fabric_pipe  # noqa: PLC0415 - paramiko is expensive to import

        credentials = self._credentials if asks else replace(self._credentials, ask=None)
        return _retry_dropped(lambda: fabric_pipe.start(self._connect(target, credentials), command, target.name))

    def _over_kept(self, entry: HostEntry, command: str) -> BytePipe | None:
        """A pipe over the host's kept connection; None if it has none, or is not to be reached by one.

        Only who makes one asks for a live ControlMaster of the user's own: that costs an ``ssh`` a host.
        """
        if not (self._keeps or self._kept.found):
            return None
        target = self._resolver.route(entry, masters=False).target  # whoever makes one names it as all others do
        live = self._keeps and self._resolver.route(entry).target.live_master
        other = "its ControlMaster of your own is used" if live else ""
        other = other or ("clusterddp_transport: fabric" if entry.transport == "fabric" else "")
        if not other:
            return _retry_dropped(lambda: self._kept.pipe(target, command))
        if self._keeps:
            self._kept.outcomes[entry.name] = other
        return None

    def stop_keeping(self, entries: Iterable[HostEntry]) -> dict[str, str]:
        """End the kept connections to these hosts and their jump hosts.

        Returns what has gone wrong, or an empty text, by the name of each host that had one.
        """
        if not self._kept.found:
            return {}
        targets = []
        for entry in [entry for entry in entries if entry.connection != "local"]:
            with contextlib.suppress(ClusterddpError):  # nothing leads there: nothing is kept
                targets.append(self._resolver.route(entry, masters=False).target)
        jumps: dict[str, Target] = {}
        for target in targets:
            via = target.via
            while via is not None:
                jumps[via.account] = via
                via = via.via
        found = {target.name: self._kept.stop(target) for target in [*targets, *jumps.values()]}
        return {name: wrong for name, wrong in found.items() if wrong is not None}

    @property
    def kept(self) -> dict[str, str]:
        """Why each host's connection is not kept, or an empty text, by its name; of those that were opened to be."""
        return dict(self._kept.outcomes)

    def _connect(self, target: Target, credentials: Credentials) -> Link:
        """Open an authenticated connection to a host, through its jump hosts."""
        from clusterddp.hosts.ssh import fabric_pipe  # noqa: PLC0415 - paramiko is expensive to import

        if target.via is None:
            link = fabric_pipe.connect(target, self._known, self._banner_timeout, credentials)
        else:
            with self._jump_host(target.via).opening(target.name) as jump:
                link = fabric_pipe.connect(target, self._known, self._banner_timeout, credentials, jump.transport)
        _log.debug("%s: logged in as %s", target.name, target.user)
        return link

    def _jump_host(self, via: Target) -> _JumpHost:
        with self._lock:
            if self._closed:
                raise UnreachableError(via.name, "the command is ending")
            if via not in self._jumps:
                self._jumps[via] = _JumpHost(
                    lambda credentials: _retry_dropped(lambda: self._connect(via, credentials)), self._credentials
                )
            return self._jumps[via]

    def _notice(self, host: str, text: str) -> None:
        with self._lock:
            hosts = self._notices.setdefault(text, [])
            if host not in hosts:
                hosts.append(host)


class _JumpHost:
    """One connection to a jump host, opened when first needed, shared by the hosts behind it."""

    def __init__(self, connect: Callable[[Credentials], Link], credentials: Credentials) -> None:
        self._connect = connect
        self._credentials = credentials
        self._lock = threading.Lock()
        self._gate = threading.BoundedSemaphore(MAX_LOGINS_PER_JUMP_HOST)
        self._link: Link | None = None
        self._failure: HostError | None = None
        self._failed_at = 0.0
        self._closed = False

    @contextlib.contextmanager
    def opening(self, host: str) -> Iterator[Link]:
        """The open connection; only a few hosts behind it may be in this context at a time."""
        asked_at = time.monotonic()
        with self._gate:
            try:
                link = self._open_link(asked_at, host)
            except HostError as error:
                raise _error_behind(error, host) from error
            if self._closed:
                self.close()
                raise UnreachableError(host, "the command is ending")
            yield link

    def close(self) -> None:
        """End the connection; a thread that is opening it ends it then, as the login may wait for the user."""
        self._closed = True
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._end_link()
        finally:
            self._lock.release()

    def _end_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _open_link(self, asked_at: float, host: str) -> Link:
        """The connection, opened if necessary; raises HostError, possibly one that another thread has just got."""
        with self._lock:
            if self._closed:
                self._end_link()  # who has just opened it cannot, as this thread has the lock
                raise UnreachableError(host, "is not opened: the command is ending")
            if self._link is not None and self._link.transport.is_active():
                return self._link
            # Threads that waited for a failed attempt share its error: a jump host is not tried once per host.
            waited = self._failed_at >= asked_at
            recent = time.monotonic() - self._failed_at < _JUMP_FAILURE_LIFETIME
            if self._failure is not None and (waited or (recent and isinstance(self._failure, UnreachableError))):
                raise self._failure
            if self._link is not None:
                self._link.close()
                self._credentials = replace(self._credentials, ask=None)  # never prompt again in the middle of work
            try:
                self._link = self._connect(self._credentials)
            except HostError as error:
                self._link, self._failure, self._failed_at = None, error, time.monotonic()
                raise
            return self._link


def _error_behind(error: HostError, host: str) -> HostError:
    """A jump host's error as that of a host behind it."""
    message = f"jump host {error.message}"
    if not isinstance(error, UnknownHostKeyError):
        kind = UnreachableError if isinstance(error, UnreachableError) else type(error)
        return kind(host, message, remedy=error.remedy)
    unknown = UnknownHostKeyError(
        host, message, remedy=error.remedy, fingerprint=error.fingerprint, known_hosts_line=error.known_hosts_line
    )
    unknown.known_hosts_file = error.known_hosts_file
    unknown.jump_host = error.jump_host or error.host
    return unknown


def _retry_dropped(attempt: Callable[[], T]) -> T:
    """Call ``attempt``; repeat it after a random wait if the server hung up before its banner."""
    for number in range(1, MAX_ATTEMPTS):
        try:
            return attempt()
        except DroppedError as error:
            _log.debug("%s; attempt %d of %d follows", error, number + 1, MAX_ATTEMPTS)
            time.sleep(random.uniform(0.2, 0.6) * number)  # noqa: S311 - spreads logins, hides nothing
    return attempt()
