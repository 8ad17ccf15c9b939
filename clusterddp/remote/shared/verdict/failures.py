"""Classify a node's failed workers: whose fault each failure was, and whether another attempt may help.

    evidence = worker_traces.evidence(spool)     # the node's files as a value; the rest is pure
    found = worker_failures(evidence)            # the failed workers of the last start, by class, then by time
    cause = node_cause(evidence)                 # the node as a whole: curable, text

``kind`` is the class: OWN (a failure of its own), LOST_PEER (another worker or host disappeared), ENDED (by us or by
torchrun). ``curable``: a new attempt may succeed. That holds only for a worker or an agent that something else killed,
and for a lost peer; an exception, an exit code, a crash or lack of memory would happen again. A run may be retried if
all causes are curable: ask only when every node that answers has reported its cause, because a victim reports before
the culprit does.

Times are the node's own clock (ns).
"""

from typing import TYPE_CHECKING, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar

from ..processes.signal_numbers import signal
from ..run.event_schema import (
    AGENT_EXITED,
    STALLED_EVENT,
    STOPPING,
    WORKER_EXITED,
    WORKER_STARTED,
    NodeEvent,
    last_start,
)
from ..schema.fields import Fields
from ..schema.record import Reader, field, record
from ..text.shortening import cut_in_the_middle

if TYPE_CHECKING:
    import re

T = TypeVar("T")
FAIL_FAST_REASON = "another host failed"
LEASE = "the lease lapsed"  # the start of the stop reason of a run that lost contact with its operator
BY_ANOTHER_COMMAND = "by another command"  # the reason of a stop that came as a signal
TORCH_NOT_IMPORTED_IN_TIME = "import torch did not end"  # the start of the error for an import that takes too long
TIME_LIMIT = "the time limit was reached"  # a stop reason with its own exit code
BY_STALL_GUARD = "killed by the stall guard, to start all workers again"
STALLED = "the run stalled: "  # the start of another stop reason with that exit code

OWN, LOST_PEER, ENDED = 1, 2, 3
# The values of ``cause``: how a worker ended.
EXCEPTION, EXIT, SIGNAL, OUT_OF_MEMORY = "exception", "exit", "signal", "out of memory"


def ended_by_manager(manager: str) -> str:
    """The stop reason where a workload manager ends the job, whose own reason we do not know."""
    return "by %s (SIGTERM)" % manager


AGENT_KILL_DELAY = 25 * 10**9  # ns: torchrun sends SIGTERM to the others, and SIGKILL 30 s later
# ns by which a worker's death may be recorded after its agent's, or before it
MAX_AFTER_AGENT, MAX_BEFORE_AGENT = 10**9, 2 * 10**8
MAX_TEXT = 300  # characters of a message in a text
WORKER_FAILED = "ChildFailedError"  # torchrun's exception for a failed worker, as opposed to a failed agent
SENT_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)  # never caused by the program itself
CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_NEVER = 1 << 63

