"""A worker's start-up hook: records exceptions, stacks, traces and the order of output, survives a full disk, unseen.

The shim puts this folder first on PYTHONPATH. This module restores what that changed and runs the host's own
sitecustomize. Then it records an uncaught exception, dumps stacks on a signal, lets stdout and stderr survive a full
disk, and marks where one follows the other. It acts in the worker's main interpreter only: the environment is restored
before any of the user's code runs, so processes that this code starts do not load the hook. A fork server is a
worker's interpreter that stays in this hook (``serve_forks``); each of its forks leaves the hook and runs the script.

It is a separate file on the host, run by any Python from 3.8: it imports nothing of ours, and at start-up nothing
that Python has not loaded already (hence the imports inside functions). No failure of it reaches the worker.
"""  # noqa: INP001 - a data file, imported by its folder

import os
import sys

TYPE_CHECKING = False  # typing would be one more module that the worker could see
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Type

    Excepthook = Callable[[Type[BaseException], BaseException, Optional[TracebackType]], Any]
    Location = Tuple[str, int]

HERE = os.path.dirname(os.path.abspath(__file__))
SPOOL = os.path.dirname(HERE)
OWN_DESCRIPTOR = 250  # the highest descriptor that is tried for files of ours
RECORDER_SIZES = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"  # torch's variables for its flight recorder
RECORDED = b"1536"  # operations; an answer with torch's own 2,000 leaves a worker 13 MB larger, one with these 4 MB
MARKS_LIMIT = 4 << 20  # bytes of marks in one file; it and the one before it are kept
STACK_SIGNAL_OFFSET = 7  # above SIGRTMIN; the same number is in processes/stacks.py
LONGEST = 64 * 1024  # characters of a traceback or message that are kept
DISTRIBUTED = "torch.distributed.distributed_c10d"  # once it is looked for, the C++ part of torch.distributed is there
FORK_SERVER = "fork-server "  # in place of a worker's name, followed by the descriptor of the socket to the supervisor,
# or by "warm" and a warm server's arguments
_stops: "List[Any]" = []  # one, once a breakpoint was met


def restore() -> str:
    """Restore the environment the shim changed; returns ``<start>.<local_rank>``, empty when no shim started this."""
    worker = os.environ.pop("CLUSTERDDP_HOOK", "")
    user = os.environ.pop("CLUSTERDDP_USER_PYTHONPATH", None)
    if worker:
        _set_environment("PYTHONPATH", user)
    original = getattr(sys.modules.get("posix"), "environ", {})
    for name in ("CLUSTERDDP_HOOK", "CLUSTERDDP_USER_PYTHONPATH"):
        original.pop(name.encode(), None)
    sys.path[:] = [entry for entry in sys.path if entry != HERE]
    sys.path_importer_cache.pop(HERE, None)
    return worker


def _set_environment(name: str, value: "Optional[str]") -> None:
    original = getattr(sys.modules.get("posix"), "environ", {})  # what os.environ was made from
    if value is None:
        os.environ.pop(name, None)
        original.pop(os.fsencode(name), None)
    else:
        os.environ[name] = value
        original[os.fsencode(name)] = os.fsencode(value)


def exec_server_command() -> None:
    """Replace this process by the fork server, whose command line, a worker's, follows ``python -c ""`` in ours.

    So an interpreter that skips the hook (a wrapper with -E) runs nothing, rather than the script.
    """
    with open("/proc/self/cmdline", "rb") as stream:
        argv = stream.read().split(b"\0")[:-1]
    with open("/proc/self/environ", "rb") as stream:  # as it was passed: Python may have added to os.environ
        given = [item.partition(b"=") for item in stream.read().split(b"\0") if item]
    if argv[1:3] == [b"-c", b""]:
        os.execve(argv[0], [argv[0], *argv[3:]], {name: value for name, _, value in given})


