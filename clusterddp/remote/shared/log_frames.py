"""Frames of the operation ``tail``: what their headers hold, checked. Who sends them: remote/logs/tail.py.

    hello      hello: true, run, attempt, clock_error_ns      the first
    lines      file, start, local_rank, rank, stream, offset, next; time, open, dropped
    began      began: the number of a start of the workers    when they are started again, in a follow
    exited     exited: how many workers have ended so far     when more of them have, in a follow
    caught_up  caught_up: true, offsets {file: offset}        in a follow, between the past and what comes

``file`` names a file of the spool: ``<start>.<local_rank>.<out|err>`` or ``agent.out``.
"""

import re
from typing import Any, Dict

from .fields import Fields
from .frames import Frame
from .plan import AGENT_LOG

RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")  # a run's id
MOST_ATTEMPT = 1 << 20
_FILE = re.compile(r"([0-9]{1,9})\.([0-9]{1,5})\.(out|err)")
_MOST_START = 10**9
_MOST_RANK = (1 << 31) - 1
_MOST_OFFSET = (1 << 53) - 1


def read_hello(frame: Frame, run: str, attempt: int) -> Frame:
    """The first frame of the logs of one attempt of a run.

    Raises:
        ValueError: it is none, or of another.
    """
    fields = Fields(frame.header)
    if not fields.flag("hello"):
        raise ValueError("its logs do not begin with what they are of")
    found = fields.check("run", RUN.fullmatch, "a run's id"), fields.number("attempt", MOST_ATTEMPT)
    if found != (run, attempt):
        raise ValueError("they are of run %s, attempt %d, not of %s, %d" % (*found, run, attempt))
    error = fields.number("clock_error_ns")
    return Frame({"hello": True, "run": run, "attempt": attempt, "clock_error_ns": error}, b"")


def read_lines(frame: Frame) -> Frame:
    """A later frame: the same body, and a header that holds nothing but what was checked.

    Raises:
        ValueError: it is none.
    """
    fields = Fields(frame.header)
    if fields.given("caught_up"):
        return Frame({"caught_up": fields.flag("caught_up"), "offsets": read_offsets(fields)}, b"")
    if fields.given("began"):
        return Frame({"began": fields.number("began", _MOST_START)}, b"")
    if fields.given("exited"):
        return Frame({"exited": fields.number("exited", _MOST_RANK)}, b"")
    header = _file(fields)
    header["rank"] = fields.number("rank", _MOST_RANK) if fields.given("rank") else None
    header["offset"] = fields.number("offset", _MOST_OFFSET)
    header["next"] = header["offset"] + len(frame.body)
    if fields.number("next") != header["next"]:
        raise ValueError("next is not the offset after the lines")
    if fields.given("time"):
        header["time"] = fields.number("time")
    if fields.given("open"):
        header["open"] = fields.flag("open")
    if fields.given("dropped"):
        header["dropped"] = fields.number("dropped", header["offset"])
    return Frame(header, frame.body)


def read_offsets(fields: Fields) -> Dict[str, int]:
    """``offsets``: how far each file was read."""
    found = fields.mapping("offsets", lambda inner, name: inner.number(name, _MOST_OFFSET))
    for name in found:
        if name != AGENT_LOG and not _FILE.fullmatch(name):
            raise ValueError("offsets names no file of logs: %r" % name[:80])
    return found


def _file(fields: Fields) -> Dict[str, Any]:
    name = fields.text("file")
    parts = _FILE.fullmatch(name)
    start, local_rank = (int(parts[1]), int(parts[2])) if parts else (None, None)
    header = {"file": name, "start": start, "local_rank": local_rank, "stream": parts[3] if parts else "out"}
    told = {
        "file": name if parts else AGENT_LOG,
        "start": fields.maybe_number("start"),
        "local_rank": fields.maybe_number("local_rank"),
        "stream": fields.text("stream"),
    }
    if told != header:
        raise ValueError("file is not what the rest of its header says: %r" % name[:80])
    return header
