"""What a host tells of one node of a run (``runs``), checked: it speaks of itself, and everything can be judged.

Who a node is must be right, or the whole answer counts for nothing. An event or a worker's error that is not what it
must be is left out, as one that was torn on the host's own disk. Who tells it: remote/supervisor/status.py.
"""

from typing import Any, Callable, Dict, List, Mapping, Optional

from .fields import Fields
from .log_frames import MOST_ATTEMPT, RUN

MOST = 1 << 20  # events of a node, characters of a text
_NUMBERS = {  # of events that are judged
    "worker_started": ("start", "local_rank", "rank"),
    "worker_exited": ("start", "local_rank", "rank", "exit_code"),
    "agent_exited": ("exit_code",),
    "output_lost": ("bytes",),
    "log_dropped": ("bytes", "limit"),
    "log_limit_failed": ("limit",),
}
_OPTIONAL = ("round", "signal", "oom_kills")


def read_nodes(answer: Any, host: str, run: str) -> List[Dict[str, Any]]:
    """The nodes in a host's answer.

    Args:
        answer: As it was decoded.
        host: Who answers; nobody speaks for another.
        run: What the ids of the runs asked for begin with.

    Raises:
        ValueError: it is no such answer.
    """
    nodes = Fields({"nodes": answer}, most=MOST).each("nodes", lambda fields: _identity(fields, host, run))
    return [dict(answer[number], **told) for number, told in enumerate(nodes)]


def _identity(fields: Fields, host: str, run: str) -> Dict[str, Any]:
    found = fields.check("run", RUN.fullmatch, "a run's id")
    if fields.text("host") != host or not found.startswith(run):
        raise ValueError("it speaks of %s on %s" % (found, fields.text("host")))
    fields.number("attempt", MOST_ATTEMPT)
    fields.number("node_rank", MOST)
    fields.check("spool", lambda path: path.startswith("/") and path.isprintable(), "an absolute path")
    fields.text("state")
    if fields.given("standby"):
        fields.flag("standby")
    fields.integer("clock_offset_ns")
    fields.maybe_number("clock_error_ns")
    fields.maybe_number("last_output")
    fields.numbers("pids")
    _check_record(fields.part("record"))
    if fields.given("exit"):
        _check_exit(fields.part("exit"))
    told: Dict[str, Any] = {
        "events": [event for event in fields.items("events", _event) if event is not None],
        "peers": _left_out(lambda: _peers(fields)),
    }
    for name, read in (("errors", _error), ("stderr", _text)):
        if fields.given(name):
            told[name] = fields.mapping(name, read)
    return told


def _check_record(record: Fields) -> None:
    """What the run wrote down of itself."""
    record.texts("hosts")
    for name in ("spares", "lost", "left_out", "argv"):
        if record.given(name):
            record.texts(name)
    for name in ("name", "script", "operator", "project", "on_disconnect"):
        record.maybe_text(name)
    for name in ("started", "min_nodes", "world_size"):
        record.maybe_number(name)
    if record.given("gpus"):
        record.mapping("gpus", lambda inner, host: inner.items(host, lambda _: None))


def _check_exit(record: Fields) -> None:
    record.text("state")
    record.text("reason")
    record.number("ended")
    record.maybe_number("agent_exit")
    record.maybe_text("final")


def _event(fields: Fields) -> Optional[Dict[str, Any]]:
    return _left_out(lambda: _whole_event(fields))


def _whole_event(fields: Fields) -> Dict[str, Any]:
    event = fields.part("item")
    event.integer("time")
    for name in _NUMBERS.get(event.text("event"), ()):
        event.number(name)
    for name in _OPTIONAL:
        event.maybe_number(name)
    if event.given("told"):
        event.pairs("told")
    for name in ("reason", "error"):
        event.maybe_text(name)
    return fields.raw("item")


def _error(fields: Fields, name: str) -> Optional[Dict[str, Any]]:
    """A worker's exception: its script's libraries write it, so any field may be anything."""
    if not fields.given(name):
        return None
    found: Mapping[str, Any] = fields.raw(name)
    texts = {key: found.get(key) for key in ("exc_type", "exc_message", "file")}
    numbers = {key: found.get(key) for key in ("line", "time_ns")}
    known: Dict[str, Any] = {key: value if type(value) is str else None for key, value in texts.items()}
    known.update({key: value if type(value) is int else None for key, value in numbers.items()})
    return known


def _text(fields: Fields, name: str) -> str:
    return fields.text(name)


def _peers(fields: Fields) -> Dict[str, Any]:
    """What the node has heard of the others."""
    peers = fields.part("peers")
    if peers.given("nodes"):
        peers.mapping("nodes", lambda inner, host: _check_word(inner.part(host)))
    return fields.raw("peers")


def _check_word(word: Fields) -> None:
    word.number("attempt", MOST_ATTEMPT)
    word.text("state")
    word.real("age")


def _left_out(read: Callable[[], Dict[str, Any]]) -> Optional[Dict[str, Any]]:
    """What is read, or None where it is not what it must be."""
    try:
        return read()
    except ValueError:
        return None
