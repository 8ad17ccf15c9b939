"""A worker's debugger: at ``breakpoint()`` it waits for ``clusterddp debug``, and runs pdb over that connection.

The start-up hook beside this file loads it at the first breakpoint. Whatever goes wrong here, and whenever the operator
leaves or is lost, the script goes on: pdb's own answer to that, BdbQuit, would fail the run.

Python 3.14 lets an operator in elsewhere, too: ``break_in.py`` beside this file then calls ``stop_on_request``.

Each stop listens on a Unix socket ``debug/<start>.<local_rank>.<pid>.<number>`` of the spool, beside a record of where
it is (``.json``). Both ends send lines of JSON:

    operator → worker   {"attach": true} first; {"line": "p x"}; {"interrupt": true}; the end of the stream: detach
    worker → operator   {"out": "text"}; {"ask": "(Pdb) "}: it waits for a line; {"running": true}: the script runs

Like the hook it is a separate file, run by any Python from 3.8, and imports nothing of ours.
"""  # noqa: INP001 - a data file, loaded by its path

import bdb
import json
import os
import pdb  # noqa: T100 - to debug is what it is for
import queue
import select
import signal
import socket
import sys
import threading
import time

try:
    import ctypes
except ImportError:  # a Python without it
    ctypes = None  # type: ignore[assignment]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

LONGEST_WAIT = 600.0  # seconds that a stop waits for somebody
REQUESTED_WAIT = 10.0  # seconds that a stop waits for the operator who has asked for it
MARGIN = 60.0  # seconds before the other ranks' collectives time out
HELLO_TIMEOUT = 5.0  # seconds that who connects has to say so
MAX_LINE = 64 * 1024  # bytes of one line from the operator
MAX_AHEAD = 1000  # lines that may come before they are asked for
MAX_OUT = 16 * 1024  # characters in one message to the operator
REQUEST = ".wanted"  # after a worker's name: the file by which an operator asks it to stop (processes/break_in.py)
REQUESTED = "clusterddp debug"  # the cause of such a stop
OWN = {__name__, "sitecustomize"}  # modules that the operator does not step into


class Connection:
    """One operator's connection: the stdin and stdout of pdb. It raises nothing: one that is lost has ended."""

    encoding = "utf-8"

    def __init__(self, stream: socket.socket, received: bytes = b"") -> None:
        self.gone = False
        self.asking = False  # the operator is to type a line, and has sent none yet
        self.sending = False
        self.interrupted = False  # while it was sending
        self._stream, self._received = stream, received
        self._written = ""  # and not sent yet
        self._lines: "queue.Queue[str]" = queue.Queue(MAX_AHEAD)
        self._pid = os.getpid()

    def begin(self, debugger: "RankDebugger") -> None:
        """Receive in a thread of its own from now on, so that an interrupt and a detach are noticed at any time."""
        threading.Thread(target=self._receive, args=(debugger,), name="clusterddp debug", daemon=True).start()

    def _receive(self, debugger: "RankDebugger") -> None:
        try:
            for line in self._received_lines():
                message = read_message(line)
                if isinstance(message.get("line"), str):
                    self.asking = False
                    self._lines.put_nowait(message["line"].replace("\n", " "))
                elif message.get("interrupt") is True:
                    debugger.ask_to_stop()
        except (OSError, queue.Full):
            pass  # the connection is lost, or its terminal sends faster than pdb reads: both are a detach
        debugger.detached()

    def _received_lines(self) -> "Iterator[bytes]":
        received = self._received
        while True:
            *lines, received = received.split(b"\n")
            for line in lines:
                yield line
            data = self._stream.recv(1 << 16) if len(received) <= MAX_LINE else b""
            if not data:
                return
            received += data

    def end(self) -> None:
        """Take the connection for ended: who waits for a line goes on."""
        self.gone = True
        try:
            self._lines.put_nowait("")
        except queue.Full:
            pass  # who waits has a line to read, and then sees ``gone``
        self.close()

    def close(self) -> None:
        """Close it; in a forked child this leaves the worker's own open."""
        try:
            if self._pid == os.getpid():
                self._stream.shutdown(socket.SHUT_RDWR)  # wakes the thread that receives
        except OSError:
            pass  # the other side has closed it already
        self._stream.close()

    def write(self, text: str) -> int:
        """Write for pdb; it is sent with ``flush``, or when a line is asked for."""
        self._written += text
        if len(self._written) > MAX_OUT:
            self._send_written()
        return len(text)

    def flush(self) -> None:
        """Send the complete lines that were written; what follows them may be the prompt."""
        before, newline, prompt = self._written.rpartition("\n")
        self._written = before + newline
        self._send_written()
        self._written = prompt

    def _send_written(self) -> None:
        while self._written and not self.gone:
            text, self._written = self._written[:MAX_OUT], self._written[MAX_OUT:]
            self._send({"out": text})
        self._written = ""

    def tell_running(self) -> None:
        """Send what was written, and that the script runs on."""
        self._send_written()
        if not self.gone:
            self._send({"running": True})

    def isatty(self) -> bool:
        """Whether it is a terminal: pdb must not take it for one."""
        return False

    def readline(self) -> str:
        """Ask the operator for a line; the end of the last line that was written is the prompt. Empty at the end."""
        self.asking = True  # from now on an interrupt is of no use
        try:
            self.flush()
            prompt, self._written = self._written, ""
            self._send({"ask": prompt})
            line = "" if self.gone else self._lines.get()
        finally:
            self.asking = False
        return "" if self.gone else line + "\n"

    def _send(self, message: "Dict[str, Any]") -> None:
        """Send a message whole: an interrupt that comes meanwhile is delivered after it."""
        self.sending = True
        try:
            self._stream.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.gone = True
        self.sending = False
        if self.interrupted:
            self.interrupted = False
            signal.raise_signal(signal.SIGINT)