def serve_forks(argument: str) -> str:
    """Run a run's fork server, or a warm server; returns only in each forked worker, with its ``<start>.<local_rank>``.

    In a worker, ``SPOOL`` becomes the spool of the worker's own attempt.
    """
    global SPOOL
    loaded = set(sys.modules)
    code = os.path.join(SPOOL, "remote.pyz")
    sys.path.insert(0, code)
    try:
        name = "preload.preload_server" if argument.startswith("warm") else "fork_server.server"
        serve = __import__("clusterddp_remote." + name, fromlist=["serve"]).serve
    finally:
        sys.path.remove(code)
    for name in [name for name in sys.modules if name.partition(".")[0] == "clusterddp_remote"]:
        del sys.modules[name]
    cache: "Any" = getattr(sys.modules.get("zipimport"), "_zip_directory_cache", {})
    for caches in (sys.path_importer_cache, cache):
        for path in [path for path in caches if path.startswith(code)]:
            del caches[path]
    SPOOL, worker = serve(SPOOL, argument, loaded)
    return str(worker)


def install(worker: str) -> None:
    """Install the exception record, the stack signal, output that survives a full disk, breakpoints, and traces."""
    for step in (keep_exceptions, dump_stacks, survive_full_disk, wait_at_breakpoints, serve_traces):
        try:
            step(worker)
        except Exception:  # noqa: BLE001, S112 - a worker without one of them is still a worker
            continue


def keep_exceptions(worker: str) -> None:
    """Record an uncaught exception before the excepthook in force prints it."""
    previous = sys.excepthook
    pid = os.getpid()
    workdir = os.getcwd()

    def excepthook(kind: "Type[BaseException]", value: BaseException, trace: "Optional[TracebackType]", /) -> "Any":
        if os.getpid() == pid:  # a forked child's exception is not the worker's
            try:
                write_record(worker, workdir, kind, value, trace)
            except BaseException:  # noqa: BLE001 - printing comes first
                pass
        previous(kind, value, trace)
        if os.getpid() == pid and trace is not None and issubclass(kind, Exception):
            examine(worker, kind.__name__, trace)

    look_like(excepthook, previous)
    if previous is sys.__excepthook__:  # other code compares the two to see whether the hook is the default
        sys.__excepthook__ = excepthook
    sys.excepthook = excepthook


