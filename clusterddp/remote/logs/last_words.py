"""The operation ``last_words``: a failed worker's recorded traceback, or else the end of its stderr."""

from typing import Any, Dict

from ..helper.request import Request
from ..shared.processes.process_records import LastWords, LastWordsRequest
from ..shared.run.plan import worker_key
from ..shared.schema.record import to_fields
from ..spool.layout import Spool
from ..spool.quoted import MAX_QUOTED, exception_record, output_end


def last_words(request: Request) -> Dict[str, Any]:
    """Operation: how a failed worker's output ended; takes a ``LastWordsRequest``, returns a ``LastWords``."""
    asked = request.read_args(LastWordsRequest)
    spool, key = Spool(asked.spool), worker_key(asked.start, asked.local_rank)
    text = _recorded(spool.folder, key) or output_end(spool.folder, key + ".err", MAX_QUOTED)[0]
    return to_fields(LastWords(text=text))


def _recorded(spool: str, key: str) -> str:
    """The traceback recorded with an exception by the start-up hook or by torch; empty without one."""
    try:
        value: Any = exception_record(spool, key)
    except (OSError, ValueError):  # none was written, or half of one: the end of stderr does
        return ""
    for name in ("message", "extraInfo", "py_callstack"):
        value = value.get(name) if isinstance(value, dict) else None
    if not isinstance(value, str):
        return ""
    # A long traceback is cut in the middle: both its ends matter.
    return value if len(value) <= MAX_QUOTED else value[: MAX_QUOTED // 2] + "\n" + value[-MAX_QUOTED // 2 :]
