"""Print what is not a table: our own messages on stderr, job output on stdout, the proofs of a stop."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import select
import sys
import threading
from typing import IO, TYPE_CHECKING

from clusterddp.cli.command_lines import complete_commands
from clusterddp.text.folding import cut_in_the_middle, folded_names
from clusterddp.text.printable import one_line
from clusterddp.text.units import human_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clusterddp.api.cluster import Cluster
    from clusterddp.logs.merge import Event
    from clusterddp.logs.render import Renderer
    from clusterddp.runs.proof import Proof
    from clusterddp.runs.run import Run

MESSAGE_PREFIX = "clusterddp: "  # begins every line that we print on stderr
MAX_PROOFS = 32  # hosts whose proofs of a stop are shown one by one
STDOUT, STDERR = 1, 2
_ERASE_LINE = "\r\x1b[K"

_ASCII = {"✓": "+", "✗": "x", "–": "-", "…": "...", "→": "->", "×": "x", "·": "-", "°": " deg", "±": "+-"}


def replace_unencodable() -> None:
    """Replace characters that stdout or stderr cannot encode: our symbols by ASCII, the rest by Python's escapes."""
    codecs.register_error("clusterddp", _replacement)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="clusterddp")


def _replacement(error: UnicodeError) -> tuple[str, int]:
    """Error handler for ``codecs``: return replacements for the unencodable characters and the next position."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(_ASCII.get(letter) or letter.encode("unicode_escape").decode() for letter in letters), error.end


def write_file(path: Path, text: str) -> None:
    """Write a file that the user named; if that fails, a file that was not there before is removed again.

    What is there is not replaced by a rename: it may be a link, a pipe or a device. Raises OSError.
    """
    is_new = not os.path.lexists(path)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError:
        if is_new:
            path.unlink(missing_ok=True)
        raise


def say_warm_servers(cluster: Cluster) -> None:
    """Print which hosts have a warm server (torch imported ahead of the next run), and how much memory it uses."""
    memory = cluster.warm_servers()
    if memory:
        most = human_size(max(memory.values()))
        hosts = folded_names(list(memory))
        say(f"{hosts}: a warm server waits for the next run ({most} at most); `clusterddp down` ends it")


@contextlib.contextmanager
def writer(
    renderer: Renderer,
    end_status: Callable[[], None] = lambda: None,
    note_drawn: Callable[[], None] = lambda: None,
    patience: float | None = None,
) -> Iterator[Callable[[list[Event]], None]]:
    """Yield a function that writes batches of log events to stdout; clear a partly drawn line at the end.

    ``end_status`` ends the status line before the first output. ``note_drawn`` is called when a batch is drawn: what
    of it is not written then, because of Ctrl-C, the next writer of the same renderer writes first.
    ``patience``: raise TimeoutError where the reader takes nothing for so many seconds; None: wait for him.
    """
    output = sys.stdout.buffer
    # Only a terminal shows partial lines, which other output would break. A pipe's reader may pause, so no lock there.
    lock: contextlib.AbstractContextManager[object] = (
        STATUS_LINE.lock if renderer.partials else contextlib.nullcontext()
    )

    def write(events: list[Event]) -> None:
        if renderer.shows(events):
            end_status()
        with lock:
            renderer.unwritten += renderer.draw(events)
            note_drawn()
            _write_all(output, renderer.unwritten, patience)
        while renderer.notices:
            say(renderer.notices.pop(0))

    def hide_partial_line() -> None:
        renderer.unwritten += renderer.hide()
        _write_all(output, renderer.unwritten, patience)

    STATUS_LINE.hide_output = hide_partial_line if renderer.partials else None
    try:
        yield write
    except BaseException:
        # else Ctrl-C would wait for a reader who has paused or is slow
        if not renderer.unwritten and can_write_now(output):
            hide_partial_line()
        raise
    finally:
        STATUS_LINE.hide_output = None
    hide_partial_line()


def _write_all(output: IO[bytes], unwritten: bytearray, patience: float | None) -> None:
    """Write all bytes, and remove what is written; after Ctrl-C, what is left there is exactly what was not.

    Raises TimeoutError where the reader takes nothing for ``patience`` seconds.
    """
    output.flush()
    raw = getattr(output, "raw", output)  # the buffer does not tell how much it wrote before Ctrl-C
    while unwritten:
        if patience is not None and not can_write_now(output, patience):
            raise TimeoutError
        piece = unwritten if patience is None else unwritten[: select.PIPE_BUF]  # so much does not block
        written: list[int | None] = []  # None: it takes nothing now, and does not block
        try:
            written.extend(map(raw.write, [piece]))  # one call, so that Ctrl-C comes before it or after its result
        finally:
            del unwritten[: sum(filter(None, written))]
        if written == [None]:
            select.select([], [output], [])


def report_proofs(run: str, proofs: list[Proof]) -> int:
    """Print the hosts' proofs of a stop, of many hosts equal ones once; return 0 if all are proved empty, else 1."""
    hosts_by_summary: dict[str, list[str]] = {}
    for proof in proofs:
        if proof.error:
            say(f"{run}: {proof.error}; `clusterddp stop {run}` again finishes the work")
        elif len(proofs) <= MAX_PROOFS:
            say(f"{run}: {proof.host}: {proof.summary}")
        else:
            hosts_by_summary.setdefault(proof.summary, []).append(proof.host)
    for summary, hosts in hosts_by_summary.items():
        say(f"{run}: {folded_names(hosts)}: {summary}")
    return 0 if all(proof.proved_empty for proof in proofs) else 1