def write_record(
    worker: str, workdir: str, kind: "Type[BaseException]", value: BaseException, trace: "Optional[TracebackType]"
) -> None:
    """Write ``errors/<worker>.json``, and torchrun's error file unless torch's ``record`` wrote that."""
    import time

    now = time.time_ns()
    try:
        text = without_middle(str(value))
    except Exception:  # noqa: BLE001 - its __str__ is the user's code
        text = "<exception str() failed>"
    stack = without_middle(format_stack(kind, value, trace))
    file, line = user_frame(value, trace, workdir)
    module = "" if kind.__module__ in ("builtins", "__main__") else kind.__module__ + "."
    record: "Dict[str, Any]" = {
        "message": {
            "message": "%s: %s" % (kind.__name__, text),
            "extraInfo": {"py_callstack": stack, "timestamp": str(now // 10**9)},
        },
        "exc_type": module + kind.__qualname__,
        "exc_message": text,
        "file": file,
        "line": line,
        "time_ns": now,
        "pid": os.getpid(),
    }
    body = encode(record)
    _replace(os.path.join(SPOOL, "errors", worker + ".json"), body.encode())
    torch_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if torch_file and not os.path.exists(torch_file):
        _replace(torch_file, body.encode())


def without_middle(text: str) -> str:
    """Shorten a text to ``LONGEST`` letters by leaving out its middle; its beginning and end matter most."""
    return text if len(text) <= LONGEST else "%s…%s" % (text[: LONGEST // 2], text[-LONGEST // 2 :])


def format_stack(kind: "Type[BaseException]", value: BaseException, trace: "Optional[TracebackType]") -> str:
    """The traceback as Python prints it; only the frames of a KeyboardInterrupt.

    Loading the traceback module evaluates strings, after which Python forgets that it has to end by SIGINT.
    """
    if issubclass(kind, KeyboardInterrupt):
        return "".join('File "%s", line %d\n' % frame for frame in _frames(trace, "")) + kind.__name__
    import traceback

    return "".join(traceback.format_exception(kind, value, trace))


def encode(value: "Any") -> str:
    """JSON of nested dicts, strings and integers, without the json module (as ``format_stack`` explains)."""
    if isinstance(value, dict):
        return "{%s}" % ", ".join("%s: %s" % (encode(name), encode(entry)) for name, entry in value.items())
    if not isinstance(value, str):
        return str(value)
    units = value.encode("utf-16-be", "surrogatepass")
    return '"%s"' % "".join(_escape(units[at], units[at + 1]) for at in range(0, len(units), 2))


def _escape(high: int, low: int) -> str:
    plain = not high and 31 < low < 127 and low not in b'"\\'
    return chr(low) if plain else "\\u%02x%02x" % (high, low)


def _replace(path: str, body: bytes) -> None:
    """Write a file whole or not at all: torchrun's agent fails on half a record."""
    temporary = "%s.%d" % (path, os.getpid())
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(body)
        os.replace(temporary, path)
    except OSError:
        try:
            os.unlink(temporary)
        except OSError:
            pass  # it was never made


def user_frame(value: BaseException, trace: "Optional[TracebackType]", workdir: str) -> "Tuple[str, int]":
    """The file and line that a user wants to read first: the innermost frame in the project.

    Without one, the innermost frame not of an installed package; else the innermost; else ``("", 0)``.
    """
    frames = list(_frames(trace, workdir))
    if isinstance(value, SyntaxError) and value.filename and os.path.isfile(value.filename):
        frames.append((os.path.abspath(value.filename), value.lineno or 0))
    written = [frame for frame in frames if not _installed(frame[0])]
    project = [frame for frame in written if frame[0].startswith(os.path.join(workdir, ""))]
    best: "List[Location]" = project or written or frames
    return best[-1] if best else ("", 0)


def _frames(trace: "Optional[TracebackType]", workdir: str) -> "Iterator[Location]":
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        yield (name if name.startswith("<") else os.path.normpath(os.path.join(workdir, name))), trace.tb_lineno
        trace = trace.tb_next


def _installed(name: str) -> bool:
    library = os.path.join(os.path.dirname(os.__file__), "")
    return name.startswith(("<", library)) or "/site-packages/" in name or "/dist-packages/" in name


def dump_stacks(worker: str) -> None:
    """Append every thread's stack to ``stacks/<worker>`` on the stack signal; the worker goes on."""
    known = "faulthandler" in sys.modules
    import faulthandler

    stacks = os.path.join(SPOOL, "stacks", worker)
    first = __import__("_signal").SIGRTMIN  # signal itself, with its enums, is not loaded yet
    faulthandler.register(first + STACK_SIGNAL_OFFSET, file=open_high(stacks), all_threads=True)
    if not known:
        del sys.modules["faulthandler"]  # the registration stays; the worker's own import loads it again


def open_high(path: str) -> int:
    """Open a file of ours for appending, with a descriptor above the script's usual ones, which no child inherits."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    low = os.open(path, flags, 0o600)
    for high in range(OWN_DESCRIPTOR, OWN_DESCRIPTOR - 20, -1):
        try:
            os.fstat(high)
        except OSError:  # free, or beyond the limit of open files
            try:
                os.dup2(low, high, inheritable=False)
            except OSError:
                break
            os.close(low)
            return high
    return low


def survive_full_disk(worker: str) -> None:
    """Make the worker's writes to stdout and stderr succeed when the disk is full.

    Only an attribute of the raw file objects is set, so the streams stay the very objects that Python made.
    """
    order = StreamOrder(worker)
    for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
        buffer: "Any" = getattr(stream, "buffer", None)  # under -u this is the raw file itself
        raw = getattr(buffer, "raw", buffer)
        if raw is not None:
            raw.write = _surviving(raw.write, worker, name, order)


def wait_at_breakpoints(worker: str) -> None:
    """Let ``breakpoint()`` wait for `clusterddp debug`, unless PYTHONBREAKPOINT or the host's own code has a say."""
    previous = sys.breakpointhook
    if previous is not sys.__breakpointhook__:
        return

    def breakpointhook(*args: "Any", **kwargs: "Any") -> "Any":
        if os.environ.get("PYTHONBREAKPOINT"):
            return previous(*args, **kwargs)
        try:
            load_stops(worker).stop_at(sys._getframe(1))  # noqa: SLF001 - the documented way to the caller
        except Exception as error:  # noqa: BLE001 - the script goes on
            sys.stderr.write("clusterddp: a breakpoint() is passed over: %s: %s\n" % (type(error).__name__, error))
        return None

    look_like(breakpointhook, previous)
    sys.breakpointhook = sys.__breakpointhook__ = breakpointhook  # other code compares the two


def examine(worker: str, kind: str, trace: "TracebackType") -> None:
    """Where the run has --pdb, let `clusterddp debug` look at an uncaught exception before the worker ends."""
    try:
        if os.path.exists(os.path.join(SPOOL, "debug", "uncaught")):
            load_stops(worker).stop_after(kind, trace)
    except Exception:  # noqa: BLE001 - the exception has been printed
        pass


def load_stops(worker: str) -> "Any":
    """The worker's stops at breakpoints, from the file beside this one, which is loaded once."""
    if not _stops:
        path = os.path.join(SPOOL, "hook", "rank_debugger.py")
        with open(path, "rb") as stream:
            code = compile(stream.read(), path, "exec")
        namespace: "Dict[str, Any]" = {"__name__": "clusterddp_rank_debugger", "__file__": path}
        exec(code, namespace)  # noqa: S102 - ours; to import it would leave a module that the script sees
        _stops.append(namespace["Stops"](SPOOL, worker))
    return _stops[0]


def look_like(ours: "Any", original: "Any") -> None:
    """Give a function of ours the name and documentation of Python's own that it replaces."""
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(ours, name, getattr(original, name, None))


def serve_traces(worker: str) -> None:
    """Start torch's server for traces where torch.distributed is loaded, or as soon as the worker imports it."""
    path = os.path.join(SPOOL, "traces", worker)
    if not os.path.isdir(os.path.dirname(path)):  # the run is without
        return

    def act() -> None:
        keep_operations(os.path.join(SPOOL, "ended", worker))
        start_trace_server(path)

    if DISTRIBUTED in sys.modules:
        act()
    else:
        before_import(DISTRIBUTED, act)


def keep_operations(path: str) -> None:
    """When the worker ends by itself, write down its last collective operations, which ``run`` compares over all ranks.

    They are torch's own records, compressed; torch before 2.10 has none without GPUs. NCCL has a record of its own.
    """
    c10d = sys.modules.get("torch._C._distributed_c10d")
    names = {"_dump_fr_trace_json": path, "_dump_nccl_trace_json": path + ".nccl"}
    dumps = {file: getattr(c10d, name) for name, file in names.items() if hasattr(c10d, name)}
    pid = os.getpid()

    def write() -> None:
        if os.getpid() != pid or hasattr(sys, "last_type"):  # a child, or after an uncaught exception
            return
        for file, dump in dumps.items():
            try:
                _replace(file, __import__("zlib").compress(dump(includeCollectives=True, onlyActive=False), 1))
            except Exception:  # noqa: BLE001, S112 - the worker has done its work
                continue

    if dumps:
        __import__("atexit").register(write)


def before_import(name: str, act: "Callable[[], None]") -> None:
    """Call ``act`` once, when this process (no child of it) is about to import the module.

    Python's own finder is watched for it until then: a finder of ours in ``sys.meta_path`` would be seen there, and
    lost where a script replaces that list.
    """
    finder: "Any" = sys.modules["_frozen_importlib_external"].PathFinder
    own = vars(finder)["find_spec"]
    search = own.__func__
    pid = os.getpid()
    waiting = True

    def find_spec(cls: "Any", fullname: str, path: "Any" = None, target: "Any" = None) -> "Any":
        nonlocal waiting
        if fullname == name and waiting:
            waiting = False
            if vars(finder).get("find_spec") is watched:
                finder.find_spec = own
            if os.getpid() == pid:
                try:
                    act()
                except Exception:  # noqa: BLE001 - the import comes first
                    pass
        return search(cls, fullname, path, target)

    for attribute in ("__qualname__", "__module__", "__doc__"):
        setattr(find_spec, attribute, getattr(search, attribute, None))
    # Python leaves frames of that file out of the tracebacks of failed imports.
    find_spec.__code__ = find_spec.__code__.replace(co_filename=search.__code__.co_filename)
    watched = finder.find_spec = classmethod(find_spec)


def start_trace_server(path: str) -> None:
    """Let torch listen on a Unix socket for questions about this worker's collective operations.

    Its threads never end. To destroy it can hang the worker, and the interpreter's end would destroy it, so one
    reference is kept for good. A thread of it that cannot do its work aborts the worker: hence ``_room_for_threads``,
    and who asks makes sure that the script has not closed the socket. Torch before 2.8 has no such server.
    """
    make = getattr(sys.modules.get("torch._C._distributed_c10d"), "_WorkerServer", None)
    ctypes: "Any" = sys.modules.get("ctypes")  # torch has loaded it
    if make is None or ctypes is None:
        return
    signals: "Any" = __import__("_signal")
    native = ctypes.pythonapi  # also leads to the C library
    log_level = ctypes.c_int.in_dll(ctypes.CDLL("libc10.so", mode=os.RTLD_NOLOAD), "FLAGS_caffe2_log_level")
    logged = log_level.value
    on_broken_pipe = (ctypes.c_long * 64)()  # has room for a struct sigaction
    blocked = signals.pthread_sigmask(signals.SIG_BLOCK, ())
    held = [os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)]
    try:
        # Its threads take no signal: a script may block one to wait for it, and a peer that leaves must not end the
        # worker.
        signals.pthread_sigmask(signals.SIG_BLOCK, signals.valid_signals())
        if os.sysconf("SC_OPEN_MAX") < 2 * OWN_DESCRIPTOR or not _room_for_threads(ctypes):
            return
        # The server has two descriptors: its socket, and one that the kernel keeps for who connects, which dup2 finds
        # busy. They are to be such that no script counts on.
        while held[-1] < OWN_DESCRIPTOR:
            held.append(os.dup(held[0]))
        for _ in range(3):
            held.append(os.dup(held[0]))
        third = held[-1]
        for _ in range(3):
            os.close(held.pop())
        if third > 2 * OWN_DESCRIPTOR:  # the script has that many, and may need all it can get
            return
        # A socket's address has at most 107 bytes, and a spool's path may be longer.
        address = "/proc/self/fd/%d/%s" % (held[0], os.path.basename(path))
        _make_recorder(native)
        native.sigaction(signals.SIGPIPE, None, on_broken_pipe)
        threads = _count_threads() + _server_threads()
        try:
            log_level.value = 3  # it would say on stderr where it listens
            # In one step of the interpreter: between two of them a signal's handler may raise an exception.
            list(map(native.Py_IncRef, map(ctypes.py_object, map(make, [address]))))
        finally:
            log_level.value = logged
            native.sigaction(signals.SIGPIPE, on_broken_pipe, None)  # which it has set
        for _ in range(10000):  # some 50 ms at most
            probe = os.dup(held[0])
            os.close(probe)
            if probe >= third and _count_threads() >= threads:  # it has both, and waits
                break
            os.sched_yield()
    finally:
        for handle in held:
            os.close(handle)
        signals.pthread_sigmask(signals.SIG_SETMASK, blocked)


def _make_recorder(native: "Any") -> None:
    """Let torch make its recorder of collective operations now, in our size, unless the user's environment has one.

    It reads the size from the C library's environment, where no child of the script is to find it later.
    """
    dump = getattr(sys.modules.get("torch._C._distributed_c10d"), "_dump_fr_trace_json", None)
    if dump is None or os.environ.keys() & RECORDER_SIZES:
        return
    size = RECORDER_SIZES[0].encode()
    native.setenv(size, RECORDED, 0)
    try:
        dump(includeCollectives=False, onlyActive=True)
    finally:
        native.unsetenv(size)


def _room_for_threads(ctypes: "Any") -> bool:
    """Whether limits of threads or memory leave room for twice the server's threads: tried, with threads that end."""
    native = ctypes.pythonapi
    wanted = 2 * _server_threads()
    gate = (ctypes.c_long * 8)()  # has room for a sem_t
    native.sem_init(gate, 0, 0)
    made: "List[Any]" = []
    while len(made) < wanted:
        thread = ctypes.c_ulong()
        if native.pthread_create(ctypes.byref(thread), None, native.sem_wait, gate):
            break
        made.append(thread)
    for _ in made:
        native.sem_post(gate)
    for thread in made:
        native.pthread_join(thread, None)
    return len(made) == wanted


def _server_threads() -> int:
    return max(9, os.sysconf("SC_NPROCESSORS_ONLN"))


def _count_threads() -> int:
    return os.stat("/proc/self/task").st_nlink


class StreamOrder:
    """Records both files' sizes at each change from stdout to stderr and back; logs/order_marks.py reads that."""

    def __init__(self, worker: str) -> None:
        self.latest = ""  # the stream written last
        self._pid = os.getpid()
        self._streams = os.fstat(1).st_ino, os.fstat(2).st_ino
        self._path = os.path.join(SPOOL, "logs", worker + ".order.idx")
        self._file, self._identity = -1, (0, 0)

    def change(self, stream: str) -> None:
        """Mark that the next output is on ``stream``; not in a forked child, nor if the script replaced a file."""
        begins, self.latest = not self.latest, stream
        if begins or os.getpid() != self._pid:
            return
        try:
            out, err = os.fstat(1), os.fstat(2)
            if (out.st_ino, err.st_ino) == self._streams:
                os.write(self._checked_file(), b"\n%d %d\n" % (out.st_size, err.st_size))  # \n: the last may be cut
        except Exception:  # noqa: BLE001 - the write itself comes first
            return

    def _checked_file(self) -> int:
        try:
            marks = os.fstat(self._file)
            usable = (
                marks.st_dev,
                marks.st_ino,
            ) == self._identity  # else the script closed it, and the number is another file's
            if usable and marks.st_size > MARKS_LIMIT:
                usable = False
                os.close(self._file)
                os.replace(self._path, self._path[: -len("idx")] + "old.idx")
        except OSError:
            usable = False
        if not usable:
            self._file = open_high(self._path)
            marks = os.fstat(self._file)
            self._identity = marks.st_dev, marks.st_ino
        return self._file


def _surviving(write: "Callable[[Any], Any]", worker: str, name: str, order: StreamOrder) -> "Callable[[Any], Any]":
    lost = 0  # bytes, not reported yet
    step = 0.0  # seconds between two reports while the disk stays full; they grow
    due = 0.0

    def tell() -> None:
        nonlocal lost
        if lost and _report_loss(worker, name, lost):
            lost = 0

    def surviving(data: "Any", /) -> "Any":
        nonlocal lost, step, due
        if order.latest is not name:
            order.change(name)
        try:
            written = write(data)
        except OSError as error:
            size = _size_if_full(error, data)
            if size is None:
                raise
            if not step:
                __import__("atexit").register(tell)  # only from the first loss on
            lost += size
            now = float(__import__("time").monotonic())
            if now >= due:
                step = min(2 * step or 1.0, 600.0)
                due = now + step
                tell()
            return size
        if lost:
            tell()
        if written and written < memoryview(data).nbytes:  # the disk is full now, or the next write raises why
            return written + (surviving(memoryview(data).cast("B")[written:]) or 0)
        return written

    surviving.__name__ = "write"
    surviving.__qualname__ = "FileIO.write"
    return surviving


def _size_if_full(error: OSError, data: "Any") -> "Optional[int]":
    """How many bytes this error lost; None unless it says that the disk takes no more."""
    import errno

    full = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # a file system turns read-only when its disk fails
    return memoryview(data).nbytes if error.errno in full else None


def _report_loss(worker: str, name: str, lost: int) -> bool:
    """Append an ``output_lost`` event, in the format of spool/events.py; False if the disk is too full for that too."""
    import time

    start, _, local_rank = worker.partition(".")
    values = (time.time_ns(), int(start), int(local_rank), name, lost)
    line = '{"event":"output_lost","time":%d,"start":%d,"local_rank":%d,"stream":"%s","bytes":%d}\n' % values
    try:
        fd = os.open(os.path.join(SPOOL, "events.jsonl"), os.O_WRONLY | os.O_APPEND)
    except OSError:
        return True  # the run's folder was removed: nobody is left to report to
    try:
        # A full disk may have cut the record before it short.
        return os.write(fd, b"\n" + line.encode()) > len(line)
    except OSError:
        return False
    finally:
        os.close(fd)


def hand_over() -> None:
    """Import the host's own sitecustomize under its name; without one ImportError tells Python so, as usual."""
    sys.modules.pop("sitecustomize", None)
    __import__("sitecustomize")


if __name__ == "sitecustomize":
    try:
        if os.environ.get("CLUSTERDDP_HOOK", "").startswith(FORK_SERVER):
            exec_server_command()
        _worker = restore()
        if _worker.startswith(FORK_SERVER):
            _worker = serve_forks(_worker[len(FORK_SERVER) :])
    except BaseException:  # noqa: BLE001 - a server that goes on would run the script
        os._exit(1)
    try:
        hand_over()
    finally:
        if _worker:
            install(_worker)  # after the host's own, whose excepthook we keep
