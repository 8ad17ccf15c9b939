"""Connections through paramiko: one authenticated connection, and a byte pipe over one channel on it.

fabric itself is not imported: a caller that has a ``fabric.Connection`` brings it.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from typing import TYPE_CHECKING, Any

import paramiko

from clusterddp.errors import AuthenticationError, HostError, UnreachableError
from clusterddp.hosts.ssh.auth import Authentication, HostKeyPolicy
from clusterddp.hosts.ssh.pipes import EXIT_STATUS_TIMEOUT, DroppedError, Tail
from clusterddp.hosts.ssh.proxy import CHANNEL_TIMEOUT, open_socket

if TYPE_CHECKING:
    from collections.abc import Callable

    import fabric

    from clusterddp.hosts.ssh.known_hosts import KnownHosts
    from clusterddp.hosts.ssh.private_keys import Credentials
    from clusterddp.hosts.ssh.proxy import Proxy
    from clusterddp.hosts.ssh.target import Target

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # keeps its tracebacks off the user's terminal

_WRITE_CHUNK = 64 * 1024  # limits copying: paramiko copies the rest of the data after every packet
_AUTH_TIMEOUT = 30.0  # seconds for each step of the login
_CLOSE_TIMEOUT = 1.0  # seconds to close a channel properly
_CANNOT_TELL = (OSError, EOFError, paramiko.SSHException)  # it has ended, or fell silent as new keys were due
_RSA_SIGNATURES = ("rsa-sha2-512", "rsa-sha2-256")  # the algorithms for an ssh-rsa key


class Link:
    """One authenticated connection, the socket or jump host's channel under it, and the ProxyCommand's process."""

    def __init__(self, client: paramiko.SSHClient, sock: Any, proxy: Proxy | None = None) -> None:
        self.client = client
        self._sock = sock
        self._proxy = proxy

    @property
    def transport(self) -> paramiko.Transport:
        """The live transport."""
        return _transport(self.client)

    def close(self) -> None:
        """End the connection, its thread and its child process."""
        transport = self.client.get_transport()
        # This wakes paramiko's reader at once: it checks its own closed flag only ten times a second.
        with contextlib.suppress(*_CANNOT_TELL):
            self._sock.shutdown(socket.SHUT_RDWR)
        self.client.close()
        if transport is not None and transport.is_alive():
            transport.join(2)  # its own close() does not wait
        with contextlib.suppress(*_CANNOT_TELL):
            self._sock.close()
        if self._proxy is not None:
            self._proxy.close()


class FabricPipe:
    """A byte pipe over a channel whose command is started; ``close_connection`` ends the connection under it."""

    def __init__(self, channel: paramiko.Channel, close_connection: Callable[[], None]) -> None:
        self._channel = channel
        self._close_connection = close_connection
        self._stdout_ended = False
        # stderr shares the channel's window: if it were not read, stdout would stop.
        self._tail = Tail(lambda size: _receive(channel.recv_stderr, size))

    def read(self, size: int) -> bytes:
        """See ``BytePipe``."""
        data = b"" if self._stdout_ended else _receive(self._channel.recv, size)
        self._stdout_ended = not data
        return data

    def write(self, data: bytes) -> None:
        """See ``BytePipe``."""
        view = memoryview(data)
        try:
            for start in range(0, len(view), _WRITE_CHUNK):
                self._channel.sendall(bytes(view[start : start + _WRITE_CHUNK]))
        except (EOFError, paramiko.SSHException) as error:
            raise BrokenPipeError("the connection is closed") from error

    def close(self) -> None:
        """See ``BytePipe``."""
        # If the host is gone, closing may block for ever on the transport's lock; the connection is ended regardless.
        closing = threading.Thread(target=self._close_channel, name="close channel", daemon=True)
        closing.start()
        closing.join(_CLOSE_TIMEOUT)
        self._close_connection()
        self._tail.join(2)

    def _close_channel(self) -> None:
        with contextlib.suppress(*_CANNOT_TELL):
            self._channel.close()

    def stderr(self) -> str:
        """See ``BytePipe``."""
        return self._tail.text()

    def exit_status(self) -> int | None:
        """See ``BytePipe``."""
        if self._channel.status_event.wait(EXIT_STATUS_TIMEOUT if self._stdout_ended else 0):
            status = self._channel.exit_status
            return status if status >= 0 else None
        return None


def _receive(receive: Callable[[int], bytes], size: int) -> bytes:
    """The bytes from ``receive``; empty if the connection broke.

    paramiko takes bytes out of its buffer before it tells the host so: if that fails they are lost, and bytes that came
    after them must not be read as if they followed.
    """
    try:
        return receive(size)
    except (EOFError, OSError, paramiko.SSHException):  # reported to the reader as the end
        return b""


def start(link: Link, command: str, name: str) -> FabricPipe:
    """Start ``command`` on a new channel of ``link``, which the pipe then owns; ``UnreachableError`` if refused."""
    try:
        return FabricPipe(_open_session(link.client, command, name), link.close)
    except BaseException:
        link.close()
        raise


def pipe_over(connection: fabric.Connection, command: str, target: Target, known: KnownHosts) -> FabricPipe:
    """A pipe over the caller's connection, which is opened if necessary, with strict host keys, and left open."""
    if not connection.is_connected:
        connection.client.set_missing_host_key_policy(HostKeyPolicy(target, known))
        try:
            connection.open()
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise _error_for(error, target, connection.client.get_transport(), "") from error
    return FabricPipe(_open_session(connection.client, command, target.name), lambda: None)


