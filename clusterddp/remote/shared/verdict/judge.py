"""The verdict on a run: which worker failed first and how the run ended, by its nodes' ends. Pure; on both sides.

Failures are ordered by class, then by time: (1) a failure of its own, (2) a lost peer, (3) ended by us or by the agent.
The peers of a killed rank raise errors before its death is seen, so time alone would blame them.

When a run ends its leader writes the verdict for all (``verdict.json``, the same on every node that heard it); a node
that is cut off writes its own. One copy is enough to tell how the run ended, whatever becomes of the hosts. Of several
the one of the later attempt counts, then a majority's, then one that stands, then that of more nodes heard.
"""

from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..names.host_names import folded_names, sorted_names
from ..processes.exit_codes import EXIT_INTERRUPTED, EXIT_NOT_THE_SCRIPT, EXIT_STOPPED, EXIT_TIME_LIMIT
from ..run.run_state import ENDED_STATES, RunState
from ..schema.fields import Fields
from ..schema.record import by_key, field, many, maybe, nested, one_of, read_record, record
from ..text.shortening import cut_in_the_middle
from .failures import BY_STALL_GUARD, ENDED, LEASE, LOST_PEER, OWN, STALLED, TIME_LIMIT, FailedWorker, signal_name
from .node_end import CONSEQUENTIAL_REASONS, NodeEnd

CTRL_C = "Ctrl-C"  # the reason of a stop at the run's own terminal, which has its own exit code
_LIMITS = (TIME_LIMIT, STALLED)  # how the reasons begin of stops with the exit code EXIT_TIME_LIMIT
EXIT_RECORD_DELAY = 10**9  # ns from the closing of a process's connections until its exit is recorded, on a loaded host
_CLASSES = {OWN: "own", LOST_PEER: "lost peer", ENDED: "ended"}
MAX_FAILURES = 32  # that are kept one by one
MAX_LINE = 1000  # characters
_REBOOTED, _SUPERVISOR_GONE, _NO_ANSWER = "rebooted", "supervisor gone", "no answer"
_WHY_LOST = {  # of one host, of several
    _REBOOTED: ("it was rebooted", "they were rebooted"),
    _SUPERVISOR_GONE: ("its supervisor is gone", "their supervisors are gone"),
    _NO_ANSWER: ("no answer", "no answer"),
}


@record
class Failure(NamedTuple):
    """A ``FailedWorker`` with its host and attempt; its time is the operator's, accurate to ``error_ns``."""

    host: str = field(Fields.text)
    attempt: int = field(Fields.number)
    error_ns: int = field(Fields.number)
    worker: FailedWorker = field(nested(FailedWorker))
    recovered: bool = field(Fields.flag, default=False)

    @property
    def kind(self) -> int:
        """The failure's class."""
        return self.worker.kind

    @property
    def time_ns(self) -> int:
        """When the worker failed."""
        return self.worker.time_ns

    def to_json(self) -> Dict[str, Any]:
        """Make one object of ``failures`` in the status JSON."""
        worker = self.worker
        return {
            "class": _CLASSES[worker.kind],
            "cause": worker.cause,
            "recovered": self.recovered,
            "rank": worker.rank,
            "host": self.host,
            "local_rank": worker.local_rank,
            "attempt": self.attempt,
            "round": worker.start,
            "time": round(worker.time_ns / 1e9, 6),
            "time_error_ms": round(self.error_ns / 1e6, 3),
            "exit_code": worker.exit_code,
            "signal": None if worker.signal is None else signal_name(worker.signal),
            "message": worker.text,
            "place": worker.location or None,
        }


@record
class EarlyExit(NamedTuple):
    """A worker that had ended with exit code 0 while its peers needed it."""

    host: str = field(Fields.text)
    rank: int = field(Fields.number)
    local_rank: int = field(Fields.number)


@record
class HostEnd(NamedTuple):
    """How one node ended."""

    host: str = field(Fields.text)
    state: str = field(one_of(*ENDED_STATES))
    ended: Optional[int] = field(Fields.maybe_integer, default=None)  # ns, by the operator's clock
    reason: str = field(Fields.text, default="")
    workdir: str = field(Fields.text, default="")
    exits: Mapping[str, str] = field(by_key(Fields.text), default={})  # exit code → ranks, as "0-3,7"
    more: Mapping[str, Any] = {}


