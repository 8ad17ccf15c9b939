"""The way to a host through fabric and paramiko: sockets, host keys, login, and the pipe over a channel.

Covers TCP and ProxyCommand beneath, one channel above. Which machine, which keys and which jump hosts is said by the
``Target``. Imports fabric and paramiko; imported lazily.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fabric
import paramiko

from clusterddp.connection.login import HostKeyPolicy, Login
from clusterddp.connection.pipes import EXIT_STATUS_WAIT, Tail
from clusterddp.connection.sshconfig import ssh_environment
from clusterddp.errors import AuthenticationError, ClusterddpError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterddp.connection.hostkeys import KnownHosts
    from clusterddp.connection.login import Ask
    from clusterddp.connection.target import Target

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # else its tracebacks reach the user's terminal

_WRITE_CHUNK = 64 * 1024  # paramiko copies what is left after every packet
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPALIVE": 15, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 3}
_RSA_SIGNATURES = ("rsa-sha2-512", "rsa-sha2-256")  # how an ssh-rsa key is asked for


class DroppedError(UnreachableError):
    """The server hung up before it said anything, as sshd does when too many log in at once (MaxStartups)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeouts:
    """Seconds of patience for each part of opening a connection."""

    banner: float
    auth: float
    channel: float


class Link:
    """One authenticated connection and what it stands on.

    Args:
        connection: The connection.
        sock: What carries it: a socket or a jump host's channel.
        proxy: The ProxyCommand's process.
    """

    def __init__(
        self, connection: fabric.Connection, sock: Any, proxy: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.connection = connection
        self._sock = sock
        self._proxy = proxy

    @property
    def transport(self) -> paramiko.Transport:
        """The live transport."""
        transport: paramiko.Transport = self.connection.client.get_transport()
        return transport

    def close(self) -> None:
        """End the connection, its thread and its child."""
        transport = self.connection.client.get_transport()
        # Woken at once: paramiko's reader looks at its own closed flag only ten times a second.
        with contextlib.suppress(OSError, EOFError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self.connection.client.close()
        if transport is not None and transport.is_alive():
            transport.join(2)  # its own close() does not wait
        self._sock.close()
        if self._proxy is not None:
            _end(self._proxy)


class FabricPipe:
    """A byte pipe over one channel.

    Args:
        channel: The channel, its command started.
        close_below: Ends what carries it.
    """

    def __init__(self, channel: paramiko.Channel, close_below: Callable[[], None]) -> None:
        self._channel = channel
        self._close_below = close_below
        # stderr shares the channel's window: left unread it would stop stdout.
        self._tail = Tail(channel.recv_stderr)
        self._ended = False

    def read(self, size: int) -> bytes:
        """See ``BytePipe``."""
        data = self._channel.recv(size)
        self._ended = not data
        return data

    def write(self, data: bytes) -> None:
        """See ``BytePipe``."""
        view = memoryview(data)
        for start in range(0, len(view), _WRITE_CHUNK):
            self._channel.sendall(bytes(view[start : start + _WRITE_CHUNK]))

    def close(self) -> None:
        """See ``BytePipe``."""
        with contextlib.suppress(OSError, EOFError):
            self._channel.close()
        self._close_below()
        self._tail.join(2)

    def stderr(self) -> str:
        """See ``BytePipe``."""
        return self._tail.text()

    def exit_status(self) -> int | None:
        """See ``BytePipe``."""
        if self._channel.status_event.wait(EXIT_STATUS_WAIT if self._ended else 0):
            status = self._channel.exit_status
            return status if status >= 0 else None
        return None


def start(link_or_connection: fabric.Connection, command: str, timeout: float) -> paramiko.Channel:
    """Start ``command`` on a new channel of an open connection."""
    channel: paramiko.Channel = link_or_connection.client.get_transport().open_session(timeout=timeout)
    channel.exec_command(command)
    return channel


def connect(
    target: Target, known: KnownHosts, timeouts: Timeouts, ask: Ask | None, jump: paramiko.Transport | None = None
) -> Link:
    """Open one authenticated connection.

    Args:
        target: Where to.
        known: The known hosts.
        timeouts: Patience after the TCP connect.
        ask: Prompts the user.
        jump: The jump host's transport, when ``target`` has one.

    Raises:
        HostError: It cannot be reached, its key is not trusted, or it refuses ours.
    """
    sock, proxy = _carrier(target, timeouts, jump)
    connection = fabric.Connection(
        target.host,
        user=target.user,
        port=target.port,
        config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),  # everything is decided already
        gateway=False,
        forward_agent=False,
        connect_timeout=max(1, round(target.connect_timeout)),
        connect_kwargs={
            "sock": sock,
            "banner_timeout": timeouts.banner,
            "auth_timeout": timeouts.auth,
            "channel_timeout": timeouts.channel,
            "compress": target.compress,
            "auth_strategy": Login(target=target, ask=ask),
            "transport_factory": _transports(known.types(target.host_key_files, target.key_names), timeouts),
        },
    )
    connection.client.set_missing_host_key_policy(HostKeyPolicy(target, known))
    link = Link(connection, sock, proxy)
    try:
        connection.open()
    except BaseException as error:
        link.close()
        if isinstance(error, (paramiko.SSHException, OSError, EOFError)):
            raise _classified(error, target, _words(proxy)) from error
        raise
    return link


def _carrier(
    target: Target, timeouts: Timeouts, jump: paramiko.Transport | None
) -> tuple[Any, subprocess.Popen[bytes] | None]:
    if jump is not None:
        return _through(jump, target, timeouts), None
    if target.proxy:
        return _proxied(target)
    return tcp(target), None


def tcp(target: Target) -> socket.socket:
    """A TCP connection to any of the target's addresses, within its timeout in all.

    Raises:
        UnreachableError: None answers; says which address and why.
    """
    deadline = time.monotonic() + target.connect_timeout
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise UnreachableError(
            target.name, f"cannot resolve {target.host}: {error}", remedy="correct ansible_host or the name service"
        ) from error
    failure: OSError = TimeoutError()
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(max(0.1, deadline - time.monotonic()))
            sock.connect(address)
        except OSError as error:
            sock.close()
            failure = error
        else:
            _keep_alive(sock)
            return sock
    raise _no_answer(failure, target) from failure


def _no_answer(error: OSError, target: Target) -> UnreachableError:
    if isinstance(error, ConnectionRefusedError):
        return UnreachableError(
            target.name, f"connection refused by {target.place}", remedy="start sshd there, or correct ansible_port"
        )
    if isinstance(error, TimeoutError):
        return UnreachableError(
            target.name,
            f"no answer from {target.place} within {target.connect_timeout:g} s",
            remedy="the host is down or a firewall drops the port",
        )
    return UnreachableError(target.name, f"cannot reach {target.place}: {error.strerror}", remedy="check its network")


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEPALIVE.items():  # each platform has some of them
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _through(jump: paramiko.Transport, target: Target, timeouts: Timeouts) -> paramiko.Channel:
    patience = min(timeouts.channel, target.connect_timeout)
    try:
        return jump.open_channel("direct-tcpip", (target.host, target.port), ("", 0), timeout=patience)
    except paramiko.ChannelException as error:
        prohibited = error.code == 1
        raise UnreachableError(
            target.name,
            f"the jump host {'forbids the way' if prohibited else 'cannot connect'} to {target.place}: {error.text}",
            remedy="allow AllowTcpForwarding in its sshd" if prohibited else "check the address as the jump host sees it",
        ) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise UnreachableError(
            target.name, f"no way to {target.place} through the jump host within {patience:g} s: {error}"
        ) from error


def _proxied(target: Target) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """A ProxyCommand in its own session; one end of a socket pair is its stdin and stdout."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {target.proxy}"],
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            env=ssh_environment(),
        )
    return ours, process