# `re` is imported, and they are compiled, at first use: most processes that import this module never need them.
# Repetitions are bounded where they begin in many places: a job chooses the text, of up to a megabyte.
_LOST_PEER = (
    r"(?i)connection (was )?(likely )?(closed|reset|aborted)|Broken pipe|recvBytes|sendBytes|Connection refused"
    r"|ncclRemoteError|ncclCommWatchdog|Watchdog caught collective|DistBackendError"
    r"|Socket closed|peer closed|DistNetworkError|DistStoreError|client socket has timed out"
    r"|Timed out waiting \d+ms for (recv|send)|timeout caused pair closure|RendezvousConnectionError"
    r"|Connection timed out|No route to host|Host is unreachable"
)
# Messages that match the pattern above although the fault is the worker's own.
_OWN_FAULT = (
    r"(?i)EADDRINUSE|address already in use|cuda error|ncclInvalid|Duplicate GPU|mismatch between collectives"
    r"|^(requests|urllib3?|http|httpx|aiohttp|botocore|boto3|google|azure|huggingface_hub|wandb|mlflow|redis|pymongo)\."
)
_WATCHDOG = r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+)"
_CRASH = (
    r"(Watchdog caught .*)|what\(\):\s+(\S.*)|^(.{0,2000}?: Assertion .{0,2000} failed\b.*)"
    r"|^Fatal Python error: (?!Aborted$)(.*)"  # that is faulthandler's name for any abort
)
_OUT_OF_MEMORY = r"(?i)OutOfMemoryError|out of memory|MemoryError|can't allocate memory"
_TRACE_END = r"^(?:[A-Za-z_][\w.]*)(?:Error|Exception|Interrupt|Exit|Warning|Failure)?(?::|$)"
# One of Python's warnings, with the line of source that it shows; both are bounded, for the job chooses the text.
_WARNING = r"(?m)^.{1,500}:\d{1,9}: \w{0,100}Warning: .*\n?(?:  .*\n?)?"
_TRACE = r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*.*\n?"
_IGNORED = rf"(?m)^Exception ignored (?:in|on|from|while)\b.*\n(?:{_TRACE}(?:\n(?:The|During) .*\n\n{_TRACE})*|.*\n?)"
_LOGGED_WARNING = r"(?m)^(?:\[rank\d{1,9}\]:)?\[W[^\]\n]{1,200}\.\w{1,9}:\d{1,9}\].*\n?"  # one of torch's C++ code
_FRAME = r'(?m)^[ \t]*File "([^"<][^"]*)", line (\d+)'
_INSTALLED = r"/(site|dist)-packages/|/lib(64)?/python3[\d.]*/"


def _of_type(kind: Type[T]) -> "Reader[Optional[T]]":
    """The reader of a field that counts as missing unless its value has exactly this type."""

    def read(fields: Fields, name: str) -> Optional[T]:
        value = fields.anything(name)
        return value if type(value) is kind else None

    return read


@record
class FailedWorker(NamedTuple):
    """One failed worker in one start of the workers."""

    kind: int = field(lambda fields, name: fields.number(name, ENDED))
    cause: str = field(Fields.text)
    curable: bool = field(Fields.flag)
    time_ns: int = field(Fields.integer)
    start: int = field(Fields.number)
    rank: int = field(Fields.number)
    local_rank: int = field(Fields.number)
    exit_code: int = field(Fields.number)
    signal: Optional[int] = field(Fields.maybe_number)
    text: str = field(Fields.text)
    location: str = field(Fields.text)  # "train.py:81", or empty
    # text to search for known messages: the exception, or else the last lines on stderr
    output: str = field(Fields.text)
    # the number of the collective that timed out, by NCCL's watchdog
    collective: Optional[int] = field(Fields.maybe_number, default=None)
    restarts: int = field(Fields.number, default=0)  # of --max-restarts, those that its agent had made
    exited_ns: int = field(Fields.integer, default=0)  # when its exit was recorded: after its interpreter's teardown

    def by_operator(self, offset: int) -> "FailedWorker":
        """Return the failure with its times by the operator's clock; the node's clock is ``offset`` ns ahead."""
        return self._replace(time_ns=self.time_ns - offset, exited_ns=self.exited_ns - offset)


@record
class WorkerError(NamedTuple):
    """A worker's recorded exception. Libraries of the script write it, so a field of another type counts as missing."""

    exc_type: Optional[str] = field(_of_type(str), default=None)
    exc_message: Optional[str] = field(_of_type(str), default=None)
    file: Optional[str] = field(_of_type(str), default=None)
    line: Optional[int] = field(_of_type(int), default=None)
    time_ns: Optional[int] = field(_of_type(int), default=None)


class Evidence(NamedTuple):
    """What a node has on record of its workers."""

    events: Sequence[NodeEvent] = ()
    errors: Mapping[str, Optional[WorkerError]] = {}  # by START.LOCAL_RANK.json
    stderr: Mapping[str, str] = {}  # the end of what they printed, by START.LOCAL_RANK; of the agent's output: agent


