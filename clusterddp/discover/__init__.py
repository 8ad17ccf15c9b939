"""Machines on one network segment find rank 0 by UDP multicast, without knowing an address beforehand.

    found = discover(DiscoverOptions(id="job7", rank=2, world_size=4))
    found.master_addr, found.master_port, found.local_addr

The protocol is without I/O: announcer.py (rank 0), seeker.py (the other ranks), message.py (the datagrams). segment.py
has the sockets. Nothing here knows inventories or SSH.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.discover.announcer import Announcer
from clusterddp.discover.message import MAX_ID_BYTES, MAX_WORLD_SIZE, MIN_KEY_BYTES, Codec, Message
from clusterddp.discover.outcome import Failed
from clusterddp.discover.seeker import Seeker
from clusterddp.discover.segment import Segment, choose_interface
from clusterddp.errors import DiscoverError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterddp.discover.segment import NetworkSegment

__all__ = ["DiscoverOptions", "Found", "discover", "torchrun_env"]

TIMEOUT = 600.0  # seconds; torchrun waits as long for its own rendezvous
FIRST_PORT, LAST_PORT = 29400, 29499  # for rank 0: no ephemeral ports, and opened by our firewall playbook


@dataclass(frozen=True, kw_only=True, slots=True)
class DiscoverOptions:
    """What a machine must know beforehand; ``UsageError`` for an impossible value."""

    id: str  # the job's name: 1 to 64 bytes, the same on all its machines, and used by no other job meanwhile
    rank: int  # this machine's, from 0
    world_size: int  # the number of machines
    timeout: float = TIMEOUT  # seconds to wait for the others
    # name or address of the network interface; None: the only one, else the one that multicast is routed to
    interface: str | None = None
    # MASTER_PORT that rank 0 announces; None: a free one of 29400-29499, else any. Ignored on other ranks.
    port: int | None = None
    # at least 16 secret bytes that all machines share; None: every message on the segment is trusted
    key: bytes | None = None

    def __post_init__(self) -> None:
        size = len(self.id.encode(errors="replace"))
        if size > MAX_ID_BYTES:
            raise UsageError(f"--id: {self.id[:16]}… has {size} bytes", remedy=f"{MAX_ID_BYTES} are the most")
        if not self.id or not self.id.isprintable():
            raise UsageError(f"--id: {self.id!r} is no name", remedy="use letters and digits, such as job7")
        if not 1 <= self.world_size <= MAX_WORLD_SIZE:
            raise UsageError(f"--world-size {self.world_size}: not 1 to {MAX_WORLD_SIZE} machines", remedy="count them")
        if not 0 <= self.rank < self.world_size:
            last = self.world_size - 1
            raise UsageError(f"--rank {self.rank} of {self.world_size}: no such rank", remedy=f"they are 0 to {last}")
        if not 0 < self.timeout < float("inf"):
            raise UsageError(f"--timeout {self.timeout:g}: no time to meet in", remedy="give 60s or 10m")
        if self.port is not None and not 1 <= self.port <= 65535:
            raise UsageError(f"--port {self.port}: no TCP port", remedy="give one from 1024 to 65535")
        if self.key is not None and len(self.key) < MIN_KEY_BYTES:
            remedy = f"{MIN_KEY_BYTES} are the fewest; `openssl rand -hex 32` makes a good one"
            raise UsageError(f"the key has {len(self.key)} bytes", remedy=remedy)


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The result, the same on all machines except for ``local_addr``."""

    master_addr: str  # rank 0's address
    master_port: int  # a TCP port that was free there a moment ago
    local_addr: str  # this machine's address on the same interface


def discover(options: DiscoverOptions, notify: Callable[[str], None] = lambda _: None) -> Found:
    """Find the other machines; returns on each of them when rank 0 has heard from all.

    ``notify`` is called with notices of a line each. Raises ``DiscoverError`` if ranks are missing, rank 0 is, or a
    second machine has this rank; ``UsageError`` if there is no such interface.
    """
    where = choose_interface(options.interface)
    notify(f"rank {options.rank} of {options.world_size} of {options.id} on {where.interface} ({where.address})")
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(free_port(options.port, where.family)) if options.rank == 0 else 0
        conversation = _Conversation(options, where, stack.enter_context(contextlib.closing(Segment(where))), notify)
        return conversation.play(_start_part(options, where, port))