@record
class VerdictRecord(NamedTuple):
    """A verdict, who wrote it, and whom he had heard."""

    attempt: int = field(Fields.number)
    state: str = field(one_of(*ENDED_STATES))
    exit_code: int = field(lambda fields, name: fields.number(name, 255))
    line: str = field(Fields.text)
    writer: str = field(Fields.text)  # a host's name, or who watched
    member: int = field(Fields.number)  # of the writer
    reported: Tuple[str, ...] = field(Fields.texts)
    missing: Tuple[str, ...] = field(Fields.texts, default=())
    written: int = field(Fields.integer, default=0)  # ns, by the operator's clock
    ended: Optional[int] = field(Fields.maybe_integer, default=None)
    notice: str = field(Fields.text, default="")
    failures: Tuple[Failure, ...] = field(many(Failure), default=())  # the first of them, by class, then by time
    failed: int = field(Fields.number, default=0)  # how many there were
    early: Tuple[EarlyExit, ...] = field(many(EarlyExit), default=())  # the one they come from, if any
    texts: Tuple[str, ...] = field(Fields.texts, default=())  # where a known message may stand
    hosts: Tuple[HostEnd, ...] = field(many(HostEnd), default=())
    code: str = field(Fields.text, default="")  # the digest of what ran
    confirmed: Optional[bool] = field(maybe(Fields.flag), default=None)  # by a majority; None: not asked
    more: Mapping[str, Any] = {}

    @property
    def by_majority(self) -> bool:
        """Whether a majority has confirmed it or, where none was asked, its writer had heard more nodes than not."""
        return len(self.reported) > len(self.missing) if self.confirmed is None else self.confirmed

    @property
    def stands(self) -> bool:
        """Whether no other copy of its attempt can count before it, whatever hosts report that were not heard."""
        return self.by_majority or (len(self.reported) == len(self.missing) and self.member == 0)

    def brief(self) -> "VerdictRecord":
        """The part of a verdict that a list of runs needs."""
        return self._replace(failures=(), hosts=(), texts=self.texts[:1])

    def bounded(self) -> "VerdictRecord":
        """The part of a verdict that is kept: of many failures the first, and of long texts a part."""
        return self._replace(
            line=cut_in_the_middle(self.line, MAX_LINE),
            notice=cut_in_the_middle(self.notice, MAX_LINE),
            failures=tuple(one._replace(worker=one.worker._replace(output="")) for one in self.failures[:MAX_FAILURES]),
            texts=tuple(text[-MAX_LINE:] for text in self.texts if text),
        )


def judge(
    ends: Sequence[NodeEnd],
    missing: Iterable[str] = (),
    least: Optional[int] = None,
    restarts: int = 0,
    *,
    final: bool = True,
) -> VerdictRecord:
    """Judge one attempt from the ``ends`` of its nodes and the ``missing`` hosts that sent none.

    Its writer is left open, and its texts have their whole length (``bounded``).

    ``least`` is how many nodes an elastic job needs, None for a fixed size; ``restarts`` is how often torchrun was to
    restart failed workers. ``final``: the missing hosts are lost; otherwise they may report another end later.
    """
    silent = tuple(missing)
    verdict = _judge(ends, sorted(silent), least, restarts, final=final) if ends else _unknown_end(silent)
    return verdict._replace(
        attempt=max((end.attempt for end in ends), default=0),
        reported=tuple(end.host for end in ends),
        missing=silent,
        ended=max((end.ended for end in ends if end.ended is not None), default=None),
        hosts=tuple(HostEnd(end.host, end.state, end.ended, end.reason, end.workdir, end.exits) for end in ends),
    )