class Cause(NamedTuple):
    """Why a node failed."""

    curable: bool
    text: str


def worker_failures(node: Evidence) -> List[FailedWorker]:
    """List the failed workers of a node's last start, by class, then by time."""
    last = last_start(node.events)
    return sorted(_failures_of(node, last), key=lambda failure: (failure.kind, failure.time_ns))


def recovered_failures(node: Evidence) -> List[FailedWorker]:
    """List the failures of earlier starts, after which torchrun restarted the workers."""
    earlier = range(last_start(node.events))
    return [failure for start in earlier for failure in _failures_of(node, start) if failure.kind != ENDED]


def node_cause(node: Evidence) -> Optional[Cause]:
    """Return why a node failed; None if its agent is still running, if it succeeded, or if it was stopped."""
    code = next((event.exit_code for event in node.events if event.kind == AGENT_EXITED), 0)
    if not code:
        return None
    found = worker_failures(node)
    fatal = [failure for failure in found if failure.kind == OWN and not failure.curable]
    chosen = next(iter(fatal or [failure for failure in found if failure.kind != ENDED]), None)
    if chosen:
        return Cause(chosen.curable, "rank %d: %s" % (chosen.rank, chosen.text))
    if any(event.kind == STOPPING for event in node.events):
        return None
    output = agent_output(node)
    if code > 128:
        return Cause(True, "torchrun was killed by %s" % signal_name(code - 128))
    if found and (not output or WORKER_FAILED in output):
        return Cause(True, "rank %d: %s" % (found[0].rank, found[0].text))
    text = last_error_line(output) or "torchrun ended with %d" % code
    return Cause(is_lost_peer(text), text)


def agent_output(node: Evidence) -> str:
    """Return the end of the agent's own output."""
    return clean(node.stderr.get("agent", ""))


def is_lost_peer(text: str) -> bool:
    """Whether a message reports that another worker disappeared."""
    return bool(_search(_LOST_PEER, text) or _nccl_lost_peer(text)) and not _search(_OWN_FAULT, text)


def _nccl_lost_peer(text: str) -> bool:
    """Whether a line names NCCL and, after it, a remote process or the watchdog: a peer was lost."""
    reported = [line.partition("nccl")[2] for line in text.lower().split("\n")]
    return any("remote process" in one or "watchdog" in one for one in reported)


def _failures_of(node: Evidence, start: int) -> List[FailedWorker]:
    events = node.events
    exits = [e for e in events if e.kind == WORKER_EXITED and e.exit_code and e.start == start]
    stopping = min((event.time for event in events if event.kind == STOPPING), default=_NEVER)
    # An agent that ended after an order of ours ended by that order, and took no worker with it.
    agent_ends = [event for event in events if event.kind == AGENT_EXITED and event.time < stopping]
    first = min((event.time for event in exits), default=0)
    found = []
    for event in exits:
        failure = _failure(node, event)
        ended = failure.time_ns >= stopping or _ended_by_agent(agent_ends, event, failure, first)
        found.append(failure._replace(kind=ENDED, curable=True) if ended else failure)
    return found


