"""The request and answer of ``orphans``: processes of runs whose supervisor is dead."""

from typing import NamedTuple, Tuple

from ..run.spool_records import LeftProcess
from ..schema.fields import Fields
from ..schema.record import field, many, record


@record
class OrphansRequest(NamedTuple):
    """``orphans``: the processes that ended or lost runs have left on a host."""

    hosts: Tuple[str, ...] = field(Fields.texts)  # its inventory names


@record
class OrphanedRun(NamedTuple):
    """A run with such processes; the answer is a list of these."""

    run: str = field(Fields.text)
    host: str = field(Fields.text)
    known: bool = field(Fields.flag)  # the run's spool is here, so that a stop of the run can end them
    processes: Tuple[LeftProcess, ...] = field(many(LeftProcess))
