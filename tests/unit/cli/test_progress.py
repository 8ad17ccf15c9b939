"""The line that says what is being done now: whatever else is printed finds its place empty."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import threading
from typing import TYPE_CHECKING

from clusterddp.cli.output import STATUS_LINE, put, say
from clusterddp.cli.progress import Progress

if TYPE_CHECKING:
    import pytest

WIDTH = 40
END = b"\0"
LONG = "syncing: 296 MB of 600 MB, 148 MB/s, 2s left"


class Screen:
    """A terminal that is stdout and stderr while the context lasts; ``lines`` then stand on it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._written = bytearray()

    def __enter__(self) -> Screen:  # noqa: PYI034 - typing.Self is Python 3.11
        self._outer, self._inner = pty.openpty()
        fcntl.ioctl(self._inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self._terminal = open(self._inner, "w", encoding="utf-8", closefd=False)
        self._before = sys.stdout, sys.stderr
        sys.stdout = sys.stderr = self._terminal
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout, sys.stderr = self._before
        self._terminal.close()
        os.write(self._inner, END)
        self._reader.join()
        os.close(self._inner)
        os.close(self._outer)
        self.lines = lines_on_screen(self._written[: -len(END)].decode())

    def _read(self) -> None:
        while not self._written.endswith(END):
            self._written += os.read(self._outer, 1 << 16)


def lines_on_screen(text: str) -> list[str]:
    r"""What a terminal of WIDTH columns shows after it: lines that are too long go on below; ``\r\x1b[K`` wipes one."""
    rows = [""]
    for word in re.findall(r"\r\x1b\[K|\r?\n|.", text):
        if word == "\r\x1b[K":
            rows[-1] = ""
        elif word.endswith("\n"):
            rows.append("")
        else:
            if len(rows[-1]) == WIDTH:
                rows.append("")
            rows[-1] += word
    return rows


def test_every_line_of_ours_wipes_it_first() -> None:
    with Screen() as screen, Progress() as progress:
        progress.show("connecting 1/2")
        say("gpu00: its shell prints 'hello'")
        progress.show(LONG)
        put("on stdout")
        progress.show(LONG)
    assert screen.lines == ["clusterddp: gpu00: its shell prints 'hel", "lo'", "on stdout", ""]


def test_it_is_cut_to_the_terminals_width() -> None:
    with Screen() as screen:
        progress = Progress()
        progress.show(LONG)
    progress.end()
    (line,) = screen.lines
    assert (len(line), line.startswith("clusterddp: syncing"), line.endswith("2s left…")) == (WIDTH - 1, True, True)


def test_a_terminal_that_can_wipe_no_line_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with Screen() as screen, Progress() as progress:
        progress.show("connecting 1/2")
        say("ready")
    assert screen.lines == ["clusterddp: ready", ""]


def test_after_its_end_nothing_is_shown_any_more() -> None:
    with Screen() as screen:
        progress = Progress()
        progress.show("connecting 1/2")
        progress.end()
        progress.show("connecting 2/2")
    assert screen.lines == [""]


def test_its_end_comes_once_so_that_every_batch_of_a_run_may_say_it_and_lines_on_hold_stay_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hidden: list[bool] = []
    with Screen():
        progress = Progress()
        progress.end()
        monkeypatch.setattr(STATUS_LINE, "hide_output", lambda: hidden.append(True))
        progress.end()
    assert not hidden


def test_a_half_drawn_line_of_the_job_is_cleared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with Screen() as screen:
        sys.stdout.write("[0 gpu00:0] step 4")
        monkeypatch.setattr(STATUS_LINE, "hide_output", lambda: sys.stdout.write("\r\x1b[K"))
        say("gpu01 does not answer; trying again")
    assert screen.lines == ["clusterddp: gpu01 does not answer; tryin", "g again", ""]


def test_lines_of_several_threads_never_mix() -> None:
    def work(name: str) -> None:
        for _ in range(50):
            progress.show(f"{name} {LONG}")
            say(f"from {name}")

    with Screen() as screen, Progress() as progress:
        threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(screen.lines) == ["", *(f"clusterddp: from {name}" for name in "abcd" for _ in range(50))]
