"""Transfers in which hosts pass chunks on to each other, so that each is sent from here only once.

It begins like any transfer, with different chunks for each host. As soon as measurement shows that sending the rest
from here alone would take longer, the hosts listen, each on its address between the hosts, and fetch from each other
what the schedule says. Each host's operation stays open until all have everything.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from clusterddp.errors import ClusterddpError, HostError, PlanError
from clusterddp.facts import network
from clusterddp.facts.host import Addresses
from clusterddp.hosts.answers import PATHS
from clusterddp.hosts.fanout import each, reading_answer
from clusterddp.hosts.outgoing import Outgoing
from clusterddp.remote.shared.schema.fields import DamagedError
from clusterddp.remote.shared.schema.record import written
from clusterddp.remote.shared.wire.frames import parse_json
from clusterddp.remote.shared.wire.transfer_frames import (
    FetchOrder,
    JoinOrder,
    Listening,
    TransferOrder,
    TransferReport,
    UnitFailed,
    UnitHead,
    header_of,
    read_report,
)
from clusterddp.sync.transfer.chunk_units import units_of
from clusterddp.sync.transfer.schedule import OPERATOR, Schedule, UnitTransfer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.remote.shared.user_files.push_records import PushRequest
    from clusterddp.remote.shared.wire.chunks import Chunk
    from clusterddp.remote.shared.workdir.sync_records import SyncRequest
    from clusterddp.sync.transfer.certificates import Authority
    from clusterddp.sync.transfer.progress_rate import Transfer
    from clusterddp.sync.transfer.upload import Uploads

_TICK = 0.25  # seconds between two checks for late units
_ALL_READY = 10.0  # seconds after which hosts that are not ready are no longer waited for
_STEP = 1 << 18
_log = logging.getLogger("clusterddp")


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferOptions:
    """Whether hosts pass chunks on, and how fast."""

    # ``auto``: if it saves time; ``on``: always, and hosts with a live run pass on too; ``off``: never
    mode: str = "auto"
    rate: int | None = None  # the most bytes per second that each host sends; None: no limit
    notify: Callable[[str], None] = lambda _line: None  # called with a line for the user


AUTO = TransferOptions()


class TransferTask(Protocol):
    """One host's part of a transfer."""

    name: str
    host: Host
    operation: str
    manifest_part: bytes | None  # the part of the manifest that is sent; None: all

    @property
    def order(self) -> SyncRequest | PushRequest:
        """The operation's arguments, but for what is sent."""

    def lacking(self, uploads: Uploads) -> Sequence[Chunk]:
        """The chunks that the host has nowhere."""

    def take(self, answer: Any) -> None:
        """Read the operation's result; ``HelperError`` if it is damaged."""


def arguments(job: TransferTask, uploads: Uploads, *, spread: bool) -> dict[str, Any]:
    """The operation's arguments with what is sent; with ``spread`` chunks come from other hosts too."""
    sizes = uploads.sizes(job.manifest_part)
    return written(job.order._replace(manifest=sizes.manifest, chunk_lists=sizes.chunk_lists, spread=spread))


@dataclass(kw_only=True, slots=True)
class _TransferHost:
    """One host of a transfer."""

    name: str
    job: TransferTask
    label: str  # the host's name in certificates
    outgoing: Outgoing = field(default_factory=Outgoing)
    # what its writing thread has to send: units or the order to join; None: the end
    todo: queue.SimpleQueue[UnitTransfer | JoinOrder | None] = field(default_factory=queue.SimpleQueue)
    where: Addresses | None = None  # its addresses, as it reported them
    live: bool = False  # a run is live there
    serving_address: tuple[str, int] | None = None  # address and port at which it passes chunks on
    asked: str = ""  # the address on which it was asked to listen
    warned: bool = False
    ended: bool = False


