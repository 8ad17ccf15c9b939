"""The first messages on a new pipe, from a login shell's output to the helper's hello."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterddp.errors import ClusterddpError, HelperError, NoPythonError, UnreachableError
from clusterddp.hosts.zipapp import MAGIC_WORD, NO_PYTHON, TOO_OLD, Bundle
from clusterddp.remote.shared.processes.exit_codes import EXIT_KILLED, EXIT_STOPPED
from clusterddp.remote.shared.schema.fields import Fields
from clusterddp.remote.shared.schema.json_text import encodable
from clusterddp.remote.shared.schema.record import field, record, record_in
from clusterddp.remote.shared.wire.frames import MAGIC, PROTOCOL, Decoder, Frame, ProtocolError, parse_json
from clusterddp.text.units import human_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clusterddp.hosts.ssh import BytePipe
    from clusterddp.inventory import HostEntry

_log = logging.getLogger("clusterddp")
TRANSIENT_STATUSES = (129, EXIT_KILLED, EXIT_STOPPED, 255)  # 128 + SIGHUP; 255 is ssh's own
_MAX_NOISE = 64 * 1024  # bytes a login shell may print before the helper speaks


@record
class HelperHello(NamedTuple):
    """What a helper says of itself and its host when it starts."""

    python: str = field(Fields.text)
    executable: str = field(Fields.text)
    boot: str = field(Fields.text)
    state: str = field(Fields.shown_path)  # its state folder
    home: str = field(Fields.shown_path)
    uid: int = field(Fields.number)
    pid: int = field(Fields.number)
    time_ns: int = field(Fields.number)
    unwritable: str = field(Fields.text)  # why nothing can be written in the state folder; else empty
    remedy: str = field(Fields.text)


def handshake(
    entry: HostEntry, pipe: BytePipe, code: Bundle, on_answer: Callable[[], object] = lambda: None
) -> tuple[str, HelperHello, Decoder]:
    """Send the opening, find the magic word in the shell's output, send the code if needed, read the hello.

    ``on_answer`` is called with each answer before the hello. The result is what the login shell printed first, the
    hello, and the decoder for the frames after it. Raises ``HelperError`` if there is no usable Python, or the helper
    did not start, ``UnreachableError`` if the connection broke, or the helper was killed.
    """
    with contextlib.suppress(OSError):  # the shell exited at once (nologin): its message is read below
        pipe.write(code.opening(interpreter=entry.ansible_python, fallback=entry.python, state=entry.state))
    noise, answer, rest = _read_answer(entry, pipe, b"")
    on_answer()
    compiles = answer == "unknown"
    if compiles:  # the host has no code that it can use unchanged
        with contextlib.suppress(OSError):  # the same
            pipe.write(code.introduction(state=entry.state))
        _, answer, rest = _read_answer(entry, pipe, rest)
        on_answer()
    sent = answer == "need"
    if sent:
        with contextlib.suppress(OSError):  # the same
            pipe.write(code.packed)
        _, answer, rest = _read_answer(entry, pipe, rest)
        on_answer()
    _raise_refusal(entry, answer)
    how = f"was sent, {human_size(len(code.packed))}" if sent else "is there already"
    if compiles and not sent:
        how += ", without byte code of its Python: it compiles what it runs"
    _log.debug("%s: the helper's code %s (%s)", entry.name, how, code.digest[:12])
    decoder = Decoder()
    frames: list[Frame] = []
    data = rest
    while not frames:
        try:
            frames = list(decoder.feed(data))
        except ProtocolError as error:
            raise HelperError(entry.name, f"the helper answers with something else: {error}") from error
        data = b"" if frames else _read(pipe)
        if not frames and not data:
            raise _start_error(entry, pipe, b"")
    hello = _parse_hello(entry, frames[0].header)
    decoder.texts = True
    facts = (hello.python, hello.executable, hello.pid, hello.state)
    _log.debug("%s: the helper runs: Python %s (%s), pid %s, state in %s", entry.name, *facts)
    return noise, hello, decoder


def _read_answer(entry: HostEntry, pipe: BytePipe, received: bytes) -> tuple[str, str, bytes]:
    """Read to the next line with the magic word: the text before it, its message, and the bytes after it."""
    while not (found := _magic_line(received)):
        data = _read(pipe)
        if not data or len(received) > _MAX_NOISE:
            raise _start_error(entry, pipe, received)
        received += data
    return found


def _parse_hello(entry: HostEntry, header: Mapping[str, Any]) -> HelperHello:
    """Check every field of the helper's hello."""
    if header.get("kind") != "hello" or header.get("protocol") != PROTOCOL:
        raise HelperError(entry.name, f"the helper speaks another protocol: {str(header)[:200]}")
    try:
        return record_in(Fields(encodable(header, paths=True)), HelperHello)
    except ValueError as error:
        raise HelperError(entry.name, f"the helper's hello is damaged: {error}") from error


def _raise_refusal(entry: HostEntry, answer: str) -> None:
    """Raise an error unless the host has the helper's code, by its last answer before the hello."""
    if answer == "have":
        return
    kind, _, reason = answer.partition(" ")
    if kind != "refused":
        raise HelperError(entry.name, f"the helper answers with something else: {answer[:80]!r}")
    try:
        refused = Fields(parse_json(reason.encode()))
        message, remedy = refused.text("message"), refused.text("remedy")
    except ValueError as error:
        raise HelperError(entry.name, f"the helper refuses, and its reason is damaged: {error}") from error
    raise HelperError(entry.name, message, remedy=remedy)


def _read(pipe: BytePipe) -> bytes:
    """Read some bytes; empty at the end of the pipe, or if it broke."""
    try:
        return pipe.read(1 << 16)
    except OSError:  # broken: the end too
        return b""


def _magic_line(received: bytes) -> tuple[str, str, bytes] | None:
    """The text before the magic word, the rest of its line, and the bytes after; None if it has not come yet."""
    before, found, after = received.partition(MAGIC_WORD.encode() + b" ")
    if not found or b"\n" not in after:
        return None
    answer, _, rest = after.partition(b"\n")
    return before.decode(errors="replace"), answer.decode(errors="replace"), rest


def _start_error(entry: HostEntry, pipe: BytePipe, received: bytes) -> ClusterddpError:
    """Return the error that says why the remote helper did not start, from its exit status and last output."""
    status = pipe.exit_status()
    lines = (pipe.stderr().strip() or received.decode(errors="replace").strip()).splitlines()
    last = f": {lines[-1][:300]}" if lines else ""
    setting = "set ansible_python_interpreter to a Python 3.8 or newer"
    if status == NO_PYTHON:
        program = entry.ansible_python or "python3"
        return NoPythonError(entry.name, f"no {program} on the host", remedy=setting)
    if status == TOO_OLD:
        return NoPythonError(entry.name, "the host's Python is older than 3.8", remedy=setting)
    if MAGIC in received:
        return HelperError(entry.name, "the helper on the host is of another version")
    if status is None or status in TRANSIENT_STATUSES:
        return UnreachableError(entry.name, f"the connection was lost while the helper started{last}")
    return HelperError(entry.name, f"the helper did not start (exit {status}){last}")
