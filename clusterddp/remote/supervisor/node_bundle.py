"""A node's part of a bundle: a run's records, the ends of all outputs, the kernel's messages, without secrets.

The operator asks each host of a run for it (the operation ``bundle``). A host may also write its own into the spool
(``save``), say when the run hangs and nobody looks; later bundles bring it along.
"""

import base64
import json
import os
import time
from signal import SIGKILL
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple

from ..helper.request import Request
from ..logs.output_files import LogFile, LogFiles
from ..processes.stacks import live_workers, stack_reports
from ..processes.traces import worker_traces
from ..shared.bundle.archive import NAME, Member, pack, unpack
from ..shared.bundle.bundle_records import INDEX, BundleAnswer, BundleIndex, BundlePart, BundleRequest
from ..shared.bundle.stacks_text import stacks_text
from ..shared.logs.tail_request import TailRequest
from ..shared.processes.worker_stacks import build_stack
from ..shared.run.plan import AGENT_LOG, PEERS, PLAN
from ..shared.schema.fields import DamagedError
from ..shared.schema.json_text import read_json, to_json
from ..shared.schema.record import to_fields
from ..shared.text.redaction import MIN_SECRET, Redaction, hide_url_passwords
from ..shared.text.secret_names import hide_assigned, hide_named, strike, values_by_name
from ..spool.layout import COMMITTED, EXIT, STOP, VERDICT, Spool
from ..spool.quoted import MAX_RECORD_TEXT, SERVER_LOG, file_end, output_end, quotable
from ..system import nvidia_smi
from ..system.bootstrap import private_folder, write_private
from ..system.bounded_child import Child
from ..system.kernel_log import UNREADABLE, LastMessages
from ..system.prctl import set_pdeathsig
from ..system.small_files import open_regular_in, sorted_names

EVENTS = "events.jsonl"
FOLDER = "bundles"  # of a spool: the archives that its own host has written
ROOM = 1 << 20  # bytes of output in such an archive
MAX_OTHERS = 768 << 10  # characters of all that is no output
SAVED_ROOM = 1 << 20  # characters of what saved archives hold, outputs too
MAX_GROWTH = 16 << 10  # bytes that a live worker may print between the listing of its output and the reading
MAX_RECORD = 192 << 10  # bytes of a record: the end of a larger one
MAX_ERRORS = 64
MAX_SAVED = 3  # archives that a spool keeps
KERNEL_LINES, MAX_KERNEL = 1000, 192 << 10
MAX_NAME = 80  # letters of a name in the index of what is missing
MACHINE_TIMEOUT = 8.0  # seconds for journalctl and nvidia-smi: a driver that hangs does not answer at all
SAVED_MACHINE_TIMEOUT = 5.0  # the same of what is written while workers wait to be ended
NO_TIME = "the host had no time to find it out"
BY_HOST = "written by this host itself"
_RECORDS = (  # (file of the spool, what it is)
    (EVENTS, "what happened on this node, an event a line"),
    (PLAN, "what this node was told to do"),
    (PEERS, "what this node knew of the other nodes"),
    (COMMITTED, "that all nodes were ready"),
    (STOP, "the order to stop"),
    (EXIT, "how this node's part ended"),
    (VERDICT, "how the run ended, as this node has kept it"),
    ("supervisor.log", "what the supervisor printed"),
    ("store.log", "what the rendezvous store printed"),
    (SERVER_LOG, "what packages printed that were imported ahead"),
)