def _judge(
    ends: Sequence[NodeEnd], silent: Sequence[str], least: Optional[int], restarts: int, *, final: bool
) -> VerdictRecord:
    """Judge as ``judge`` does, without naming the nodes."""
    lost = _lost_hosts_line(ends, silent)
    missed = _continued_without(ends, silent, least)
    if missed:
        return _ended(RunState.SUCCEEDED, 0, _success_line(ends))._replace(notice=lost or missed)
    stopped = [end for end in ends if end.state == RunState.STOPPED]
    ordered = [end for end in stopped if end.reason not in CONSEQUENTIAL_REASONS]
    ordered = [end for end in ordered if not (lost and end.ours and end.lost_another)]
    ended_at = min((end.stopping for end in ends if end.stopping is not None), default=None)
    failures = sorted((f for end in ends for f in _failures(end, ended_at)), key=lambda f: (f.kind, f.time_ns))
    own = [failure for failure in failures if failure.kind != ENDED]
    caused = not own or _killed_for_restart(own, ordered)
    if ordered and caused and not (lost and all(end.ours for end in ordered)):
        return _judge_stopped(ordered)
    if own and not lost and _stopped_before_restart(own, stopped, restarts):
        return _judge_stopped(ordered)._replace(notice=_failed_before_notice(own[0]))
    if own and not (own[0].kind == LOST_PEER and lost):
        return _judge_failed(own, failures, ends)
    if lost and not final and not any(end.state == RunState.LOST for end in ends):
        return _unknown_end(silent)._replace(failures=tuple(failures))
    if lost:
        found = _ended(RunState.FAILED, EXIT_NOT_THE_SCRIPT, lost)
        return found._replace(failures=tuple(failures), failed=sum(end.failed for end in ends))
    if all(end.state == RunState.SUCCEEDED for end in ends):
        return _ended(RunState.SUCCEEDED, 0, _success_line(ends))
    return _judge_agent_failure(ends, failures, stopped)


def _ended(state: str, exit_code: int, line: str) -> VerdictRecord:
    """A verdict that does not say yet which nodes it is on, nor who writes it."""
    return VerdictRecord(0, state, exit_code, line, "", 0, ())


def _unknown_end(silent: Sequence[str]) -> VerdictRecord:
    """The verdict on a run whose end only hosts that do not answer could report."""
    names = sorted_names(silent)
    line = "unknown: %s not answer now" % (
        "%s %s" % (folded_names(names), "do" if names[1:] else "does") if names else "its hosts do"
    )
    return _ended(RunState.UNKNOWN, EXIT_NOT_THE_SCRIPT, line)


def failures_on_host(end: NodeEnd, workers: Iterable[FailedWorker], *, recovered: bool = False) -> Iterator[Failure]:
    """Convert a node's failed workers to failures of its host."""
    return (Failure(end.host, end.attempt, end.error_ns, worker, recovered) for worker in workers)


def _success_line(ends: Sequence[NodeEnd]) -> str:
    """The line for success, with the number of relaunches and of torchrun's restarts in the last attempt."""
    relaunches, restarts = max(end.attempt for end in ends) - 1, max(end.start for end in ends)
    again = (relaunches, "relaunch", "relaunches"), (restarts, "restart", "restarts")
    counts = ["%d %s" % (count, word if count == 1 else words) for count, word, words in again if count > 0]
    return RunState.SUCCEEDED + (" after " + " and ".join(counts) if counts else "")


def _continued_without(ends: Sequence[NodeEnd], silent: Sequence[str], least: Optional[int]) -> str:
    """Name the hosts without which an elastic run succeeded; empty if it did not succeed or no host was missing."""
    good = [end for end in ends if end.state == RunState.SUCCEEDED]
    took_part = [end for end in good if end.agent_exit is not None]  # a spare did not
    missed = [*(end.host for end in ends if end not in good), *silent]
    if not missed or least is None or len(took_part) < least:
        return ""
    return "the run ended without %s" % folded_names(sorted_names(missed))