def torchrun_env(options: DiscoverOptions, found: Found) -> dict[str, str]:
    """Return environment variables from which torchrun takes its options: one node per machine, the ranks as given."""
    address = f"[{found.master_addr}]" if ":" in found.master_addr else found.master_addr
    return {
        "PET_NNODES": str(options.world_size),
        "PET_NODE_RANK": str(options.rank),
        "PET_RDZV_ID": options.id,
        "PET_RDZV_ENDPOINT": f"{address}:{found.master_port}",
        "PET_RDZV_CONF": f"is_host={str(options.rank == 0).lower()}",  # torch's own guess compares host names
        "PET_LOCAL_ADDR": found.local_addr,
    }


def _start_part(options: DiscoverOptions, where: NetworkSegment, port: int) -> Announcer | Seeker:
    nonce, now = secrets.token_hex(8), time.monotonic()
    size, timeout = options.world_size, options.timeout
    if options.rank == 0:
        return Announcer(nonce=nonce, world_size=size, address=where.address, port=port, now=now, timeout=timeout)
    return Seeker(
        nonce=nonce,
        rank=options.rank,
        world_size=size,
        address=where.address,
        now=now,
        timeout=timeout,
        random_number=random.random,
    )


class _Conversation:
    """Sends and receives the datagrams of one rank's side of the protocol."""

    def __init__(
        self, options: DiscoverOptions, where: NetworkSegment, segment: Segment, notify: Callable[[str], None]
    ) -> None:
        self._options, self._where, self._segment, self._notify = options, where, segment, notify
        self._codec = Codec(id=options.id, key=options.key)
        self._untrusted: dict[str, str] = {}  # sender's address → why

    def play(self, part: Announcer | Seeker) -> Found:
        """Send and receive until the discovery has ended; ``DiscoverError`` if it fails."""
        try:
            while part.outcome is None:
                self._exchange(part)
        finally:
            if part.outcome is None:  # Ctrl-C
                self._send(part.leave())
        if isinstance(part.outcome, Failed):
            raise self._error(part.outcome)
        return Found(master_addr=part.outcome.address, master_port=part.outcome.port, local_addr=self._where.address)

    def _exchange(self, part: Announcer | Seeker) -> None:
        """Send what is due, receive until the next message is due, and show notices."""
        self._send(part.tick(time.monotonic()))
        for datagram, source in self._segment.receive(part.due - time.monotonic()):
            message = self._codec.decode(datagram)
            if isinstance(message, Message):
                self._send(part.receive(message, time.monotonic()))
            elif message and source not in self._untrusted and len(self._untrusted) < 8:
                self._untrusted[source] = message.reason
                self._notify(f"{source} also speaks of {self._options.id}, but is not believed: {message.reason}")
        for notice in part.notices:
            self._notify(notice)
        part.notices.clear()

    def _send(self, messages: list[Message]) -> None:
        for message in messages:
            self._segment.send(self._codec.encode(message))

    def _error(self, failed: Failed) -> DiscoverError:
        """Return the error, with ignored datagrams and failures to send, which may be the cause."""
        where = f"{self._options.id} on {self._where.interface} ({self._where.address})"
        more = [f"{source} was not believed: {reason}" for source, reason in self._untrusted.items()]
        more += [f"sending failed: {self._segment.trouble}"] if self._segment.trouble else []
        message = "; ".join([f"{where}: {failed.message}", *more])
        return DiscoverError(message, remedy=failed.remedy)


@contextlib.contextmanager
def free_port(required: int | None, family: int) -> Iterator[int]:
    """Yield a port free on all addresses of a family (4 or 6): the required one, or one of 29400-29499, else any.

    A port that was not required stays bound until the context ends, so that two jobs on this machine choose two; then,
    until torch binds it, another program may take it. It does not listen: a client that connects too early is refused
    and retries, as with torch's store. Raises ``DiscoverError`` if the required port is taken.
    """
    with socket.socket(socket.AF_INET if family == 4 else socket.AF_INET6, socket.SOCK_STREAM) as sock:
        if not required:
            yield _bind_free(sock)
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch does, for ports in TIME_WAIT
        try:
            sock.bind(("", required))
            sock.listen(1)  # with SO_REUSEADDR several may bind it, but only one can listen
        except OSError as error:
            remedy = "give another --port, or leave it out"
            raise DiscoverError(f"--port {required}: {error.strerror or error}", remedy=remedy) from None
        sock.close()
        yield required


def _bind_free(sock: socket.socket) -> int:
    """Bind a free port of our range, tried in random order, else any; return it."""
    for port in [*random.sample(range(FIRST_PORT, LAST_PORT + 1), LAST_PORT - FIRST_PORT + 1), 0]:
        with contextlib.suppress(OSError):  # in use: try the next one
            sock.bind(("", port))
            break
    return int(sock.getsockname()[1])
