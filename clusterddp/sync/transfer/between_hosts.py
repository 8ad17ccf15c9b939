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
from typing import TYPE_CHECKING

from clusterddp.errors import ClusterddpError, HostError, PlanError
from clusterddp.facts import network
from clusterddp.facts.host import Addresses
from clusterddp.hosts.answers import PATHS_LIMIT
from clusterddp.hosts.ask import reading_answer
from clusterddp.hosts.fanout import each
from clusterddp.hosts.outgoing import Outgoing
from clusterddp.remote.shared.schema.fields import DamagedError
from clusterddp.remote.shared.wire.frames import parse_json
from clusterddp.remote.shared.wire.transfer_frames import (
    FetchOrder,
    JoinOrder,
    JoinReply,
    TransferOrder,
    TransferReport,
    UnitFailed,
    UnitHead,
    header_of,
    read_report,
)
from clusterddp.sync.transfer.chunk_units import units_of
from clusterddp.sync.transfer.schedule import OPERATOR, Schedule, UnitTransfer
from clusterddp.sync.transfer.transfer_task import arguments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterddp.hosts.fanout import Outcome
    from clusterddp.remote.shared.wire.chunks import Chunk
    from clusterddp.sync.transfer.certificates import Authority
    from clusterddp.sync.transfer.progress_rate import Transfer
    from clusterddp.sync.transfer.transfer_task import TransferOptions, TransferTask
    from clusterddp.sync.transfer.upload import Uploads

_WATCH_INTERVAL = 0.25  # seconds between two checks for late units
_READY_TIMEOUT = 10.0  # seconds after which hosts that are not ready are no longer waited for
_PIECE = 1 << 18  # bytes written at once
_log = logging.getLogger("clusterddp")


@dataclass(kw_only=True, slots=True)
class _TransferHost:
    """One host of a transfer."""

    name: str
    job: TransferTask
    label: str  # the host's name in certificates
    outgoing: Outgoing = field(default_factory=Outgoing)
    # what its writing thread has to send: units or the order to join; None: the end
    todo: queue.SimpleQueue[UnitTransfer | JoinOrder | None] = field(default_factory=queue.SimpleQueue)
    addresses: Addresses | None = None  # its addresses, as it reported them
    live: bool = False  # a run is live there
    serving_address: tuple[str, int] | None = None  # address and port at which it passes chunks on
    listen_address: str = ""  # the address on which it was asked to listen
    warned: bool = False  # the user was told that it reaches no other host
    ended: bool = False  # nothing more is sent to it


