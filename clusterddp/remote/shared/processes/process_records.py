"""The requests and answers of ``signal``, ``stacks`` and ``last_words`` on workers, and of ``orphans``."""

from typing import NamedTuple, Optional, Tuple

from ..logs.log_frames import is_run
from ..run.spool_records import LeftProcess
from ..schema.fields import Fields
from ..schema.record import checked, field, many, maybe, record


@record
class SignalRequest(NamedTuple):
    """``signal``: a signal for the live workers of a node."""

    spool: str = field(Fields.text)  # the node's folder
    signal: str = field(Fields.text)  # its name, as SIGUSR1


@record
class SignalReport(NamedTuple):
    """Whether a worker was sent the signal; the answer is a list of these."""

    rank: int = field(Fields.number)
    local_rank: int = field(Fields.number)
    pid: int = field(Fields.number)
    why: str = field(Fields.text)  # it was not sent; empty if it was


@record
class StacksRequest(NamedTuple):
    """``stacks``: the Python stacks of the live workers of a node."""

    spool: str = field(Fields.text)  # the node's folder
    ranks: Optional[Tuple[int, ...]] = field(maybe(Fields.numbers), default=None)  # only these; None: all


@record
class StackReport(NamedTuple):
    """A worker's stacks as they were printed, or why there are none; the answer is a list of these."""

    rank: int = field(Fields.number)
    local_rank: int = field(Fields.number)
    start: int = field(Fields.number)  # of the workers, within the attempt
    pid: int = field(Fields.number)
    state: str = field(Fields.text)  # the kernel's letter
    wchan: str = field(Fields.text)  # where the kernel waits for it
    source: str = field(Fields.text)  # ``py-spy``, whose text is JSON, or ``faulthandler``; empty: there are none
    text: str = field(Fields.any_text)
    why: str = field(Fields.text)  # there are none


@record
class LastWordsRequest(NamedTuple):
    """The request of ``last_words``: the last lines that a failed worker printed."""

    spool: str = field(Fields.text)  # the node's folder
    start: int = field(Fields.number)  # of the workers, within the attempt
    local_rank: int = field(Fields.number)


@record
class LastWords(NamedTuple):
    """A recorded traceback, or else the end of stderr; empty if the worker wrote nothing."""

    text: str = field(Fields.any_text)


@record
class OrphansRequest(NamedTuple):
    """``orphans``: the processes that ended or lost runs have left on a host."""

    hosts: Tuple[str, ...] = field(Fields.texts)  # its inventory names


@record
class OrphanedRun(NamedTuple):
    """A run with such processes; the answer is a list of these."""

    run: str = field(checked(is_run, "a run's id"))
    host: str = field(Fields.text)
    known: bool = field(Fields.flag)  # the run's spool is here, so that a stop of the run can end them
    processes: Tuple[LeftProcess, ...] = field(many(LeftProcess))