class BundleParts:
    """The members of a node's archive so far; each text that is added loses its secrets."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self.room = MAX_OTHERS  # characters that `add` may still take
        self.members: List[Member] = []
        self.parts: List[BundlePart] = []
        self.missing: List[Tuple[str, str]] = []

    def add(self, name: str, what: str, text: str, *, begins: bool = True, note: str = "") -> None:
        """Add a text, if there is room; ``begins``: it has its true beginning: no half of a secret stands there."""
        if len(text) > self.room:
            self.lack(name[:MAX_NAME], "it is larger than the room that is left for records of one host")
        elif not NAME.fullmatch(name):
            self.lack("a file", "its name is not of plain letters, or too long")
        else:
            self.room -= len(text)
            self._append(name, what, text, begins=begins, note=note)

    def add_record(self, name: str, what: str, text: str) -> None:
        """Add a JSON record, of which each text was looked through: escapes may hide a secret in the record's own."""
        try:
            value = self._redaction.value(json.loads(text), MAX_RECORD_TEXT)
            text = json.dumps(strike(value, self._redaction))
        except (ValueError, RecursionError):  # half a record
            pass
        self.add(name, what, text)

    def add_output(self, name: str, what: str, text: str, size: int, *, whole: bool) -> None:
        """Add the end of an output file of ``size`` bytes, from a line's beginning on; ``whole``: all of it."""
        note = ""
        if not whole:
            text = text.lstrip("\0")  # what a log limit has deleted
            text = text[text.find("\n") + 1 or text.find("\r") + 1 :]
            note = "the last %s of %s" % (_kib(len(text)), _kib(size))
        self._append(name, what, text, begins=whole, note=note)

    def _append(self, name: str, what: str, text: str, *, begins: bool, note: str) -> None:
        struck = hide_assigned(hide_url_passwords(self._redaction.text(text, begins=begins)))
        self.members.append(Member(name, struck.encode("utf-8", "replace")))
        self.parts.append(BundlePart(name, what, note))

    def lack(self, what: str, why: str) -> None:
        """Note that something could not be had."""
        self.missing.append((what, why))

    def packed(self, pending: Iterable[str] = ()) -> bytes:
        """The archive, its index first; ``pending``: what may still come."""
        missing = *self.missing, *((what, NO_TIME) for what in pending)
        index = to_json(to_fields(BundleIndex(tuple(self.parts), missing))).encode()
        return pack([Member(INDEX, index), *self.members], int(time.time()))


def bundle(request: Request) -> Dict[str, Any]:
    """Operation: a node's archive; takes a ``BundleRequest``, returns a ``BundleAnswer``."""
    asked = request.read_args(BundleRequest)
    machine = Machine() if asked.machine else None
    spools = [Spool(folder) for folder in asked.spools if os.path.isdir(folder)]
    named = sorted({value for spool in spools for value in named_values(spool)})
    parts = collect(spools, asked.room, named)
    if machine:
        machine.add_kernel(parts)
        machine.add_nvidia_smi(parts)
    else:
        parts.lack("kernel messages, nvidia-smi", "the run is over, and its machine cannot be reached any more")
    parts.room = SAVED_ROOM
    for spool in spools:
        for name in saved_names(spool)[:MAX_SAVED]:
            _add_saved(parts, spool, "" if spool is spools[0] else "attempt-%d/" % spool.attempt, name)
    return to_fields(BundleAnswer(base64.b64encode(parts.packed()).decode(), tuple(named)))


def save(spool: Spool, stages: Mapping[str, Callable[[BundleParts], None]], room: int = ROOM) -> str:
    """Write this node's archive into its spool, anew after each stage, and return its path.

    ``stages`` add what takes time, each by what it is called: whoever ends this process loses only what is not there
    yet. Raises OSError where nothing can be written.
    """
    folder = private_folder(spool.path(FOLDER))
    path = os.path.join(folder, "%d.tar.gz" % time.time_ns())
    parts = collect([spool], room, sorted(named_values(spool)))
    pending = list(stages)
    write_private(path, parts.packed(pending), durable=False)
    for name in saved_names(spool)[MAX_SAVED:]:
        os.unlink(os.path.join(folder, name))
    for what, add in stages.items():
        try:
            add(parts)
        except (OSError, DamagedError) as error:
            parts.lack(what, str(error))
        pending.remove(what)
        write_private(path, parts.packed(pending), durable=False)
    return path


def main(argv: List[str]) -> int:
    """Write the archive of the spool ``argv[0]``, while its workers live: the role ``bundle``."""
    set_pdeathsig(SIGKILL)
    os.nice(10)
    spool = Spool(argv[0])
    machine = Machine(SAVED_MACHINE_TIMEOUT)
    events = spool.events()
    workers = live_workers(events)

    def add_traces(parts: BundleParts) -> None:
        traces = to_json([to_fields(trace) for trace in worker_traces(spool, events)])
        parts.add("traces.json", BY_HOST, traces)

    def add_stacks(parts: BundleParts) -> None:
        stacks = [build_stack(spool.host, report) for report in stack_reports(spool, workers)]
        parts.add("stacks.txt", BY_HOST, stacks_text(stacks))

    slow = {"kernel messages": machine.add_kernel, "nvidia-smi": machine.add_nvidia_smi}
    save(spool, {"traces": add_traces, "stacks": add_stacks, **slow})
    return 0