class HostToHostTransfer:
    """One transfer to several hosts: per host one thread reads and one sends; another thread handles late units."""

    def __init__(
        self,
        jobs: Sequence[TransferTask],
        uploads: Uploads,
        transfer: Transfer,
        spread: TransferOptions,
        lacking: Mapping[str, Mapping[Chunk, None]],
    ) -> None:
        self._uploads, self._transfer, self._spread = uploads, transfer, spread
        self._units, wants = units_of(uploads.all_chunks, lacking)
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
        self._finished = threading.Event()
        self._error: Exception | None = None  # the error that ended the whole transfer

    def run(self) -> list[Outcome[None]]:
        """Run the transfer, and return each host's outcome."""
        watching = threading.Thread(target=self._watch, name="spread", daemon=True)
        watching.start()
        try:
            outcomes = each(self._members.values(), self._run_operation, at_once=len(self._members))
        finally:
            self._finished.set()
        if self._error:
            raise self._error
        return outcomes

    def _run_operation(self, member: _TransferHost) -> None:
        """Run one host's operation, from its request to its answer."""
        job = member.job
        args = arguments(job, self._uploads, spread=True)
        writing = threading.Thread(target=self._send_queue, args=(member,), name=f"spread {member.name}", daemon=True)
        writing.start()
        try:
            with contextlib.closing(job.host.stream(job.operation, args, member.outgoing, limit=PATHS_LIMIT)) as frames:
                for frame in frames:
                    if frame.kind == "end":
                        with reading_answer(member.name):
                            answer = parse_json(frame.body)
                        job.take(answer)
                        return
                    with reading_answer(member.name):
                        self._read_report(member, read_report(frame.header))
        finally:
            with self._lock:
                self._awaited.discard(member.name)
                self._schedule.remove(member.name)
                self._issue_orders()
            member.outgoing.detach()  # unblocks the writer if the operation never started
            member.todo.put(None)

    def _read_report(self, member: _TransferHost, report: TransferReport) -> None:
        """Record what a host reports: it is ready, has or did not get a unit, or listens."""
        now = time.monotonic()
        with self._lock:
            if report.here:
                member.addresses, member.live = Addresses.from_json(member.name, report.here.where), report.here.live
                self._awaited.discard(member.name)
                self._schedule.add(member.name)
                if self._authority:
                    self._ask_to_listen()
                self._spread_if_worth()
            elif report.have is not None:
                self._transfer.add(self._schedule.record_arrival(member.name, self._check_unit(report.have), now))
            elif report.failed:
                self._record_failure(member, report.failed)
            elif report.port:
                self._record_listening(member, report.port)
            self._issue_orders()

    def _check_unit(self, unit: int) -> int:
        """Return a unit's number that a host reported; ``DamagedError`` if there is no such unit."""
        if unit >= len(self._units):
            raise DamagedError(f"there is no unit {unit}")
        return unit

    def _record_failure(self, member: _TransferHost, report: UnitFailed) -> None:
        """Record that a host did not get a unit from another host."""
        source = self._labels[report.source]
        _log.debug("%s: nothing from %s: %s", member.name, source, report.why)
        self._schedule.record_failure(member.name, self._check_unit(report.unit), source, reached=report.reached)

    def _record_listening(self, member: _TransferHost, report: JoinReply) -> None:
        """Record whether a host takes part in passing on, and the port at which it listens."""
        if report.port is not None:
            member.serving_address = (member.listen_address, report.port)
        elif report.why:
            _log.debug("%s: takes part in no spreading: %s", member.name, report.why)
        self._schedule.set_roles(member.name, gives=member.serving_address is not None, takes=not report.why)

    def _watch(self) -> None:
        """Until the transfer ends, handle late units, and let hosts pass chunks on once that would save time."""
        try:
            while not self._finished.wait(_WATCH_INTERVAL):
                with self._lock:
                    self._schedule.replace_late(time.monotonic())
                    self._spread_if_worth()
                    self._issue_orders()
        except Exception as bug:  # noqa: BLE001 - raised by run(); without it the hosts would wait for ever
            self._abort(bug)

    @property
    def _all_ready(self) -> bool:
        """Whether every host is ready, lost, or no longer waited for (another sync may hold its folder's lock)."""
        return not self._awaited or time.monotonic() - self._began > _READY_TIMEOUT

    def _spread_if_worth(self) -> None:
        """Let hosts pass chunks on, if the mode or the measured rate asks for it."""
        if self._authority or not self._all_ready:
            return
        if self._spread.mode == "on" or self._schedule.is_spreading_worth(time.monotonic()):
            from clusterddp.sync.transfer.certificates import Authority  # noqa: PLC0415 - only where hosts pass chunks on

            self._authority = Authority()
            self._schedule.spreading = True
            self._ask_to_listen()

    def _ask_to_listen(self) -> None:
        """Ask the hosts that are ready to listen at their addresses between the hosts."""
        ready = [member for member in self._members.values() if member.addresses]
        nodes = [(member.job.host.entry, member.addresses) for member in ready if member.addresses]
        try:
            addresses = network.loopback(nodes)
            if addresses is None:
                addresses = dict(network.best_candidate(network.candidates(nodes), ())[0].where)
        except PlanError as error:
            _log.debug("hosts cannot pass on: %s", error)
            for member in ready:
                if not member.listen_address:
                    self._schedule.set_roles(member.name, gives=False, takes=False)
            return
        for member in ready:
            address = addresses[member.name].address
            if not member.listen_address and self._authority:
                member.listen_address = address
                gives = not member.live or self._spread.mode == "on"
                order = JoinOrder(
                    name=member.label,
                    identity=self._authority.identity(member.label),
                    address=address,
                    ports=tuple(member.job.host.entry.ports) if gives else (),
                    rate=self._spread.rate,
                )
                member.todo.put(order)

    def _issue_orders(self) -> None:
        """Queue the schedule's next orders, and end the operations of hosts that nobody needs any more."""
        for order in self._schedule.orders(time.monotonic()):
            self._members[order.host].todo.put(order)
        for member in self._members.values():
            if not member.warned and self._schedule.cannot_reach_others(member.name):
                member.warned = True
                self._spread.notify(
                    f"{member.name}: reaches no other host from {member.listen_address}: it gets all from here"
                )
            if not member.ended and self._schedule.is_free(member.name, all_ready=self._all_ready):
                member.ended = True
                member.todo.put(None)

    def _send_queue(self, member: _TransferHost) -> None:
        """Send one host everything in its queue, in order; runs in a thread of its own."""
        compress = member.job.host.entry.connection != "local"
        try:
            for piece, _ in self._uploads.pieces((), compress=compress, part=member.job.manifest_part):
                member.outgoing.send(piece)
            while (item := member.todo.get()) is not None:
                if isinstance(item, JoinOrder):
                    member.outgoing.order(**header_of(TransferOrder(join=item)))
                elif item.source is OPERATOR:
                    self._send_unit(member, item.unit, compress=compress)
                else:
                    self._send_fetch_order(member, item.unit, item.source)
            member.outgoing.end()
        except HostError:  # the thread that reads the host's answers reports it
            pass
        except Exception as bug:  # noqa: BLE001 - the same
            self._abort(bug)

    def _abort(self, error: Exception) -> None:
        """End the transfer: a file cannot be read, which concerns every host, or a thread failed by a bug."""
        self._error = error
        for member in self._members.values():
            member.outgoing.leave()

    def _send_unit(self, member: _TransferHost, number: int, *, compress: bool) -> None:
        """Send a unit's chunks to a host."""
        unit = self._units[number]
        try:
            body = self._uploads.bundle(unit.chunks, compress=compress)
        except ClusterddpError as error:
            self._abort(error)
            return
        member.outgoing.order(**header_of(TransferOrder(head=UnitHead(number, len(body)))))
        for start in range(0, len(body), _PIECE):
            for piece in self._transfer.counted([(body[start : start + _PIECE], 0)]):
                member.outgoing.send(piece)
                with self._lock:
                    self._schedule.count_sent(len(piece) * unit.size // len(body))

    def _send_fetch_order(self, member: _TransferHost, unit: int, source: str) -> None:
        """Order a host to fetch a unit from another host."""
        source_host = self._members[source]
        if source_host.serving_address:
            ranges = [list(pair) for pair in self._units[unit].ranges]
            address, port = source_host.serving_address
            get = FetchOrder(unit=unit, ranges=ranges, name=source_host.label, address=address, port=port)
            member.outgoing.order(**header_of(TransferOrder(get=get)))
