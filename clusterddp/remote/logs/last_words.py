"""last_words: what a worker that failed has said of it: the traceback on record, else the end of its stderr.

Not here: which worker, and which of the lines are shown (clusterddp/runs/last_words.py).
"""

import os
from typing import Any, Dict

from ..helper.request import Request
from ..spool.layout import Spool
from ..system.bootstrap import read_json

MOST = 32 << 10  # bytes; of a traceback its two ends count, of stderr its last part


def last_words(request: Request) -> Dict[str, str]:
    """``{text}`` of the worker ``local_rank`` in its ``start``, of ``spool``; empty where it has said nothing."""
    args = request.args
    spool, key = Spool(args["spool"]), "%d.%d" % (args["start"], args["local_rank"])
    return {"text": _recorded(spool.path("errors", key + ".json")) or _end(spool.path("logs", key + ".err"))}


def _recorded(path: str) -> str:
    """The traceback in the record of an exception, by the start-up hook or by torch."""
    try:
        value: Any = read_json(path)
    except (OSError, ValueError):  # none was written, or half of one: the end of stderr does
        return ""
    for name in ("message", "extraInfo", "py_callstack"):
        value = value.get(name) if isinstance(value, dict) else None
    if not isinstance(value, str):
        return ""
    return value if len(value) <= MOST else value[: MOST // 2] + "\n" + value[-MOST // 2 :]


def _end(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - MOST))
            return stream.read(MOST).decode(errors="replace")
    except OSError:  # the verdict says what is known
        return ""