def read_message(line: bytes) -> "Dict[str, Any]":
    """One message of the operator's; empty if the line is none."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


class RankDebugger(pdb.Pdb):
    """Pdb of one attached operator. It never ends the script: who quits or is lost has detached."""

    def __init__(self, connection: Connection, listener: "Listener") -> None:
        stream: "Any" = connection
        super().__init__(stdin=stream, stdout=stream, nosigint=True)
        self.connection, self._listener = connection, listener
        self.thread = threading.current_thread()
        self._prompting = False  # pdb reads or carries out commands
        self._in_command = False
        self._given_up = False  # the next command is
        self._interrupted = False  # the operator pressed Ctrl-C
        self._former: "Any" = None  # the handler of SIGINT
        if self.thread is threading.main_thread():
            self._former = signal.signal(signal.SIGINT, self._on_interrupt)
        connection.begin(self)

    def break_in(self, frame: "FrameType") -> None:
        """Stop in this frame at once, on every version of Python; then trace as the operator's commands say."""
        if self._prompting:
            self.message("a breakpoint() in what was typed is passed over")
            return
        sys.settrace(None)  # else it would trace itself
        bdb.Bdb.set_trace(self, frame)
        sys.settrace(None)
        # Python 3.14 traces each instruction of it now, and `n` would stop here again.
        self.enterframe: "Optional[FrameType]" = frame
        self.set_step()
        self.enterframe = None
        self.interaction(frame, None)
        keep_changes(frame)
        if self.stoplineno != -1 or self.breaks:
            sys.settrace(self.trace_dispatch)

    def examine(self, trace: "Optional[TracebackType]") -> None:
        """Let the operator look at a traceback, innermost frame first, until he leaves it."""
        self.reset()
        self.interaction(None, trace)

    def interaction(self, *args: "Any", **kwargs: "Any") -> None:
        """Read and carry out commands, unless nobody is there any more."""
        if self.connection.gone:
            self.leave()
            return
        self._prompting = True
        try:
            super().interaction(*args, **kwargs)
        finally:
            self._prompting = False
            self.connection.tell_running()

    def onecmd(self, line: str) -> bool:
        """Carry out a command, which the operator may give up."""
        if self._given_up:
            self._given_up = False
            self.message("--KeyboardInterrupt--")
            return False
        self._in_command = True
        try:
            return super().onecmd(line)
        finally:
            self._in_command = False

    def trace_dispatch(self, frame: "FrameType", event: str, arg: "Any") -> "Any":
        """Trace as pdb does, but not our own code, and no longer once nobody is there."""
        if self.connection.gone:
            self.leave()
            return None
        if frame.f_globals.get("__name__") in OWN:
            return None
        return super().trace_dispatch(frame, event, arg)

    def leave(self) -> None:
        """Stop tracing, so that the script runs as if there were no debugger."""
        self.clear_all_breaks()
        self.set_continue()
        self.restore_interrupts()

    def restore_interrupts(self) -> None:
        """Leave SIGINT to the script again, unless that has taken it back."""
        if self._former is not None and self.thread is threading.current_thread():
            if signal.getsignal(signal.SIGINT) == self._on_interrupt:
                signal.signal(signal.SIGINT, self._former)
            self._former = None

    def detached(self) -> None:
        """Note that nobody is there any more; called by the thread that receives."""
        self._listener.close()
        self.connection.end()

    def do_EOF(self, arg: str) -> "Optional[bool]":  # noqa: ARG002, N802 - as pdb has it
        """Ctrl-D, quit and exit detach: the script goes on."""
        self.detached()
        self.leave()
        return True

    do_q = do_quit = do_exit = do_EOF

    def do_run(self, arg: str) -> "Optional[bool]":  # noqa: ARG002
        """Run and restart cannot be: torchrun started this worker."""
        self.message("a worker cannot be started again from here: end the run with `clusterddp stop`")
        return None

    do_restart = do_run

    def do_interact(self, _arg: str) -> None:
        """Interact needs a terminal of its own."""
        self.message("interact is not there: write statements at this prompt, those that look like commands after !")

    def ask_to_stop(self) -> None:
        """Stop the script where it is; called by the thread that receives."""
        main = threading.main_thread().ident
        # No other thread can be interrupted, and a handler that the script has set since then might end it.
        ours = signal.getsignal(signal.SIGINT) == self._on_interrupt
        if self._former is not None and main is not None and ours:
            self._interrupted = True
            signal.pthread_kill(main, signal.SIGINT)  # also ends a wait of C code, if that looks for signals

    def _on_interrupt(self, number: int, frame: "Optional[FrameType]") -> None:
        if not self._interrupted:  # it came from somebody else
            self._pass_on(number, frame)
            return
        if self.connection.sending:
            self.connection.interrupted = True
            return
        self._interrupted = False
        if self.connection.asking or self.connection.gone:
            return
        if self._in_command:
            raise KeyboardInterrupt
        if self._prompting:
            self._given_up = True
            return
        frame = users_frame(frame)
        if frame is not None:
            self.message("\ninterrupted")
            self.break_in(frame)

    def _pass_on(self, number: int, frame: "Optional[FrameType]") -> None:
        if callable(self._former):
            self._former(number, frame)
        elif self._former is signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def keep_changes(frame: "FrameType") -> None:
    """Put what the operator has assigned into a frame's variables: before 3.13 only a trace function's end does so."""
    if ctypes is not None and sys.version_info < (3, 13):
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), 0)


