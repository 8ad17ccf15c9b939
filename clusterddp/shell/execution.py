"""Runs one command on many hosts at once: started as each host answers, output merged, all ended together."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from dataclasses import replace
from typing import IO, TYPE_CHECKING

from clusterddp.errors import ClusterddpError, HostError, UnreachableError
from clusterddp.hosts.fanout import MAX_AT_ONCE
from clusterddp.hosts.file_limit import make_room
from clusterddp.hosts.outgoing import Outgoing
from clusterddp.logs.merge import FrameArrived, Merge, StreamBroken, StreamEnded
from clusterddp.remote.shared.processes.exit_codes import EXIT_NOT_THE_SCRIPT
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.shell.command_records import ExecInput
from clusterddp.shell.command import Command, Executed, end_frame, output_frame, read_end, unreached

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from typing_extensions import Self

    from clusterddp.hosts.fanout import HostGroup
    from clusterddp.logs.checked_frames import LogFrame
    from clusterddp.logs.merge import Event
    from clusterddp.logs.selection import Position

_READ_SIZE = 1 << 16
_STOP = to_fields(ExecInput(stop=True))
_NOT_REACHED = "was not reached before the command was ended"
MAX_COLLECTED = 16 << 20  # bytes of one host's output
CUT = f"only the first {MAX_COLLECTED >> 20} MiB of its output are kept"
_END_TIMEOUT = 10.0  # seconds beyond the grace in which a host must report that nothing is left
SETUP_TIMEOUT = 120.0  # seconds that a host's setup lines may take, before the command's own time begins
_LAST_LOOK = 1.0  # seconds to read what has arrived: more than its time may be over after this process was suspended
_NO_REPORT = "does not say whether the command has ended there"


class Execution:
    """A running command; read ``events`` to the end, then ``results``. Close it, or use it as a context manager.

    ``hosts`` are connected in one thread each. ``workdirs`` is by host; the command runs in
    their ``subfolder``. ``given`` is its input, the same for each host; None for empty input.
    """

    def __init__(
        self,
        hosts: HostGroup,
        command: Command,
        *,
        workdirs: Mapping[str, str],
        subfolder: str,
        given: IO[bytes] | None = None,
    ) -> None:
        make_room(hosts.entries)
        self.command = command
        self.results: dict[str, Executed] = {}
        self._entries = {entry.name: entry for entry in hosts.entries}
        self._connect, self._workdirs, self._subfolder = hosts.connect, workdirs, subfolder
        self._input = SharedInput(given) if given else None
        self._outgoing = {name: Outgoing() for name in self._entries}
        self._connecting = threading.Semaphore(MAX_AT_ONCE)
        self._stopping = threading.Event()
        self._begun: dict[str, float] = {}  # the hosts on which the command was started, and when (monotonic)
        self._shown = 0.0  # seconds for which who reads the events was busy with them
        self._late: dict[str, float] = {}  # the hosts whose time is over, and since when we know (monotonic)
        self._limit: float | None = None  # seconds in which a host that has begun must report the end
        if command.timeout is not None:
            setup = 0.0 if command.bare else SETUP_TIMEOUT
            self._limit = setup + command.timeout + command.grace + _END_TIMEOUT
        self._beginning = threading.Lock()  # guards _begun, and a stop against hosts that begin meanwhile
        self._merge = Merge(self._entries, self._start_on_host, retry=lambda _number, _error: None, past=False)

    @property
    def hosts(self) -> list[str]:
        """The names of the hosts, in the inventory's order."""
        return list(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading; if the command still runs, order the hosts to end it, without waiting for them."""
        if not self._stopping.is_set() and len(self.results) < len(self._entries):
            self._order_end()
        self._merge.close()
        if self._input:
            self._input.close()

    def events(self) -> Iterator[list[Event]]:
        """Yield batches of output and ends as they come; afterwards ``results`` has every host."""
        return self._events(None)

    def collected(self) -> list[Executed]:
        """Wait for the end, and return each host's result with its output, in order."""
        output = CommandOutput()
        for events in self.events():
            output.take(events)
        return output.of(self)

    def stop(self) -> Iterator[list[Event]]:
        """End the command on all hosts; yield further events until each has reported the end, or its time is over."""
        self._order_end()
        for name in self._entries:
            if name not in self._begun:
                self.results.setdefault(name, unreached(name, _NOT_REACHED))
        yield from self._events(time.monotonic() + self.command.grace + _END_TIMEOUT)
        for name in self._entries:
            self.results.setdefault(name, unreached(name, _NO_REPORT))

    def _order_end(self) -> None:
        """Start the command on no more hosts, and order all that run it to end it, each in a thread of its own."""
        with self._beginning:
            self._stopping.set()
        for name in self._begun:
            # One whose pipe is full must not delay the order to the others.
            threading.Thread(target=self._order_end_on, args=(name,), name=f"end {name}", daemon=True).start()

    def _order_end_on(self, name: str) -> None:
        with contextlib.suppress(HostError):  # the host is lost, which the thread that reads reports
            self._outgoing[name].order(**_STOP)

    def _events(self, deadline: float | None) -> Iterator[list[Event]]:
        """Yield batches until every host has a result, or until ``deadline``."""
        while len(self.results) < len(self._entries):
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return
            times_left = [max(left, _LAST_LOOK) for left in self._times_left().values()]
            waits = [remaining, self._limit, *times_left]  # of those that begin meanwhile, the limit
            events = self._merge.batch(min((wait for wait in waits if wait is not None), default=None))
            for event in events:
                if isinstance(event, StreamBroken):
                    self.results[event.host] = unreached(event.host, str(event.error))
                elif isinstance(event, StreamEnded) and event.host not in self.results:
                    self.results[event.host] = self._result(read_end(event.host, event.ended))
            self._give_up_late_hosts()
            began = time.monotonic()
            yield events
            self._shown += time.monotonic() - began
            if not events and self._merge.done:
                return

    def _give_up_late_hosts(self) -> None:
        now = time.monotonic()
        for name, left in self._times_left().items():
            if left <= 0 and now - self._late.setdefault(name, now) >= _LAST_LOOK:
                self._merge.give_up(name)
                self.results[name] = unreached(name, _NO_REPORT)

    def _times_left(self) -> dict[str, float]:
        """Return the seconds within which each host that has begun must report the end; empty without a time limit."""
        if self._limit is None:
            return {}
        until = self._limit + self._shown - time.monotonic()
        return {name: began + until for name, began in list(self._begun.items()) if name not in self.results}

    def _result(self, end: Executed) -> Executed:
        """A host's result: its end as it reports that, unless it was ended for want of the rest of its input."""
        error = self._input.error if self._input else ""
        return replace(end, code=EXIT_NOT_THE_SCRIPT, error=error) if error and end.stopped else end

    # The methods below run in one thread per host.

    def _start_on_host(self, name: str, _position: Position) -> Iterator[LogFrame]:
        """Connect a host, start the command there, and yield its output and its end."""
        entry, outgoing = self._entries[name], self._outgoing[name]
        with self._connecting:
            self._refuse_if_stopping(name)
            host = self._connect(entry)
        args = self.command.args(host, self._workdirs[name], self._subfolder)
        with self._beginning:
            self._refuse_if_stopping(name)
            self._begun[name] = time.monotonic()
        frames = host.stream("exec", args, outgoing)
        threading.Thread(target=self._send_input, args=(outgoing,), name=f"input {name}", daemon=True).start()
        offsets: dict[str, int] = {}
        with contextlib.closing(frames):
            for frame in frames:
                if frame.kind == "end":
                    yield end_frame(name, frame)
                elif frame.kind == "data":
                    yield output_frame(name, frame, offsets)

    def _refuse_if_stopping(self, name: str) -> None:
        if self._stopping.is_set():
            raise UnreachableError(name, _NOT_REACHED)

    def _send_input(self, outgoing: Outgoing) -> None:
        """Send a host the command's input; if that cannot be had whole, end the command."""
        with contextlib.suppress(ClusterddpError):  # the thread that reads reports it
            for piece in self._input.pieces() if self._input else ():
                if not outgoing.send(piece):
                    return
            if self._input and self._input.error:
                outgoing.order(**_STOP)
            else:
                outgoing.end()


class CommandOutput:
    """Collects each host's output, both streams in order of arrival, at most ``MAX_COLLECTED`` bytes per host."""

    def __init__(self) -> None:
        self._output: dict[str, bytearray] = {}
        self.cut: set[str] = set()  # the hosts that wrote more

    def take(self, events: list[Event]) -> None:
        """Add a batch of output."""
        for event in events:
            if isinstance(event, FrameArrived):
                collected = self._output.setdefault(event.host, bytearray())
                room = MAX_COLLECTED - len(collected)
                collected += event.body[:room]
                if len(event.body) > room:
                    self.cut.add(event.host)

    def of(self, execution: Execution) -> list[Executed]:
        """Each host's result with its output; its error, unless it has another, says where there was more."""
        ends = [execution.results[name] for name in execution.hosts]
        return [
            replace(
                end,
                output=bytes(self._output.get(end.host, b"")),
                error=end.error or (CUT if end.host in self.cut else ""),
            )
            for end in ends
        ]


class SharedInput:
    """One input, read once, for many readers that each start at its beginning and go at their own pace.

    A thread reads ``source``, to the end of this process: only a raw file (``io.FileIO``) may be one that never ends,
    as the lock of a buffered one, held by that thread, aborts Python's exit.
    """

    def __init__(self, source: IO[bytes]) -> None:
        self.error = ""  # why the input is not whole
        self._source = source
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed with us
        self._size, self._ended = 0, False
        self._changed = threading.Condition()  # the input has grown, or ended
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    def close(self) -> None:
        """Give readers nothing more: what they have is not whole."""
        self.error = self.error or "the input is read no further"
        self._end()
        with self._changed:
            self._file.close()

    def pieces(self) -> Iterator[bytes]:
        """Yield the input as it comes, to its end or to an ``error``."""
        offset = 0
        while piece := self._read_at(offset):
            offset += len(piece)
            yield piece

    def _read_at(self, offset: int) -> bytes:
        """Wait for input at this offset and return it; empty at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._size > offset or self._ended)
            if self._file.closed:
                return b""
            self._file.seek(offset)
            return self._file.read(_READ_SIZE)

    def _read(self) -> None:
        """Copy the source to the file, from where all readers take it."""
        read = getattr(self._source, "read1", self._source.read)  # both return what is there, without waiting for more
        try:
            while data := read(_READ_SIZE):
                if not self._keep(data):
                    return
        except (OSError, ValueError) as error:  # ValueError: the source was closed
            self.error = f"the input cannot be read: {error}"
        finally:
            self._end()

    def _keep(self, data: bytes) -> bool:
        """Append data to the file; return whether that was possible."""
        with self._changed:
            if self._file.closed:
                return False
            self._file.seek(self._size)
            try:
                while data:
                    written = self._file.write(data)
                    data, self._size = data[written:], self._size + written
            except OSError as error:
                remedy = "set TMPDIR to a folder with more room"
                self.error = f"the input cannot be kept in {tempfile.gettempdir()}: {error.strerror}; {remedy}"
            self._changed.notify_all()
        return not self.error

    def _end(self) -> None:
        """Tell the readers that nothing more comes."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
