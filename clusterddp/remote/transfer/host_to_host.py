"""Chunks that come from the operator and, where it says so, from other hosts, to which this one passes on its own.

The operator numbers pieces of the transfer, a unit each: ranges in the list of all its chunks, which every host has
from the manifest. It sends a unit itself, or says which host has it; it hears of each when it is written. So it knows
who holds what, and what is ordered here is little: no host asks another of its own accord.

Data frames of the operation, besides its head; their bodies carry the bundles that ``unit`` announces:

    here {boot, addresses, ssh_address, live}   to the operator: all is ready for chunks
    unit, bytes                                 a unit follows, a bundle of so many bytes
    join {name, address, ports, rate, …}        be one of those that pass on; answered by port {port, why}
    get, ranges, name, address, port            take a unit from another host
    have; failed, source, reached, why          to the operator: a unit is written; a host did not give it
    end                                         no host needs anything more
"""

import os
import queue
import selectors
import threading
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from ..helper.request import Request
from ..shared.names import interfaces
from ..shared.wire.chunk_stream import MOST_CHUNKS, BadStream, Incoming
from ..shared.wire.chunks import CHUNK, Chunk
from ..shared.wire.frames import Frame
from ..shared.wire.partial_files import Parts
from ..spool.layout import all_spools
from ..system import procfs
from ..system.bootstrap import Refused

TICK = 0.5  # seconds without news after which the caller may look after its lock
_WAITING = 2  # units fetched and not written yet

Bundle = List[Tuple[str, bytes]]


class _Fetched(NamedTuple):
    """A unit from another host, or why it gave none."""

    unit: int
    source: str
    came: Bundle
    why: str
    reached: bool


class HostToHostChunks:
    """The chunks of one operation."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._head = Incoming(request.read)
        self._chunks: List[Chunk] = []
        self._parts: Optional[Parts] = None
        self._peers: Any = None
        self._fetched: "queue.Queue[_Fetched]" = queue.Queue(_WAITING)
        self._woken, self._wake = os.pipe()
        self._unit, self._left, self._pieces = 0, 0, []  # type: Tuple[int, int, List[bytes]]
        os.set_blocking(self._wake, False)

    def content(self, size: int) -> bytes:
        """As of ``ChunkStream``."""
        return self._head.content(size)

    def bundles(self, parts: Parts, chunks: Iterable[Chunk]) -> Iterator[Bundle]:
        """As of ``ChunkStream``; what other hosts sent is proved as well. It passes on what it has until the end."""
        self._parts, self._chunks = parts, list(dict.fromkeys(chunks))
        self._request.send(b"", here=_about(self._request.args["state"]))
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._request.handle, selectors.EVENT_READ)
                selector.register(self._woken, selectors.EVENT_READ)
                ended = False
                while not ended:
                    ready = {key.fd for key, _ in selector.select(TICK)}
                    if self._woken in ready:
                        os.read(self._woken, 1 << 10)
                        yield from self._taken()
                    if self._request.handle in ready:
                        frames, ended = self._request.take()
                        for frame in frames:
                            yield from self._obeyed(frame)
                    yield []
        finally:
            if self._peers:
                self._peers.close()

    def _taken(self) -> Iterator[Bundle]:
        """What other hosts have sent."""
        while True:
            try:
                fetched = self._fetched.get_nowait()
            except queue.Empty:
                return
            if fetched.why:
                told = {"failed": fetched.unit, "source": fetched.source, "reached": fetched.reached}
                self._request.send(b"", why=fetched.why[:200], **told)
            else:
                yield fetched.came
                self._request.send(b"", have=fetched.unit)

    def _obeyed(self, frame: Frame) -> Iterator[Bundle]:
        """Do what the operator says in one frame; the unit that is complete by it."""
        header = frame.header
        if "join" in header:
            self._request.send(b"", port=self._join(header["join"]))
        elif "get" in header:
            threading.Thread(target=self._fetch, args=(header,), daemon=True).start()
        elif "unit" in header:
            self._unit, self._left, self._pieces = int(header["unit"]), int(header["bytes"]), []
        if not frame.body:
            return
        self._request.grant(len(frame.body))
        self._pieces.append(frame.body)
        self._left -= len(frame.body)
        if self._left <= 0:
            pieces = iter(self._pieces)
            came = Incoming(lambda: next(pieces, b"")).bundle()
            self._pieces = []
            if came is None or self._left < 0:
                raise BadStream("a unit is not as long as was said")
            yield came
            self._request.send(b"", have=self._unit)

    def _join(self, args: Dict[str, Any]) -> Dict[str, Any]:
        """Let other hosts take from here, and us from them: the port, or why not."""
        try:
            from .peers import TransferPeers  # a Python without ssl gets all from the operator

            self._peers = TransferPeers(args, self._stored)
        except (ImportError, OSError, ValueError) as error:
            return {"port": None, "why": str(error)[:200]}
        except Refused as error:
            return {"port": None, "why": error.message[:200]}
        return {"port": self._peers.port, "why": ""}

    def _fetch(self, order: Dict[str, Any]) -> None:
        """Take a unit from another host; in a thread of its own."""
        unit, source = int(order["get"]), str(order["name"])
        came, why, reached = [], "", True  # type: Tuple[Bundle, str, bool]
        try:
            place = (str(order["address"]), int(order["port"]))
            came = self._peers.fetch(source, place, order["ranges"], self._meant(order["ranges"]))
        except Exception as error:  # noqa: BLE001 - the operator waits for an answer, and takes it from elsewhere
            why, reached = str(error) or type(error).__name__, not isinstance(error, ConnectionError)
        self._fetched.put(_Fetched(unit, source, came, why, reached))
        try:
            os.write(self._wake, b"\0")
        except BlockingIOError:  # it is full: they wake anyway
            pass

    def _meant(self, ranges: Any) -> List[Chunk]:
        """The chunks of ranges, each ``[first, behind the last]``, from whoever.

        Raises:
            ValueError: they are none.
        """
        found: List[Chunk] = []
        try:
            for first, end in ranges:
                found += self._chunks[first : min(end, first + MOST_CHUNKS)]
                if sum(chunk.size for chunk in found) > CHUNK or len(found) > MOST_CHUNKS:
                    break
            else:
                if found:
                    return found
        except TypeError:  # no pairs of numbers: the error below says so
            pass
        raise ValueError("no ranges of chunks: %.80r" % (ranges,))

    def _stored(self, ranges: Any) -> Tuple[List[Chunk], Any]:
        """Chunks that lie here, and what reads one by its digest; raises ValueError where one does not."""
        found, parts = self._meant(ranges), self._parts
        if parts is None or not all(parts.holds(chunk.digest) for chunk in found):
            raise ValueError("not all of them lie here")
        return found, parts.read


def _about(state: str) -> Dict[str, Any]:
    """What the operator has to know to let this host take part."""
    try:
        addresses = interfaces.addresses()
    except OSError:
        addresses = []
    return {
        "boot": procfs.boot_identity(),
        "addresses": addresses,
        "ssh_address": interfaces.ssh_address(dict(os.environ)),
        "live": any(spool.at_work() for spool in all_spools(state)),
    }
