"""Check the headers of frames from the operation ``tail``; remote/logs/tail.py sends them.

    hello      hello: true, run, attempt, clock_error_ns      the first
    lines      file, start, local_rank, rank, stream, offset, next; time, open, dropped; beside, pieces
    began      began: the number of a start of the workers    when they are started again, in a follow
    exited     exited: how many workers have ended so far     when more of them have, in a follow
    caught_up  caught_up: true, offsets {file: offset}        in a follow, between the past and what comes

``file`` names a file of the spool: ``<start>.<local_rank>.<out|err>`` or ``agent.out``. With ``pieces`` the body holds
lines of both streams of that worker in the order in which they were written: the sizes of pieces that are of ``file``
and of its other stream in turn; ``beside`` has ``offset``, ``next`` and ``time`` of the other.
"""

import re
from typing import Any, Dict, Iterator, Tuple

from ..schema.fields import Fields
from ..wire.frames import Frame
from .plan import AGENT_LOG

RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")  # a run's id
MOST_ATTEMPT = 1 << 20
_FILE = re.compile(r"([0-9]{1,9})\.([0-9]{1,5})\.(out|err)")
_MOST_START = 10**9
_MOST_RANK = (1 << 31) - 1
_MOST_OFFSET = (1 << 53) - 1
MOST_PIECES = 400  # of a frame; their sizes fit into its header


def read_hello(frame: Frame, run: str, attempt: int) -> Frame:
    """Check the first frame of the logs of one attempt of a run; raises ValueError."""
    fields = Fields(frame.header)
    if not fields.flag("hello"):
        raise ValueError("its logs do not begin with what they are of")
    found = fields.check("run", RUN.fullmatch, "a run's id"), fields.number("attempt", MOST_ATTEMPT)
    if found != (run, attempt):
        raise ValueError("they are of run %s, attempt %d, not of %s, %d" % (*found, run, attempt))
    error = fields.number("clock_error_ns")
    return Frame({"hello": True, "run": run, "attempt": attempt, "clock_error_ns": error}, b"")


def read_lines(frame: Frame) -> Frame:
    """Check a later frame and return it with a header of checked fields only; raises ValueError if it is none."""
    fields = Fields(frame.header)
    if fields.given("caught_up"):
        return Frame({"caught_up": fields.flag("caught_up"), "offsets": read_offsets(fields)}, b"")
    if fields.given("began"):
        return Frame({"began": fields.number("began", _MOST_START)}, b"")
    if fields.given("exited"):
        return Frame({"exited": fields.number("exited", _MOST_RANK)}, b"")
    header = _file(fields)
    header["rank"] = fields.number("rank", _MOST_RANK) if fields.given("rank") else None
    pieces = _pieces(fields, len(frame.body)) if fields.given("pieces") else ()
    _read_part(fields, header, sum(pieces[::2]) if pieces else len(frame.body))
    if pieces:
        if header["local_rank"] is None:
            raise ValueError("pieces of what has one stream")
        stream = "err" if header["stream"] == "out" else "out"
        name = "%d.%d.%s" % (header["start"], header["local_rank"], stream)
        header["pieces"], header["beside"] = pieces, {"file": name, "stream": stream}
        _read_part(fields.part("beside"), header["beside"], sum(pieces[1::2]))
    if fields.given("open"):
        header["open"] = fields.flag("open")
    if fields.given("dropped"):
        header["dropped"] = fields.number("dropped", header["offset"])
    return Frame(header, frame.body)


def _read_part(fields: Fields, header: Dict[str, Any], size: int) -> None:
    """Read ``offset``, ``next`` and ``time`` of the ``size`` bytes that a frame has of one file."""
    header["offset"] = fields.number("offset", _MOST_OFFSET)
    header["next"] = header["offset"] + size
    if fields.number("next") != header["next"]:
        raise ValueError("next is not the offset after the lines")
    if fields.given("time"):
        header["time"] = fields.number("time")


def _pieces(fields: Fields, size: int) -> Tuple[int, ...]:
    """Read ``pieces``, the sizes of alternating pieces of two streams."""
    pieces = fields.numbers("pieces")
    if pieces and (not 2 <= len(pieces) <= MOST_PIECES or 0 in pieces or sum(pieces) != size):
        raise ValueError("pieces are not what the lines consist of")
    return pieces


def parts(frame: Frame) -> Iterator[Frame]:
    """Split a checked frame into frames that hold data of one file each."""
    header = frame.header
    if "pieces" not in header:
        yield frame
        return
    own = {name: value for name, value in header.items() if name not in ("pieces", "beside")}
    other = {name: value for name, value in own.items() if name != "time"}
    files = own, {**other, **header["beside"]}
    next_offsets = [file["offset"] for file in files]
    begin = 0
    for number, size in enumerate(header["pieces"]):
        offset = next_offsets[number % 2]
        next_offsets[number % 2] += size
        yield Frame(dict(files[number % 2], offset=offset, next=offset + size), frame.body[begin : begin + size])
        begin += size


def offsets_after(frame: Frame) -> Dict[str, int]:
    """The offset after a checked frame's data, for each file that it has data of."""
    header = frame.header
    files = (header, header["beside"]) if "beside" in header else (header,)
    return {file["file"]: file["next"] for file in files}


def read_offsets(fields: Fields) -> Dict[str, int]:
    """Read ``offsets``: how far each file has been read."""
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