def report_unasked(run: Run, proofs: list[Proof]) -> None:
    """Say for which hosts of the run there is no proof because ``--limit`` leaves them out."""
    pattern = run.cluster.inventory.pattern
    if not pattern:
        return
    latest = run.latest()
    others = sorted({*latest.hosts, *latest.record.lost} - {proof.host for proof in proofs})
    if others:
        say(f"{folded_names(others)}: not asked (--limit {pattern}), so nothing is proved there")


class StatusLine:
    """The status line on a terminal's stderr: replaced by the next one, erased before other text."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # held while a line is written to the terminal
        # clears a partly drawn line of the job's output; None: there is none
        self.hide_output: Callable[[], None] | None = None
        self._shown = ""
        self._prompting = False
        self._prompt_line_open = False  # whether the prompt's line has not ended yet

    def show(self, text: str) -> None:
        """Show a status line, cut to the terminal's width: a wrapped line could not be erased whole."""
        with self.lock:
            if self._prompting or text == self._shown:
                return
            width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            sys.stderr.write(_ERASE_LINE + cut_in_the_middle(f"{MESSAGE_PREFIX}{one_line(text)}…", width - 1))
            sys.stderr.flush()
            self._shown = text

    def erase(self) -> None:
        """Erase the status line before other text."""
        with self.lock:
            if self.hide_output:
                self.hide_output()
            if self._shown or self._prompt_line_open:
                sys.stderr.write("\n" if self._prompt_line_open else _ERASE_LINE)
                sys.stderr.flush()
                self._shown, self._prompt_line_open = "", False

    @contextlib.contextmanager
    def hidden_for_prompt(self) -> Iterator[None]:
        """Hide the status line while the block prompts the user."""
        with self.lock:
            self.erase()
            self._prompting = self._prompt_line_open = True
        try:
            yield
        finally:
            with self.lock:
                self._prompting = self._prompt_line_open = False


STATUS_LINE = StatusLine()


def say(line: str) -> None:
    """Print one message on stderr, as one line without control characters, whatever it quotes."""
    with STATUS_LINE.lock:
        STATUS_LINE.erase()
        sys.stderr.write(f"{MESSAGE_PREFIX}{one_line(complete_commands(line))}\n")
        sys.stderr.flush()


def say_last(line: str) -> None:
    """Print a message as ``say`` does, unless stderr cannot be written: then the exit code alone tells."""
    with writing_last():
        say(line)


@contextlib.contextmanager
def writing_last() -> Iterator[None]:
    """Ignore errors of writing to stderr in the block: a full disk, or no reader."""
    try:
        yield
    except OSError:
        discard(STDERR)


def discard(number: int) -> None:
    """Discard what is still buffered for a standard stream, which would fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def say_event(event: str, line: str) -> None:
    """Print an event of a run, except a lost host, which the reader of its log stream has reported already."""
    if event != "lost":
        say(line)


def put(line: str) -> None:
    """Print one line on stdout; otherwise like ``say``."""
    STATUS_LINE.erase()
    sys.stdout.write(f"{one_line(line)}\n")


def can_write_now(output: IO[bytes], timeout: float = 0.0) -> bool:
    """Whether a write would not block, or not in so many seconds, as while a pager is paused. A file never blocks."""
    return bool(select.select([], [output], [], timeout)[1])
