"""Receive chunks from the operator and, on its orders, from other hosts; and send this host's chunks to other hosts.

The operator sends a unit of chunks itself, or orders to fetch it from a host that has it, and it is notified of each
unit when it is written. So it knows which host has what, and this side stays simple: no host asks another on its own.

The frames, which follow the operation's head: shared/wire/transfer_frames.py. They end when no host needs any more.
"""

import os
import select
from typing import TYPE_CHECKING, Any, Iterable, Iterator, List, Optional, Tuple

from ..helper.request import Request
from ..shared.names import interfaces
from ..shared.wire.chunk_stream import MAX_CHUNKS, BadStream, Incoming
from ..shared.wire.chunks import CHUNK, Chunk
from ..shared.wire.frames import Frame
from ..shared.wire.partial_files import Parts
from ..shared.wire.transfer_frames import (
    HostReady,
    JoinOrder,
    JoinReply,
    TransferReport,
    UnitFailed,
    header_of,
    read_order,
)
from ..system import procfs
from ..system.bootstrap import RUNS, Refused

if TYPE_CHECKING:
    from .peers import TransferPeers

TICK_INTERVAL = 500  # milliseconds after which the caller gets to renew its lock, even without news
_MAX_REASON = 200  # characters of a failure's reason

Bundle = List[Tuple[str, bytes]]


class HostToHostChunks:
    """The chunks of one operation, from the operator and other hosts."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._head = Incoming(request.read)
        self._chunks: List[Chunk] = []
        self._parts: Optional[Parts] = None
        self._peers: "Optional[TransferPeers]" = None  # once this host has joined them
        self._poll = select.poll()
        self._unit, self._bytes_left, self._pieces = 0, 0, []  # type: Tuple[int, int, List[bytes]]

    def content(self, size: int) -> bytes:
        """The next ``size`` bytes from the operator, as of ``ChunkStream``."""
        return self._head.content(size)

    def bundles(self, parts: Parts, chunks: Iterable[Chunk]) -> Iterator[Bundle]:
        """The bundles as of ``ChunkStream``; other hosts' are verified as well.

        Until the end, other hosts can fetch from here.
        """
        self._parts, self._chunks = parts, list(dict.fromkeys(chunks))
        self._report(TransferReport(here=_describe_host(self._request.state)))
        try:
            self._poll.register(self._request.handle, select.POLLIN)
            ended = False
            while not ended:
                ready = {handle for handle, _ in self._poll.poll(TICK_INTERVAL)}
                if self._peers and self._peers.handle in ready:
                    yield from self._take_fetched(self._peers)
                if self._request.handle in ready:
                    frames, ended = self._request.take()
                    for frame in frames:
                        yield from self._execute(frame)
                yield []
        finally:
            if self._peers:
                self._peers.close()

    def _report(self, report: TransferReport) -> None:
        self._request.send(b"", **header_of(report))

    def _take_fetched(self, peers: "TransferPeers") -> Iterator[Bundle]:
        """The bundles that were fetched from other hosts; failures are reported to the operator."""
        for fetched in peers.take():
            if fetched.failure:
                failed = UnitFailed(fetched.unit, fetched.source, fetched.failure[:_MAX_REASON], fetched.is_reachable)
                self._report(TransferReport(failed=failed))
            else:
                yield fetched.bundle
                self._report(TransferReport(have=fetched.unit))

    def _execute(self, frame: Frame) -> Iterator[Bundle]:
        """Execute the operator's order in a frame; yields the chunks of the unit that it completes, if any."""
        order = read_order(frame.header)
        if order.join:
            self._report(TransferReport(port=self._join(order.join)))
        elif order.get and self._peers:
            self._peers.start_fetch(order.get, self._chunks_of)
        elif order.get:  # ordered before the operator knew that this host could not join
            failed = UnitFailed(order.get.unit, order.get.name, "this host exchanges no chunks", reached=True)
            self._report(TransferReport(failed=failed))
        elif order.head:
            self._unit, self._bytes_left, self._pieces = order.head.unit, order.head.bytes, []
        if not frame.body:
            return
        self._request.grant(len(frame.body))
        self._pieces.append(frame.body)
        self._bytes_left -= len(frame.body)
        if self._bytes_left <= 0:
            pieces = iter(self._pieces)
            bundle = Incoming(lambda: next(pieces, b"")).bundle()
            self._pieces = []
            if bundle is None or self._bytes_left < 0:
                raise BadStream("a unit is not as long as was said")
            yield bundle
            self._report(TransferReport(have=self._unit))

    def _join(self, order: JoinOrder) -> JoinReply:
        """Let other hosts fetch from here, and this host from them; returns the port, or why not."""
        try:
            from .peers import TransferPeers  # a Python without ssl gets all from the operator

            self._peers = TransferPeers(order, self._stored_chunks)
            self._poll.register(self._peers.handle, select.POLLIN)
        except (ImportError, OSError, ValueError) as error:
            return JoinReply(None, str(error)[:_MAX_REASON])
        except Refused as error:
            return JoinReply(None, error.message[:_MAX_REASON])
        return JoinReply(self._peers.port, "")

    def _chunks_of(self, ranges: Any) -> List[Chunk]:
        """The chunks of ranges (``[first, after the last]`` each), checked, as operator or host sent them."""
        chunks: List[Chunk] = []
        try:
            for first, end in ranges:
                chunks += self._chunks[first : min(end, first + MAX_CHUNKS)]
                if sum(chunk.size for chunk in chunks) > CHUNK or len(chunks) > MAX_CHUNKS:
                    break
            else:
                if chunks:
                    return chunks
        except TypeError:  # they are not pairs of numbers: the error below says so
            pass
        raise ValueError("no ranges of chunks: %.80r" % (ranges,))

    def _stored_chunks(self, ranges: Any) -> Tuple[List[Chunk], Any]:
        """The chunks of ranges, and a function that reads one by its digest; ValueError where this host lacks one."""
        chunks, parts = self._chunks_of(ranges), self._parts
        if parts is None or not all(parts.holds(chunk.digest) for chunk in chunks):
            raise ValueError("not all of them lie here")
        return chunks, parts.read


def _describe_host(state: str) -> HostReady:
    """What the operator has to know before this host can exchange chunks."""
    try:
        addresses = [one._asdict() for one in interfaces.addresses()]
    except OSError:
        addresses = []
    where = {
        "boot": procfs.boot_identity(),
        "addresses": addresses,
        "ssh_address": interfaces.ssh_address(dict(os.environ)),
    }
    return HostReady(where, live=os.path.isdir(os.path.join(state, RUNS)) and _has_live_run(state))


def _has_live_run(state: str) -> bool:
    from ..spool.layout import all_spools  # its import takes longer than to receive a hundred files

    return any(spool.at_work() for spool in all_spools(state))
