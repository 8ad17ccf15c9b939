"""What an SSH connection runs over: a TCP socket, a jump host's channel, or a ProxyCommand."""

from __future__ import annotations

import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any

import paramiko

from clusterddp.errors import UnreachableError
from clusterddp.hosts.ssh.config import ssh_environment
from clusterddp.hosts.ssh.pipes import Tail, end

if TYPE_CHECKING:
    from clusterddp.hosts.ssh.target import Target

CHANNEL_TIMEOUT = 30.0  # seconds for opening a session, or a way through a jump host
# In seconds but the last, in ms. While data is on the way (a ping to a silent host) no probe is sent, and without that
# last one the kernel sends the data again for a quarter of an hour.
_KEEPALIVE = {
    "TCP_KEEPIDLE": 15,
    "TCP_KEEPALIVE": 15,
    "TCP_KEEPINTVL": 15,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 45_000,
}


def open_socket(target: Target, jump: paramiko.Transport | None) -> tuple[Any, Proxy | None]:
    """Open the socket or channel for a connection to ``target``; return it and the ProxyCommand's process."""
    if jump is not None:
        return _jump_channel(jump, target), None
    if target.proxy:
        proxy = Proxy(target.proxy)
        return proxy.sock, proxy
    return connect_tcp(target), None


def connect_tcp(target: Target) -> socket.socket:
    """Open a TCP connection to any of the target's addresses; they share its timeout: one may never answer."""
    deadline = time.monotonic() + target.connect_timeout
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise UnreachableError(
            target.name,
            f"cannot resolve {target.host}: {getattr(error, 'strerror', error)}",
            remedy="correct ansible_host or the name service",
        ) from error
    failures: list[OSError] = []
    for number, (family, kind, protocol, _, address) in enumerate(found):
        timeout = (deadline - time.monotonic()) / (len(found) - number)
        try:
            return _connect(socket.socket(family, kind, protocol), address, max(0.1, timeout))
        except OSError as error:
            failures.append(error)
    # That this machine has no way to one of them (IPv6, mostly) says nothing of a host that refuses by another.
    telling = (error for error in failures if isinstance(error, (ConnectionRefusedError, TimeoutError)))
    failure = next(telling, failures[-1])
    raise _connect_error(failure, target) from failure


def _connect(sock: socket.socket, address: Any, timeout: float) -> socket.socket:
    """Connect the socket, which is closed if it cannot be; raises OSError."""
    try:
        sock.settimeout(timeout)
        sock.connect(address)
        _keep_alive(sock)
    except OSError:
        sock.close()
        raise
    return sock


def _connect_error(error: OSError, target: Target) -> UnreachableError:
    if isinstance(error, ConnectionRefusedError):
        return UnreachableError(
            target.name, f"connection refused by {target.endpoint}", remedy="start sshd there, or correct ansible_port"
        )
    if isinstance(error, TimeoutError):
        return UnreachableError(
            target.name,
            f"no answer from {target.endpoint} within {target.connect_timeout:g} s",
            remedy="the host is down or a firewall drops the port",
        )
    return UnreachableError(
        target.name, f"cannot reach {target.endpoint}: {error.strerror}", remedy="check its network"
    )


def _keep_alive(sock: socket.socket) -> None:
    """Have the kernel notice a lost peer within a minute, and send small packets at once."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEPALIVE.items():  # each platform has some of them
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _jump_channel(jump: paramiko.Transport, target: Target) -> paramiko.Channel:
    timeout = min(CHANNEL_TIMEOUT, target.connect_timeout)
    try:
        return jump.open_channel("direct-tcpip", (target.host, target.port), ("", 0), timeout=timeout)
    except paramiko.ChannelException as error:
        prohibited = error.code == 1
        raise UnreachableError(
            target.name,
            f"the jump host {'forbids the way' if prohibited else 'cannot connect'} to {target.endpoint}: {error.text}",
            remedy="allow AllowTcpForwarding in its sshd"
            if prohibited
            else "check the address as the jump host sees it",
        ) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise UnreachableError(
            target.name, f"no way to {target.endpoint} through the jump host within {timeout:g} s: {error}"
        ) from error


class Proxy:
    """A ProxyCommand's process in its own session; one end of a socket pair is its stdin and stdout."""

    def __init__(self, command: str) -> None:
        self.sock, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                env=ssh_environment(),
            )
        assert self._process.stderr is not None  # noqa: S101 - tells the type checker what PIPE means
        self._tail = Tail(self._process.stderr.read)

    def last_error_line(self) -> str:
        """The last line the process wrote on stderr."""
        lines = self._tail.text().strip().splitlines()
        return lines[-1].strip() if lines else ""

    def close(self) -> None:
        """End the process."""
        end(self._process)
        self._tail.join(2)
        if self._process.stderr is not None:
            self._process.stderr.close()
