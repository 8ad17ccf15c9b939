"""Print what is not a table: our messages on stderr, job output on stdout, the proofs of a stop."""

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
    from clusterddp.logs.merge import Event
    from clusterddp.logs.render import Renderer

OURS = "clusterddp: "  # begins every stderr line of ours
_WIPE = "\r\x1b[K"

_PLAIN = {"✓": "+", "✗": "x", "–": "-", "…": "...", "→": "->", "×": "x", "·": "-", "°": " deg", "±": "+-"}


def have_plain_signs() -> None:
    """Replace characters that stdout or stderr cannot encode: our symbols by ASCII, the rest by Python's escapes."""
    codecs.register_error("clusterddp", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="clusterddp")


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Error handler for ``codecs``: return replacements for the unencodable characters and the next position."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(_PLAIN.get(one) or one.encode("unicode_escape").decode() for one in letters), error.end


def say_warm(cluster: Cluster) -> None:
    """Say which hosts have a warm server that waits for the next run, and how much memory it uses."""
    found = cluster.warm_servers()
    if found:
        most = human_size(max(found.values()))
        hosts = folded_names(list(found))
        say(f"{hosts}: a warm server waits for the next run ({most} at most); `clusterddp down` ends it")


@contextlib.contextmanager
def writer(renderer: Renderer) -> Iterator[Callable[[list[Event]], None]]:
    """Yield a function that writes batches of log events to stdout; clear a partly drawn line at the end."""
    output = sys.stdout.buffer
    # Only a terminal has a half drawn line. A pipe's reader may pause: nobody else must wait for it.
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
    """Print each host's proof of a stop; return 0 if every host is proved empty, else 1."""
    for proof in proofs:
        if proof.error:
            say(f"{run}: {proof.error}; `clusterddp stop {run}` again finishes the work")
        else:
            say(f"{run}: {proof.host}: {proof.summary}")
    return 0 if all(proof.proved_empty for proof in proofs) else 1


class StandingLine:
    """The status line on a terminal's stderr: replaced by the next one, erased before other text."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # held by whoever writes a line of ours
        # clears a partly drawn line of the job's output, if there may be one
        self.hide_output: Callable[[], None] | None = None
        self._shown = ""
        self._asking = False
        self._on_line = False  # whether the question's line has not ended yet

    def show(self, text: str) -> None:
        """Show a status line, cut to the terminal's width: of a wrapped one only the end could be erased."""
        with self.lock:
            if self._asking or text == self._shown:
                return
            width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            sys.stderr.write(_WIPE + cut_in_the_middle(f"{OURS}{one_line(text)}…", width - 1))
            sys.stderr.flush()
            self._shown = text

    def wipe(self) -> None:
        """Erase the status line before other text."""
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
    """Print one message on stderr, as one line without control characters, whatever it quotes."""
    with STANDING.lock:
        STANDING.wipe()
        sys.stderr.write(f"{OURS}{one_line(completed(line))}\n")
        sys.stderr.flush()


def say_event(event: str, line: str) -> None:
    """Print an event of a run; a lost host has been reported by its stream already."""
    if event != "lost":
        say(line)


def put(line: str) -> None:
    """Print one line on stdout; otherwise like ``say``."""
    STANDING.wipe()
    sys.stdout.write(f"{one_line(line)}\n")


def takes_more(output: IO[bytes]) -> bool:
    """Whether a write would not block: a terminal or a pager may be paused. A file never blocks."""
    return bool(select.select([], [output], [], 0)[1])