def _failure(node: Evidence, event: NodeEvent) -> FailedWorker:
    """Classify one failed exit of a worker by its recorded exception and stderr, as if nobody had ended it."""
    recorded = node.errors.get(event.key + ".json")
    error = _cleaned(recorded or WorkerError())
    stderr = _without(_LOGGED_WARNING, without_ignored(clean(node.stderr.get(event.key, ""))))
    cause, text, location = _describe(event, error, stderr)
    if cause == SIGNAL and any(one.kind == STALLED_EVENT and _worker(one) == _worker(event) for one in node.events):
        text = BY_STALL_GUARD
    evidence = text + "\n" + (error.exc_message or "")
    # Of an abort without an exception (NCCL's watchdog, gloo's terminate) the crash's own words count, and all of the
    # worker's output only where it has none.
    said = stderr.partition("terminate called ")[2] if _crash_message(stderr) else stderr
    peer = is_lost_peer(evidence + (said if event.signal == signal.SIGABRT and not recorded else ""))
    output = evidence if error.exc_type else evidence + "\n" + stderr
    timed_out = _search(_WATCHDOG, output)
    return FailedWorker(
        kind=LOST_PEER if peer else OWN,
        cause=cause,
        curable=peer or (cause == SIGNAL and event.signal in SENT_FROM_OUTSIDE),
        time_ns=error.time_ns or event.time,
        start=event.start,
        rank=event.rank,
        local_rank=event.local_rank,
        # A recorded exception is the cause; a signal that followed in the teardown is not.
        exit_code=1 if error.exc_type and event.signal else event.exit_code,
        signal=event.signal,
        text=shortened(text, MAX_TEXT, location),
        location=location,
        output=output,
        collective=int(timed_out[1]) if timed_out else None,
        restarts=_restarts_before(node, event),
        exited_ns=event.time,
    )


def _cleaned(error: WorkerError) -> WorkerError:
    exc_type, message, file = (text and clean(text) for text in (error.exc_type, error.exc_message, error.file))
    return error._replace(exc_type=exc_type, exc_message=message, file=file)


def _restarts_before(node: Evidence, event: NodeEvent) -> int:
    """How many of --max-restarts a worker's agent had made when it started; where it did not say, all starts count."""
    key = event.start, event.local_rank
    started = (one for one in node.events if one.kind == WORKER_STARTED and (one.start, one.local_rank) == key)
    count = next((one.restart_count for one in started), None)
    return event.start if count is None else count


def _worker(event: NodeEvent) -> Tuple[int, int, Optional[int]]:
    """Which worker an event is about: a pid alone may be another's later."""
    return event.start, event.local_rank, event.pid


def _ended_by_agent(agent_ends: Sequence[NodeEvent], event: NodeEvent, failure: FailedWorker, first: int) -> bool:
    """Whether torchrun ended this worker, because of another worker or by dying itself."""
    agent_had_ended = any(end.time <= failure.time_ns for end in agent_ends)
    if failure.cause == SIGNAL and failure.signal in SENT_FROM_OUTSIDE and agent_had_ended:
        return True  # by our supervisor, before its shim noticed
    if event.signals_received is not None:  # the shim's own evidence
        earlier = [number for number, at in event.signals_received if at <= failure.time_ns]
        return bool(earlier) and (failure.cause != SIGNAL or failure.signal in earlier)
    if failure.cause != SIGNAL or failure.signal != signal.SIGKILL:
        return failure.cause == SIGNAL and failure.signal == signal.SIGTERM
    # Its shim was killed: by torchrun after its timeout, or together with torchrun.
    died = [end.time for end in agent_ends if end.exit_code > 128]
    return event.time - first >= AGENT_KILL_DELAY or any(
        -MAX_BEFORE_AGENT < event.time - at < MAX_AFTER_AGENT for at in died
    )