class PassedOn:
    """One transfer to several hosts: per host one thread reads and one writes; another thread handles late units."""

    def __init__(
        self,
        jobs: Sequence[TransferTask],
        uploads: Uploads,
        transfer: Transfer,
        spread: TransferOptions,
        lacking: Mapping[str, Mapping[Chunk, None]],
    ) -> None:
        self._uploads, self._transfer, self._spread = uploads, transfer, spread
        self._units, wants = units_of(uploads.every, lacking)
        self._schedule = Schedule(self._units, wants)
        self._schedule.spreading = spread.mode == "on"
        self._members = {
            job.name: _TransferHost(name=job.name, job=job, label=f"h{number}") for number, job in enumerate(jobs)
        }
        self._labels = {member.label: member.name for member in self._members.values()}
        self._awaited = set(self._members)  # hosts neither ready nor lost
        self._began = time.monotonic()
        self._authority: Authority | None = None
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._error: Exception | None = None  # the error that ended the whole transfer

    def run(self) -> list[Outcome[None]]:
        """Run the transfer, and return each host's outcome."""
        looking = threading.Thread(target=self._look, name="spread", daemon=True)
        looking.start()
        try:
            outcomes = each(self._members.values(), self._follow, at_once=len(self._members))
        finally:
            self._over.set()
        if self._error:
            raise self._error
        return outcomes

    def _follow(self, member: _TransferHost) -> None:
        """Run one host's operation, from its request to its answer."""
        job = member.job
        args = arguments(job, self._uploads, spread=True)
        writing = threading.Thread(target=self._write, args=(member,), name=f"spread {member.name}", daemon=True)
        writing.start()
        try:
            with contextlib.closing(job.host.stream(job.operation, args, member.outgoing, limit=PATHS)) as frames:
                for frame in frames:
                    if frame.kind == "end":
                        with reading_answer(member.name):
                            answer = parse_json(frame.body)
                        job.take(answer)
                        return
                    with reading_answer(member.name):
                        self._hear(member, read_report(frame.header))
        finally:
            with self._lock:
                self._awaited.discard(member.name)
                self._schedule.leave(member.name)
                self._go_on()
            member.outgoing.detach()  # unblocks the writer if the operation never started
            member.todo.put(None)

    def _hear(self, member: _TransferHost, report: TransferReport) -> None:
        now = time.monotonic()
        with self._lock:
            if report.here:
                member.where, member.live = Addresses.from_json(member.name, report.here.where), report.here.live
                self._awaited.discard(member.name)
                self._schedule.come(member.name)
                if self._authority:
                    self._join()
                self._begin()
            elif report.have is not None:
                self._transfer.add(self._schedule.arrived(member.name, self._known(report.have), now))
            elif report.failed:
                self._failed(member, report.failed)
            elif report.port:
                self._listens(member, report.port)
            self._go_on()

    def _known(self, unit: int) -> int:
        """The number of a unit, as a host reported it; ``DamagedError`` if there is none of that number."""
        if unit >= len(self._units):
            raise DamagedError(f"there is no unit {unit}")
        return unit

    def _failed(self, member: _TransferHost, report: UnitFailed) -> None:
        source = self._labels[report.source]
        _log.debug("%s: nothing from %s: %s", member.name, source, report.why)
        self._schedule.failed(member.name, self._known(report.unit), source, reached=report.reached)

    def _listens(self, member: _TransferHost, report: Listening) -> None:
        if report.port is not None:
            member.serving_address = (member.asked, report.port)
        elif report.why:
            _log.debug("%s: takes part in no spreading: %s", member.name, report.why)
        self._schedule.joined(member.name, gives=member.serving_address is not None, takes=not report.why)

    def _look(self) -> None:
        """Handle late units, and decide whether passing on would save time."""
        try:
            while not self._over.wait(_TICK):
                with self._lock:
                    self._schedule.look(time.monotonic())
                    self._begin()
                    self._go_on()
        except Exception as bug:  # noqa: BLE001 - raised by run(); without it the hosts would wait for ever
            self._give_up(bug)

    @property
    def _all_there(self) -> bool:
        """Whether every host is ready, lost, or no longer waited for (another sync may hold its folder's lock)."""
        return not self._awaited or time.monotonic() - self._began > _ALL_READY

    def _begin(self) -> None:
        """Let hosts pass chunks on, if that is wanted by now."""
        if self._authority or not self._all_there:
            return
        if self._spread.mode == "on" or self._schedule.worth(time.monotonic()):
            from clusterddp.sync.transfer.certificates import Authority  # noqa: PLC0415 - only where hosts pass chunks on

            self._authority = Authority()
            self._schedule.spreading = True
            self._join()

    def _join(self) -> None:
        """Ask the hosts that are ready to listen at their addresses between the hosts."""
        ready = [member for member in self._members.values() if member.where]
        nodes = [(member.job.host.entry, member.where) for member in ready if member.where]
        try:
            where = network.loopback(nodes)
            if where is None:
                where = dict(network.best_candidate(network.candidates(nodes), ())[0].where)
        except PlanError as error:
            _log.debug("hosts cannot pass on: %s", error)
            for member in ready:
                if not member.asked:
                    self._schedule.joined(member.name, gives=False, takes=False)
            return
        for member in ready:
            address = where[member.name].address
            if not member.asked and self._authority:
                member.asked = address
                gives = not member.live or self._spread.mode == "on"
                own = JoinOrder(
                    name=member.label,
                    identity=self._authority.identity(member.label),
                    address=address,
                    ports=tuple(member.job.host.entry.ports) if gives else (),
                    rate=self._spread.rate,
                )
                member.todo.put(own)

    def _go_on(self) -> None:
        """Issue the schedule's next orders, and end the operations of hosts that nobody needs any more."""
        for order in self._schedule.orders(time.monotonic()):
            self._members[order.host].todo.put(order)
        for member in self._members.values():
            if not member.warned and self._schedule.unreached(member.name):
                member.warned = True
                self._spread.notify(f"{member.name}: reaches no other host from {member.asked}: it gets all from here")
            if not member.ended and self._schedule.free(member.name, all_there=self._all_there):
                member.ended = True
                member.todo.put(None)

    def _write(self, member: _TransferHost) -> None:
        """Send one host everything in its queue, in order; runs in a thread of its own."""
        compress = member.job.host.entry.connection != "local"
        try:
            for piece, _ in self._uploads.pieces((), compress=compress, part=member.job.manifest_part):
                member.outgoing.send(piece)
            while (todo := member.todo.get()) is not None:
                if isinstance(todo, JoinOrder):
                    member.outgoing.order(**header_of(TransferOrder(join=todo)))
                elif todo.source is OPERATOR:
                    self._send_unit(member, todo.unit, compress=compress)
                else:
                    self._send_order(member, todo.unit, todo.source)
            member.outgoing.end()
        except HostError:  # the thread that reads the host's answers reports it
            pass
        except Exception as bug:  # noqa: BLE001 - the same
            self._give_up(bug)

    def _give_up(self, error: Exception) -> None:
        """End the transfer: a file cannot be read, which concerns every host, or a thread failed by a bug."""
        self._error = error
        for member in self._members.values():
            member.outgoing.leave()

    def _send_unit(self, member: _TransferHost, number: int, *, compress: bool) -> None:
        unit = self._units[number]
        try:
            body = self._uploads.bundle(unit.chunks, compress=compress)
        except ClusterddpError as error:
            self._give_up(error)
            return
        member.outgoing.order(**header_of(TransferOrder(head=UnitHead(number, len(body)))))
        for start in range(0, len(body), _STEP):
            for piece in self._transfer.counted([(body[start : start + _STEP], 0)]):
                member.outgoing.send(piece)
                with self._lock:
                    self._schedule.moved(len(piece) * unit.size // len(body))

    def _send_order(self, member: _TransferHost, unit: int, source: str) -> None:
        giver = self._members[source]
        if giver.serving_address:
            ranges = [list(one) for one in self._units[unit].ranges]
            address, port = giver.serving_address
            get = FetchOrder(unit=unit, ranges=ranges, name=giver.label, address=address, port=port)
            member.outgoing.order(**header_of(TransferOrder(get=get)))
