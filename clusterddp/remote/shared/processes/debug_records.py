"""The records of ``debug``: where a worker has stopped, as the worker and the host tell it, and who is attached."""

from typing import NamedTuple

from ..schema.fields import Fields
from ..schema.record import checked, field, record

REQUESTED = "clusterddp debug"  # the cause of a stop at no breakpoint() (worker/hook/rank_debugger.py)
_ALPHABET = frozenset("0123456789.")


@record
class StopRecord(NamedTuple):
    """Where a worker waits for an operator, as it writes it into its spool."""

    cause: str = field(Fields.text)  # ``breakpoint()``, or the name of an uncaught exception's class
    file: str = field(Fields.text)
    line: int = field(Fields.number)
    function: str = field(Fields.text)
    until: float = field(Fields.real)  # when it goes on by itself (boot clock)


@record
class StopsRequest(NamedTuple):
    """``debug_stops``: the stopped workers of a node."""

    spool: str = field(Fields.text)  # the node's folder


@record
class StopReport(NamedTuple):
    """A worker, or a forked child of it, that waits for an operator or has one; the answer is a list of these."""

    name: str = field(Fields.text)  # of its socket
    rank: int = field(Fields.number)
    local_rank: int = field(Fields.number)
    pid: int = field(Fields.number)
    child: bool = field(Fields.flag)  # it is not the worker itself
    cause: str = field(Fields.text)
    file: str = field(Fields.text)
    line: int = field(Fields.number)
    function: str = field(Fields.text)
    left: float = field(Fields.real)  # seconds until it goes on by itself
    attached: bool = field(Fields.flag)  # somebody has attached a terminal


@record
class BreakInRequest(NamedTuple):
    """``break_in``: stop the worker with this rank where it is; the answer is a list of its ``StopReport``, if any."""

    spool: str = field(Fields.text)  # the node's folder
    rank: int = field(Fields.number)


@record
class DebugRequest(NamedTuple):
    """``debug``: a connection to a stopped worker; data frames go to and fro."""

    spool: str = field(Fields.text)  # the node's folder
    name: str = field(checked(_ALPHABET.issuperset, "a stop's name"))


@record
class AttendRequest(NamedTuple):
    """``attend``: mark the run as attended, as long as the request lasts."""

    spool: str = field(Fields.text)  # the node's folder