def saved_names(spool: Spool) -> List[str]:
    """The archives that this host has written into a spool, the newest first."""
    names = [name for name in sorted_names(spool.path(FOLDER)) if name.endswith(".tar.gz") and name[:-7].isdigit()]
    return sorted(names, key=lambda name: -int(name[:-7]))


def named_values(spool: Spool) -> Iterator[str]:
    """The values that are secret by their names: in the plan, in this process's and in live workers' environments.

    The run's own secrets are not among them: their values leave this host nowhere.
    """
    own = {*spool.secrets().values()}
    sources: List[Any] = [dict(os.environ), *_command_of(spool)]
    sources += [environment(event.pid or 0) for event in live_workers(spool.events())]
    for source in sources:
        for value in values_by_name(source):
            if len(value) >= MIN_SECRET and value not in own:
                yield value


def _command_of(spool: Spool) -> Iterator[Any]:
    """What a run was started with: its variables, words and options. Only there are names those of variables."""
    plan = spool.readable_plan()
    if plan:
        yield from (dict(plan.env), plan.argv, plan.record.argv, plan.record.options)


def environment(pid: int) -> Dict[str, str]:
    """The variables with which a process of this user began; empty where they cannot be read."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as stream:
            entries = stream.read(1 << 20).decode("utf-8", "replace").split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def collect(spools: Sequence[Spool], room: int, named: Iterable[str]) -> BundleParts:
    """Collect a node's records and the ends of its output files, of each attempt's spool, the newest first.

    ``room``: bytes of output; ``named``: secret values besides the run's own.
    """
    secrets = [value for spool in spools for value in spool.secrets().values()]
    parts = BundleParts(Redaction([*secrets, *named]))
    if not spools:
        parts.lack("records and outputs", "the run's files are gone from this host")
    for number, spool in enumerate(spools):
        prefix = "" if not number else "attempt-%d/" % spool.attempt
        _add_records(parts, spool, prefix)
        _add_outputs(parts, spool, prefix, room // 2 if number + 1 < len(spools) else room)
        room -= room // 2
    return parts


def _add_records(parts: BundleParts, spool: Spool, prefix: str) -> None:
    for name, what in _RECORDS:
        text, whole = file_end(spool.path(name), MAX_RECORD)
        if text and name == PLAN:
            text, whole = _plan_text(spool), True
        if text:
            note = "" if whole else "the last %s" % _kib(MAX_RECORD)
            parts.add(prefix + name, what, text if whole else text[text.find("\n") + 1 :], begins=whole, note=note)
        elif name in (EVENTS, PLAN):
            parts.lack(prefix + name, "this host has none that can be read")
    for name in sorted_names(spool.path("errors"))[-MAX_ERRORS:]:
        text, whole = file_end(spool.path("errors", name), MAX_RECORD)
        if text and whole and name.endswith(".json"):
            parts.add_record("%serrors/%s" % (prefix, name), "a worker's exception", text)


def _plan_text(spool: Spool) -> str:
    """The plan without values of variables that are secret by their names; empty if it is damaged."""
    try:
        return json.dumps(hide_named(read_json(spool.path(PLAN))), indent=1)
    except (OSError, ValueError):
        return ""


def _add_outputs(parts: BundleParts, spool: Spool, prefix: str, room: int) -> None:
    """Add the ends of all outputs; without a word those that are empty."""
    files = LogFiles(spool, TailRequest(spool=spool.folder, agent=True), timed=False).wanted()
    left_out = 0
    for file, share in shares([file for file in files if file.size], room):
        size = file.size
        most = quotable(spool.folder, share if share < size else size + MAX_GROWTH)
        if not share:
            left_out += 1
        elif not most:
            why = "the disk was full when the run ended, so it was not compared with the run's secrets"
            parts.lack(prefix + _output_name(file), why)
        else:
            text, whole = output_end(spool.folder, file.name, most)
            whole = whole and size <= most
            parts.add_output(prefix + _output_name(file), _output_what(file), text, size, whole=whole)
    if left_out:
        parts.lack("%s%d more outputs" % (prefix, left_out), "there are too many of earlier starts of the workers")


def shares(files: Sequence[LogFile], room: int) -> List[Tuple[LogFile, int]]:
    """Return how many bytes of each file's end are taken.

    The newest start of the workers gets half of the room, the one before half of the rest. Within a start short files
    are taken whole, and the others share what is left equally.
    """
    starts: Dict[int, List[Tuple[int, LogFile]]] = {}
    newest = max((file.start or 0 for file in files), default=0)
    for file in files:
        starts.setdefault(newest if file.start is None else file.start, []).append((file.size, file))
    found = []
    for number, start in enumerate(sorted(starts, reverse=True), 1):
        part = room if number == len(starts) else room // 2
        ordered = sorted(starts[start], key=lambda sized: sized[0])
        for place, (size, file) in enumerate(ordered):
            share = min(size, part // (len(ordered) - place))
            part, room = part - share, room - share
            found.append((file, share))
    return found


def _output_name(file: LogFile) -> str:
    if file.name == AGENT_LOG:
        return "outputs/agent.out"
    rank = "unknown" if file.rank is None else str(file.rank)
    return "outputs/start-%d/rank%s-%d.%s" % (file.start or 0, rank, file.local_rank or 0, file.stream)


def _output_what(file: LogFile) -> str:
    if file.name == AGENT_LOG:
        return "what torchrun printed"
    return "std%s of rank %s" % (file.stream, "?" if file.rank is None else file.rank)


def _add_saved(parts: BundleParts, spool: Spool, prefix: str, name: str) -> None:
    """Add an archive that this host has written itself."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(int(name[:-7]) / 1e9))
    try:
        with open(spool.path(FOLDER, name), "rb", opener=open_regular_in) as stream:
            members = unpack(stream.read(8 << 20))
        for member in sorted(members, key=lambda member: (member.name.startswith("outputs/"), len(member.body))):
            if member.name != INDEX:
                text = member.body.decode("utf-8", "replace")
                parts.add("%ssaved-%s/%s" % (prefix, stamp, member.name), BY_HOST, text)
    except (OSError, DamagedError) as error:
        parts.lack("%ssaved-%s" % (prefix, stamp), str(error))