def users_frame(frame: "Optional[FrameType]") -> "Optional[FrameType]":
    """The innermost frame of the script: that which called us, where our own code is at work."""
    found = frame
    while frame is not None:
        if frame.f_globals.get("__name__") in OWN:
            found = frame.f_back
        frame = frame.f_back
    return found


class Listener:
    """The socket at which one stop waits for an operator, and the record of where it is."""

    def __init__(self, folder: str, name: str, record: "Dict[str, Any]") -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        self._folder, self._name, self._pid = os.open(folder, flags), name, os.getpid()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(self._socket.fileno(), 0o600)  # bind gives the file this mode
            # A socket's address has at most 107 bytes, and a spool's path may be longer.
            self._socket.bind("/proc/self/fd/%d/%s" % (self._folder, name))
            self._socket.listen(8)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(name + ".new", flags, 0o600, dir_fd=self._folder), "w") as file:
                json.dump(record, file)
            os.rename(name + ".new", name + ".json", src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except BaseException:
            self.close()
            raise

    def accept(self, seconds: float) -> "Optional[Connection]":
        """Wait so long for an operator; None if none came. Who connects and says nothing sensible is sent away."""
        deadline = time.monotonic() + seconds
        arrivals = select.poll()  # select() raises where a worker has 1,024 files open
        arrivals.register(self._socket, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            if left < 0 or not arrivals.poll(left * 1000):
                return None
            stream, _ = self._socket.accept()
            try:
                hello, newline, more = _read_hello(stream)
            except OSError:
                hello = newline = more = b""
            if newline and read_message(hello).get("attach") is True:
                stream.settimeout(None)
                return Connection(stream, more)
            stream.close()

    @property
    def is_open(self) -> bool:
        """Whether it waits for an operator, or has one."""
        return self._folder >= 0

    def close(self) -> None:
        """Stop listening, and remove socket and record; again, or in a forked child, this does no harm."""
        if self._folder < 0:
            return
        folder, self._folder = self._folder, -1
        self._socket.close()
        for name in (self._name, self._name + ".json") if self._pid == os.getpid() else ():
            try:
                os.unlink(name, dir_fd=folder)
            except OSError:
                pass  # the spool has ended
        os.close(folder)


def _read_hello(stream: socket.socket) -> "Tuple[bytes, bytes, bytes]":
    deadline = time.monotonic() + HELLO_TIMEOUT
    received = b""
    while b"\n" not in received and len(received) <= MAX_LINE:
        stream.settimeout(max(0.01, deadline - time.monotonic()))
        data = stream.recv(4096)
        if not data:
            break
        received += data
    return received.partition(b"\n")


class Stops:
    """All stops of one worker, one at a time."""

    def __init__(self, spool: str, worker: str) -> None:
        self.spool, self.worker = spool, worker
        self._lock = threading.RLock()  # a signal's handler may stop while the script waits at a stop
        self._number = 0
        self._unattended: "Set[Tuple[str, int]]" = set()  # where nobody came, so that it stops no more
        self._debugger: "Optional[RankDebugger]" = None
        self._listener: "Optional[Listener]" = None
        os.register_at_fork(after_in_child=self._in_child)

    def stop_at(self, frame: "FrameType") -> None:
        """Stop in the frame of the script that called ``breakpoint()``; wait for an operator if none is there."""
        debugger = self._debugger
        if debugger is not None and not debugger.connection.gone and debugger.thread is threading.current_thread():
            debugger.break_in(frame)
            return
        debugger = self._attended(frame, frame.f_lineno, "breakpoint()")
        if debugger is not None:
            debugger.break_in(frame)

    def stop_on_request(self, frame: "FrameType") -> None:
        """Stop in this frame, unless the operator who has asked for it has given up, or somebody has a stop already."""
        try:
            os.unlink(os.path.join(self.spool, "debug", self.worker + REQUEST))
        except OSError:
            return
        found = users_frame(frame)
        if found is None or (self._listener is not None and self._listener.is_open):
            return
        debugger = self._attended(found, found.f_lineno, REQUESTED)
        if debugger is not None:
            debugger.break_in(found)

    def stop_after(self, kind: str, trace: "TracebackType") -> None:
        """Let an operator look at the traceback of an uncaught exception, before the worker ends."""
        innermost = trace
        while innermost.tb_next is not None:
            innermost = innermost.tb_next
        debugger = self._attended(innermost.tb_frame, innermost.tb_lineno, kind)
        if debugger is not None:
            debugger.examine(trace)
            debugger.detached()

    def _attended(self, frame: "FrameType", line: int, cause: str) -> "Optional[RankDebugger]":
        """Wait for an operator; None if none came, or none can."""
        code = frame.f_code
        place = os.path.abspath(code.co_filename), line
        with self._lock:
            if place in self._unattended and cause != REQUESTED:
                return None
            if self._debugger is not None:
                self._debugger.restore_interrupts()
            seconds, limit = (REQUESTED_WAIT, "") if cause == REQUESTED else time_to_wait(self.spool)
            record = {"cause": cause, "file": place[0], "line": line, "function": code.co_name}
            try:
                listener = self._listen(dict(record, until=time.clock_gettime(time.CLOCK_BOOTTIME) + seconds))
            except OSError as error:
                say("%s at %s:%d is passed over: no socket in the run's folder: %s" % (cause, *_short(place), error))
                return None
            connection = None
            try:
                self._say_waits(cause, place, code.co_name, seconds, limit)
                connection = listener.accept(seconds)
                self._debugger = RankDebugger(connection, listener) if connection is not None else None
            finally:
                if connection is None or self._debugger is None:
                    listener.close()
            if connection is not None:
                return self._debugger
            if cause == REQUESTED:
                say("who asked did not come to %s:%d: it goes on" % _short(place))
                return None
            self._unattended.add(place)
            say("nobody came to %s:%d: it goes on, and does not stop there again" % _short(place))
            return None

    def _listen(self, record: "Dict[str, Any]") -> Listener:
        self._number += 1
        name = "%s.%d.%d" % (self.worker, os.getpid(), self._number)
        self._listener = Listener(os.path.join(self.spool, "debug"), name, record)
        return self._listener

    def _say_waits(self, cause: str, place: "Tuple[str, int]", function: str, seconds: float, limit: str) -> None:
        rank = os.environ.get("RANK", "?")
        name, line = _short(place)
        if cause == REQUESTED:
            say("rank %s is stopped by %s at %s:%d in %s" % (rank, REQUESTED, name, line, function))
            return
        attaches = "`clusterddp debug %s` attaches a terminal" % rank
        line_of = "%s, %s:%d in %s" % (cause, name, line, function)
        goes_on = "it goes on by itself after %s (%s)" % (in_words(seconds), limit)
        say("rank %s waits at %s: %s; %s" % (rank, line_of, attaches, goes_on))

    def _in_child(self) -> None:
        """A forked child has no operator, and stops by itself."""
        self._lock = threading.RLock()
        debugger, self._debugger = self._debugger, None
        if debugger is not None:
            debugger.connection.gone = True
            debugger.connection.close()
            sys.settrace(None)
        if self._listener is not None:
            self._listener.close()
            self._listener = None


def _short(place: "Tuple[str, int]") -> "Tuple[str, int]":
    return os.path.basename(place[0]), place[1]


def say(text: str) -> None:
    """Print a line of ours in the worker's output."""
    try:
        sys.stderr.write("clusterddp: %s\n" % text.replace("\n", "\\n"))
        sys.stderr.flush()
    except Exception:  # noqa: BLE001 - whatever the script made of stderr
        pass


def in_words(seconds: float) -> str:
    """A duration in a unit that suits it."""
    return "%d min" % (seconds // 60) if seconds >= 120 else "%d s" % seconds


def time_to_wait(spool: str) -> "Tuple[float, str]":
    """How many seconds a stop waits for an operator, and what limits that."""
    given = settings(spool).get("breakpoint_timeout")
    if isinstance(given, (int, float)):
        return float(given), "as it was told"
    try:
        left = min(times_left(), default=None)
    except Exception:  # noqa: BLE001 - torch's own attributes, which another version may not have
        left = None
    if left is None or left[0] - MARGIN >= LONGEST_WAIT:
        return LONGEST_WAIT, "`run --breakpoint-timeout 1h` changes that"
    why = "process group %s times out in %s" % (left[1], in_words(max(0.0, left[0])))
    return max(0.0, left[0] - MARGIN), why + "; `run --breakpoint-timeout 1h` changes that"


def settings(spool: str) -> "Dict[str, Any]":
    """The run's settings, from the node's plan; empty where there are none."""
    try:
        with open(os.path.join(spool, "plan.json"), "rb") as stream:
            found = json.load(stream)["settings"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def times_left() -> "List[Tuple[float, str]]":
    """How long the other ranks still wait for this one, at least, in each process group: (seconds, its name).

    They may have begun to wait right after the last operation that this rank took part in, not before.
    """
    groups = getattr(getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None), "pg_map", None)
    ages = _ages() if groups else {}
    found = []
    for group in list(groups or ()):
        timeouts = [_timeout(group, device) for device in getattr(group, "_device_types", ())]
        name = str(getattr(group, "group_name", ""))
        shown = str(getattr(group, "group_desc", "")) or name
        left = [timeout - ages.get(name, 0.0) for timeout in timeouts if timeout is not None]
        found += [(seconds, {"default_pg": "default"}.get(shown, shown)) for seconds in left]
    return found


def _timeout(group: "Any", device: "Any") -> "Optional[float]":
    try:
        return float(group._get_backend(device).options._timeout.total_seconds())  # noqa: SLF001 - there is no other way
    except (AttributeError, RuntimeError):
        return None


def _ages() -> "Dict[str, float]":
    """Seconds since this rank began its last operation in each process group, as far as torch tells."""
    module = sys.modules.get("torch._C._distributed_c10d")
    last: "Dict[str, int]" = {}
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):  # NCCL has a recorder of its own
        try:
            entries = json.loads(getattr(module, name)(includeCollectives=True, onlyActive=False))["entries"]
            for entry in entries:
                group = str(entry["process_group"][0])
                last[group] = max(entry["time_created_ns"], last.get(group, 0))
        except Exception:  # noqa: BLE001, S112 - torch's own format, which another version may not have
            continue
    return {group: max(0.0, time.time() - created / 1e9) for group, created in last.items()}