def _lost_hosts_line(ends: Sequence[NodeEnd], missing: Sequence[str]) -> str:
    """Name the hosts that were lost and why; empty if none was."""
    hosts: Dict[str, List[str]] = {_REBOOTED: [], _SUPERVISOR_GONE: [], _NO_ANSWER: list(missing)}
    for end in ends:
        if end.state == RunState.LOST:
            hosts[_REBOOTED if end.rebooted else _SUPERVISOR_GONE].append(end.host)
    parts = [(sorted_names(names), _WHY_LOST[why]) for why, names in hosts.items() if names]
    return "; ".join(
        "%s %s lost: %s" % (folded_names(names), "were" if names[1:] else "was", why[len(names) > 1])
        for names, why in parts
    )


def _stopped_before_restart(own: Sequence[Failure], stopped: Sequence[NodeEnd], restarts: int) -> bool:
    """Whether a user stopped the run when all failed workers were about to be restarted."""
    by_user = {
        end.host
        for end in stopped
        if not end.ours and end.reason not in CONSEQUENTIAL_REASONS and not end.reason.startswith(_LIMITS)
    }
    return all(failure.host in by_user and failure.worker.restarts < restarts for failure in own)


def _killed_for_restart(own: Sequence[Failure], ordered: Sequence[NodeEnd]) -> bool:
    """Whether the stall guard killed a failed worker in vain: the run hung on, and so was ended."""
    # What the others made of that death may have an earlier time, by another host's clock.
    killed = any(failure.worker.text == BY_STALL_GUARD for failure in own)
    return killed and any(end.reason.startswith(STALLED) for end in ordered)


def _failed_before_notice(failure: Failure) -> str:
    """The notice that precedes the verdict of a stopped run whose workers had failed."""
    return "%s had failed, and was to be started again: %s" % (_describe_rank(failure), failure.worker.text)


def _judge_stopped(ends: Sequence[NodeEnd]) -> VerdictRecord:
    """Judge a run that was stopped: by a limit, by us, by its lease, or by a user."""
    limits = [end.reason for end in ends if end.reason.startswith(_LIMITS)]
    if limits:
        return _ended(RunState.FAILED, EXIT_TIME_LIMIT, limits[0])
    ours = [end for end in ends if end.ours]
    if ours:
        return _ended(RunState.FAILED, EXIT_NOT_THE_SCRIPT, ours[0].reason)
    leased = [end.reason for end in ends if end.reason.startswith(LEASE)]
    line = leased[0][len("the ") :] if leased else "stopped: %s" % ends[0].reason
    return _ended(RunState.STOPPED, EXIT_STOPPED if leased or ends[0].reason != CTRL_C else EXIT_INTERRUPTED, line)


def _judge_agent_failure(
    ends: Sequence[NodeEnd], failures: Sequence[Failure], stopped: Sequence[NodeEnd]
) -> VerdictRecord:
    """Judge a run in which an agent failed but no worker by itself: rendezvous, missing module, bad option, kill."""
    failed = [end for end in ends if end.state == RunState.FAILED]
    if not failed:
        return _judge_stopped(stopped)
    end = min(failed, key=lambda end: end.ended or 0)
    number = (end.agent_exit or 0) - 128
    if number > 0:
        line = "torchrun on %s was killed by %s" % (end.host, signal_name(number))
    elif failures and end.blames_worker:  # a worker was ended from outside
        return _judge_failed(failures, failures, ends)
    elif end.agent and end.blames_worker:  # on a disk that took no record
        line = "a worker on %s failed, and its end is not on record: %s" % (end.host, end.agent)
    else:
        when = "" if failures else " before any worker did"
        line = "torchrun failed on %s%s: %s" % (end.host, when, end.agent or end.reason)
    found = _ended(RunState.FAILED, EXIT_NOT_THE_SCRIPT, line)
    return found._replace(failures=tuple(failures), failed=sum(end.failed for end in ends), texts=(line, end.output))


def _judge_failed(own: Sequence[Failure], failures: Sequence[Failure], ends: Sequence[NodeEnd]) -> VerdictRecord:
    first, count = own[0], sum(end.failed for end in ends)
    early = _early_exits(first, ends) if first.kind == LOST_PEER else ()
    line = _failure_line(own, failures, early, count)
    texts = (first.worker.text, first.worker.output)
    exit_code = EXIT_TIME_LIMIT if first.worker.text == BY_STALL_GUARD else first.worker.exit_code
    found = _ended(RunState.FAILED, exit_code, line)
    return found._replace(failures=tuple(failures), failed=count, texts=texts, early=early)