class Machine:
    """Programs that have been started to say what the kernel and the GPUs' driver tell; each ``add`` waits for them."""

    def __init__(self, timeout: float = MACHINE_TIMEOUT) -> None:
        env = dict(os.environ)
        self._timeout = timeout
        self._kernel = LastMessages(env, KERNEL_LINES, timeout)
        program = nvidia_smi.find_program(env)
        asked = ("nvidia-smi.txt", "nvidia-smi"), ("nvidia-smi-q.txt", "nvidia-smi -q")
        self._smi: List[Tuple[str, str, Child]] = []
        self._error = "" if program else "no nvidia-smi on this host"
        try:
            for name, what in asked if program else ():
                command = [program or "", *what.split()[1:]]
                self._smi.append((name, what, Child(command, env=env, timeout=timeout)))
        except OSError as error:  # no process more, say
            self._error = "it could not be started: %s" % error

    def add_kernel(self, parts: BundleParts) -> None:
        """Add the kernel's last messages, or why there are none."""
        text = self._kernel.text()
        if text is None:
            parts.lack("kernel messages", UNREADABLE)
        else:
            whole = len(text) <= MAX_KERNEL
            parts.add("kernel.txt", "the kernel's last messages", text[-MAX_KERNEL:], begins=whole)

    def add_nvidia_smi(self, parts: BundleParts) -> None:
        """Add what it printed, or why it did not."""
        if self._error:
            parts.lack("nvidia-smi", self._error)
        for name, what, child in self._smi:
            answer = child.answer()
            if answer.status == 0:
                parts.add(name, "`%s`" % what, answer.text)
            elif answer.status is None:
                parts.lack(what, "it did not answer within %d s: the driver may hang" % self._timeout)
            else:
                parts.lack(what, nvidia_smi.failure_reason(answer))


def _kib(size: int) -> str:
    return "%d KiB" % (size >> 10) if size >= 1 << 10 else "%d bytes" % size