def _transport(client: paramiko.SSHClient) -> paramiko.Transport:
    """The transport of an open client."""
    transport = client.get_transport()
    if transport is None:
        raise EOFError("the connection is closed")
    return transport


def _open_session(client: paramiko.SSHClient, command: str, name: str) -> paramiko.Channel:
    try:
        channel = _transport(client).open_session(timeout=CHANNEL_TIMEOUT)
        channel.exec_command(command)
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise UnreachableError(
            name,
            f"logged in, but the host opens no session: {error}",
            remedy="check MaxSessions and ForceCommand there",
        ) from error
    return channel


def connect(
    target: Target,
    known: KnownHosts,
    banner_timeout: float,
    credentials: Credentials,
    jump: paramiko.Transport | None = None,
) -> Link:
    """Open one authenticated connection, through the transport ``jump`` if ``target`` has a jump host."""
    sock, proxy = open_socket(target, jump)
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(HostKeyPolicy(target, known))
    link = Link(client, sock, proxy)
    login: Any = Authentication(target=target, credentials=credentials)  # has the methods of an AuthStrategy
    try:
        client.connect(
            target.host,
            port=target.port,
            username=target.user,
            # Limits banner and key exchange together: it must not run out first, since its error names neither.
            timeout=2 * banner_timeout + 5,
            sock=sock,
            banner_timeout=banner_timeout,
            auth_timeout=_AUTH_TIMEOUT,
            channel_timeout=CHANNEL_TIMEOUT,
            compress=target.compress,
            auth_strategy=login,
            transport_factory=_transport_factory(known.types(target.host_key_files, target.key_names), banner_timeout),
        )
    except BaseException as error:
        transport = client.get_transport()
        link.close()
        if isinstance(error, (paramiko.SSHException, OSError, EOFError)):
            raise _error_for(error, target, transport, proxy.last_error_line() if proxy else "") from error
        raise
    return link


def _transport_factory(known_types: tuple[str, ...], banner_timeout: float) -> Callable[..., paramiko.Transport]:
    """A factory of transports that prefer GCM ciphers and, like ssh, the host key types already known."""
    known_algorithms = [name for kind in known_types for name in (_RSA_SIGNATURES if kind == "ssh-rsa" else (kind,))]

    def make(sock: Any, disabled_algorithms: Any = None, **_others: Any) -> paramiko.Transport:
        transport = paramiko.Transport(sock, disabled_algorithms=disabled_algorithms)
        options = transport.get_security_options()
        ciphers = [name for name in options.ciphers if "cbc" not in name]
        options.ciphers = sorted(ciphers, key=lambda name: "gcm" not in name)
        options.key_types = sorted(options.key_types, key=lambda name: name not in known_algorithms)
        transport.handshake_timeout = banner_timeout
        transport.clear_to_send_timeout = CHANNEL_TIMEOUT
        return transport

    return make


def _error_for(error: Exception, target: Target, transport: paramiko.Transport | None, proxy_error: str) -> HostError:
    """The error to show for a connection that failed; ``proxy_error`` is what a ProxyCommand wrote on stderr."""
    detail = f": {proxy_error}" if proxy_error else ""
    if isinstance(error, paramiko.AuthenticationException):
        return AuthenticationError(target.name, f"{target.user}@{target.endpoint} refused our keys: {error}")
    if isinstance(error, OSError) and transport is None:
        return UnreachableError(target.name, f"cannot reach {target.endpoint}: {error}")
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return UnreachableError(
            target.name,
            f"{target.endpoint} and paramiko have no algorithm in common: {error}",
            remedy="set clusterddp_transport: openssh",
        )
    if transport is None or not transport.remote_version:
        if isinstance(error.__context__, TimeoutError):
            return UnreachableError(
                target.name,
                f"{target.endpoint} did not answer as an SSH server in time{detail}",
                remedy="check the port",
            )
        if proxy_error:
            return UnreachableError(target.name, f"ProxyCommand to {target.endpoint} failed{detail}")
        return DroppedError(
            target.name,
            f"{target.endpoint} closed the connection before it said anything",
            remedy="too many logins at once? raise MaxStartups in its sshd_config",
        )
    return UnreachableError(target.name, f"the connection to {target.endpoint} broke during login: {error}{detail}")