def _failures(end: NodeEnd, ended_at: Optional[int]) -> Iterator[Failure]:
    """The failed workers of a node's last start."""
    for failure in failures_on_host(end, end.failures):
        ended = _came_after_stop(failure, ended_at)
        yield failure._replace(worker=failure.worker._replace(kind=ENDED)) if ended else failure


def _came_after_stop(failure: Failure, ended_at: Optional[int]) -> bool:
    """Whether a failure came after the run was told to stop; a lost peer gets the clocks' error as tolerance."""
    if ended_at is None:
        return False
    return failure.time_ns + (failure.error_ns if failure.kind == LOST_PEER else 0) >= ended_at


def _clock_error(one: Failure, other: Failure) -> int:
    """The largest difference between the clocks of two failures, in ns; 0 on the same host."""
    return 0 if one.host == other.host else one.error_ns + other.error_ns


def _failure_line(own: Sequence[Failure], failures: Sequence[Failure], early: Sequence[EarlyExit], count: int) -> str:
    first, others = own[0], own[1:]
    rivals = [f for f in others if f.kind == first.kind and f.time_ns - first.time_ns <= _clock_error(first, f)]
    perhaps = " (or rank %d)" % rivals[0].worker.rank if rivals else ""
    more = count - 1
    rest = "; %d other%s stopped" % (more, "s" if more > 1 else "") if more > 0 else ""
    left = _early_exit_note(early) or _missing_ranks_note(failures) if first.kind == LOST_PEER else ""
    return "%s failed first%s: %s%s%s" % (_describe_rank(first), perhaps, first.worker.text, left, rest)


def _describe_rank(failure: Failure) -> str:
    return "rank %d (%s:%d)" % (failure.worker.rank, failure.host, failure.worker.local_rank)


def _early_exits(victim: Failure, ends: Sequence[NodeEnd]) -> Tuple[EarlyExit, ...]:
    """Return a worker that had exited with 0 before a peer lost it: the script returns early on one rank.

    Its exit is recorded after its connections have closed and its interpreter's teardown, so it may have a later time
    than its peers' errors; hardly a later one than the end of the peer's own teardown.
    """
    same = [end for end in ends if end.start == victim.worker.start]
    latest = max(victim.time_ns + EXIT_RECORD_DELAY, victim.worker.exited_ns) + victim.error_ns
    found = [
        EarlyExit(end.host, worker.rank, worker.local_rank)
        for end in same
        for worker in end.finished
        if worker.time_ns <= latest
    ]
    return tuple(found[-1:])


def _early_exit_note(early: Sequence[EarlyExit]) -> str:
    text = "; rank %d (%s:%d) had ended with exit code 0 before"
    return "".join(text % (one.rank, one.host, one.local_rank) for one in early)


def _missing_ranks_note(failures: Sequence[Failure]) -> str:
    """Name the ranks that had not joined a collective that timed out, or were still in an earlier one."""
    waiting = {f.worker.rank: f.worker.collective for f in failures if f.worker.collective is not None}
    if not waiting:
        return ""
    newest = max(waiting.values())
    behind = [f for f in failures if waiting.get(f.worker.rank, -1) < newest]
    if not behind or len(behind) > len(failures) / 2:
        return ""
    behind.sort(key=lambda f: f.worker.rank)
    return "; not in it: %s%s" % (", ".join(map(_describe_rank, behind[:3])), ", …" if len(behind) > 3 else "")


def best_verdict(copies: Iterable[VerdictRecord]) -> Optional[VerdictRecord]:
    """The copy that counts; None if there is none."""

    def rank(copy: VerdictRecord) -> Tuple[int, bool, bool, int, int]:
        return copy.attempt, copy.by_majority, copy.stands, len(copy.reported), -copy.member

    return max(copies, key=rank, default=None)


def read_verdict(data: Any) -> VerdictRecord:
    """A verdict from its JSON object; raises DamagedError."""
    return read_record(VerdictRecord, data, "verdict")
