"""The traces that failed workers left in a node's spool: their exits, exceptions and ends of stderr."""

from typing import Optional, Sequence

from ..shared.processes.signal_numbers import signal
from ..shared.run.event_schema import WORKER_EXITED, NodeEvent, newest_start
from ..shared.run.plan import AGENT_LOG
from ..shared.schema.record import read_record
from ..shared.text.shortening import cut_in_the_middle
from ..shared.verdict.failures import WORKER_FAILED, Evidence, WorkerError
from .layout import Spool
from .quoted import exception_record, output_end

MAX_QUOTE = 8000  # bytes of a worker's stderr, for the verdict's texts; C++ prints long stacks after a message
MAX_WORKERS = 64  # most failed workers of a node that are reported in detail, the last ones


def evidence(spool: Spool, events: Optional[Sequence[NodeEvent]] = None) -> Evidence:
    """The traces of the node's failed workers, for shared/verdict/failures.py: events, exceptions, ends of stderr.

    ``events`` are the node's, where they were read already.
    """
    all_events = spool.events() if events is None else events
    agent_output = output_end(spool.folder, AGENT_LOG, MAX_QUOTE)[0]
    failed = [event for event in all_events if event.kind == WORKER_EXITED and event.exit_code][-MAX_WORKERS:]
    if not failed and WORKER_FAILED in agent_output:  # no record could be written
        failed = newest_start(all_events)[-MAX_WORKERS:]
    keys = {event.key: event for event in failed}
    errors = {key + ".json": _worker_error(spool, key) for key in keys}
    stderr = {
        key: output_end(spool.folder, key + ".err", MAX_QUOTE)[0]
        for key, event in keys.items()  # where nothing better is known
        if not (errors[key + ".json"] or event.signal == signal.SIGTERM)
    }
    return Evidence(all_events, errors, dict(stderr, agent=agent_output))


def _worker_error(spool: Spool, key: str) -> Optional[WorkerError]:
    """The worker's record of its exception without the traceback, or None."""
    try:
        record = exception_record(spool.folder, key)
    except ValueError:  # the worker was killed while writing it
        return None
    if not isinstance(record, dict):
        return None
    error = read_record(WorkerError, record, "error")
    if not error.exc_type:  # torch's own: one text has both, and its time is in whole seconds
        text = record.get("message")
        text = text.get("message") if isinstance(text, dict) else text
        kind, _, message = str(text or "").partition(": ")
        error = error._replace(exc_type=kind, exc_message=message)
    message = cut_in_the_middle(error.exc_message or "", MAX_QUOTE)
    return error._replace(exc_message=message) if error.exc_type else None