def _describe(event: NodeEvent, error: WorkerError, stderr: str) -> "tuple[str, str, str]":
    """Describe how a worker ended: its cause, one line of text, and the position in the user's code."""
    number = event.signal
    if error.exc_type:
        location = "%s:%s" % (error.file.rpartition("/")[2], error.line) if error.file else ""
        message = next((line for line in (error.exc_message or "").splitlines() if line.strip()), "")
        if error.exc_type.endswith("ProcessRaisedException"):  # of torch.multiprocessing.spawn: its child's traceback
            message = _last_error_line(error.exc_message or "")
        elif "\nOriginal Traceback (" in (error.exc_message or ""):  # what a DataLoader's process raised
            message = "%s: %s" % (message.rstrip("."), _last_error_line(error.exc_message or ""))
        own_location = " (%s, line %s)" % tuple(location.rsplit(":", 1)) if location else ""
        if own_location and message.endswith(own_location):  # a SyntaxError names its position itself
            message = message[: -len(own_location)]
        text = "%s%s%s" % (error.exc_type, ": " if message else "", message)
        return OUT_OF_MEMORY if _search(_OUT_OF_MEMORY, text) else EXCEPTION, text + _in_brackets(location), location
    if number == signal.SIGKILL and event.oom_kills:
        return OUT_OF_MEMORY, "killed by the kernel's out-of-memory killer (SIGKILL)", ""
    if number == signal.SIGKILL and event.orphan:
        return SIGNAL, "its parent process (clusterddp's) was killed by SIGKILL", ""
    if number:
        unknown = number == signal.SIGKILL and event.oom_kills is None
        line = _crash_message(stderr) if number in CRASHES else ""
        location = _crash_location(stderr) if number in CRASHES else ""
        text = "killed by %s%s" % (signal_name(number), ", often the out-of-memory killer" * unknown)
        return SIGNAL, text + (": %s" % line if line else "") + _in_brackets(location), location
    line = _last_error_line(stderr)
    own = _own_frames(stderr) if _ends_trace(line) else []
    location = own[-1] if own else ""
    text = "exit code %d%s%s" % (event.exit_code, ": " if line else "", line)
    return OUT_OF_MEMORY if _search(_OUT_OF_MEMORY, line) else EXIT, text + _in_brackets(location), location


def _crash_message(stderr: str) -> str:
    """Find a crash message in stderr: NCCL's watchdog, C++'s terminate, an assertion, Python's fatal error."""
    matches = (_search(_CRASH, line) for line in reversed(stderr.splitlines()))
    return next((match.group(match.lastindex or 0).strip() for match in matches if match), "")


def _crash_location(stderr: str) -> str:
    """Find the innermost frame of the user's code that faulthandler printed, if the script has enabled it."""
    _, fatal, dump = stderr.rpartition("Fatal Python error:")
    own = _own_frames(dump) if fatal else []
    return own[0] if own else ""


def clean(text: str) -> str:
    """Text that may travel: without NUL and lone surrogates."""
    return text.replace("\0", " ").encode("utf-8", "replace").decode("utf-8")


def without_ignored(text: str) -> str:
    """The text without the exceptions that Python ignored, as those in ``__del__``: they ended nothing."""
    return _without(_IGNORED, text)


def shortened(text: str, most: int, location: str) -> str:
    """Shorten a failure's text to ``most`` characters by cutting its middle; the position at its end stays whole."""
    return cut_in_the_middle(text, most, _in_brackets(location))


def _in_brackets(location: str) -> str:
    return " (%s)" % location if location else ""


def _own_frames(text: str) -> List[str]:
    """Find the frames of the user's code in a printed traceback, ``train.py:81`` each, in the order of the text."""
    import re

    found = re.findall(_FRAME, text)
    return ["%s:%s" % (file.rpartition("/")[2], line) for file, line in found if not _search(_INSTALLED, file)]


def last_error_line(text: str) -> str:
    """Find the line at a log's end that reports the error, and shorten it."""
    return cut_in_the_middle(_last_error_line(text), MAX_TEXT)


def _last_error_line(text: str) -> str:
    lines = [line.strip() for line in _without(_WARNING, text).splitlines() if line.strip()]
    return next(filter(_ends_trace, reversed(lines)), lines[-1] if lines else "")


def _ends_trace(line: str) -> bool:
    return bool(_search(_TRACE_END, line)) and ("Error" in line or "Exception" in line)


def _search(pattern: str, text: str) -> "Optional[re.Match[str]]":
    import re

    return re.search(pattern, text)


def _without(pattern: str, text: str) -> str:
    import re

    return re.sub(pattern, "", text)


def signal_name(number: int) -> str:
    """Return a signal's name, such as ``SIGKILL``; real-time signals have none and are shown by number."""
    import signal as signals  # with its enums

    try:
        return signals.Signals(number).name
    except ValueError:
        return "signal %d" % number
