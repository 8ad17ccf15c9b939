"""What commands print besides tables: our lines on stderr, job output on stdout, the proofs of a stop."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import select
import sys
import threading
from typing import IO, TYPE_CHECKING

from clusterddp.cli.command_lines import completed
from clusterddp.text.folding import cut_in_the_middle, folded_names
from clusterddp.text.printable import one_line
from clusterddp.text.units import human_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterddp.api.cluster import Cluster, Proof
    from clusterddp.logs import Event, Renderer

OURS = "clusterddp: "  # begins every stderr line of ours
_WIPE = "\r\x1b[K"

_PLAIN = {"✓": "+", "✗": "x", "–": "-", "…": "...", "→": "->", "×": "x", "·": "-", "°": " deg", "±": "+-"}


def have_plain_signs() -> None:
    """Write what stdout or stderr cannot encode otherwise: our signs by plain ones, the rest as Python's escapes."""
    codecs.register_error("clusterddp", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="clusterddp")


def _plain(error: UnicodeError) -> tuple[str, int]:
    """An error handler of ``codecs``: stand-ins for the letters that could not be encoded, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(_PLAIN.get(one) or one.encode("unicode_escape").decode() for one in letters), error.end


def say_warm(cluster: Cluster) -> None:
    """Which hosts have a process that waits for a next run, and how large it is."""
    found = cluster.warm_servers()
    if found:
        most = human_size(max(found.values()))
        hosts = folded_names(list(found))
        say(f"{hosts}: a warm server waits for the next run ({most} at most); `clusterddp down` ends it")


@contextlib.contextmanager
def writer(renderer: Renderer) -> Iterator[Callable[[list[Event]], None]]:
    """A function that writes batches of log events to stdout; a half drawn line is cleared at the end."""
    output = sys.stdout.buffer
    # Only a terminal has a half drawn line. A pipe's reader may pause: nobody else is to wait for it.
    alone: contextlib.AbstractContextManager[object] = STANDING.lock if renderer.partials else contextlib.nullcontext()

    def write(events: list[Event]) -> None:
        with alone:
            output.write(renderer.draw(events))
            output.flush()
        while renderer.notices:
            say(renderer.notices.pop(0))

    def hide() -> None:
        output.write(renderer.hide())
        output.flush()

    STANDING.hide_output = hide if renderer.partials else None
    try:
        yield write
    except BaseException:
        if takes_more(output):  # else Ctrl-C would wait for a reader who has paused
            hide()
        raise
    finally:
        STANDING.hide_output = None
    hide()


def report(run: str, proofs: list[Proof]) -> int:
    """Say each host's proof; 0 if every host is proved empty, else 1."""
    for proof in proofs:
        if proof.error:
            say(f"{run}: {proof.error}; `clusterddp stop {run}` again finishes the work")
        else:
            say(f"{run}: {proof.host}: {proof.summary}")
    return 0 if all(proof.proved_empty for proof in proofs) else 1


class StandingLine:
    """The line on stderr's terminal that says what is being done now: replaced by the next, wiped before all else.

    Attributes:
        lock: Of all that writes lines of ours.
        hide_output: Clears a half drawn line of the job's output, where there may be one.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.hide_output: Callable[[], None] | None = None
        self._shown = ""
        self._asking = False
        self._on_line = False  # whether the question's line is not ended yet

    def show(self, text: str) -> None:
        """Put a line in its place, cut to the terminal's width: of a wrapped one only the end could be wiped."""
        with self.lock:
            if self._asking or text == self._shown:
                return
            width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            sys.stderr.write(_WIPE + cut_in_the_middle(f"{OURS}{one_line(text)}…", width - 1))
            sys.stderr.flush()
            self._shown = text

    def wipe(self) -> None:
        """Leave its place empty, for what comes there now."""
        with self.lock:
            if self.hide_output:
                self.hide_output()
            if self._shown or self._on_line:
                sys.stderr.write("\n" if self._on_line else _WIPE)
                sys.stderr.flush()
                self._shown, self._on_line = "", False

    @contextlib.contextmanager
    def nothing_shown(self) -> Iterator[None]:
        """Hide the status line while the block prompts the user."""
        with self.lock:
            self.wipe()
            self._asking = self._on_line = True
        try:
            yield
        finally:
            with self.lock:
                self._asking = self._on_line = False


STANDING = StandingLine()


def say(line: str) -> None:
    """One stderr line of ours; whatever it quotes, it is one line, and a terminal obeys nothing in it."""
    with STANDING.lock:
        STANDING.wipe()
        sys.stderr.write(f"{OURS}{one_line(completed(line))}\n")
        sys.stderr.flush()


def say_event(event: str, line: str) -> None:
    """Say what has befallen a run; a lost host's stream has told of itself."""
    if event != "lost":
        say(line)


def put(line: str) -> None:
    """One stdout line, as ``say``."""
    STANDING.wipe()
    sys.stdout.write(f"{one_line(line)}\n")


def takes_more(output: IO[bytes]) -> bool:
    """Whether a write does not wait: a terminal or a pager may be paused. Files always take more."""
    return bool(select.select([], [output], [], 0)[1])
