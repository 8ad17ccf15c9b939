"""The user's side of an attached pdb: lines with editing on a terminal, plain lines of stdin elsewhere."""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import sys
import time
from typing import TYPE_CHECKING

from clusterddp.cli.output import say

if TYPE_CHECKING:
    from clusterddp.runs.stopped_ranks import PdbSession

_READ_SIZE = 1 << 15
_LEAVING = {"q", "quit", "exit", "EOF"}  # as Ctrl-D
_TWICE = 2.0  # seconds between two Ctrl-C that belong together
_BRIEFLY = 1.0  # seconds: a script that runs for longer is said to


def converse(session: PdbSession) -> bool:
    """Carry what the user types to pdb, and its output to stdout; return whether the user has detached."""
    keys = Keys()
    running = told = False
    prompt: str | None = None  # that is to be answered
    pressed = -_TWICE  # when Ctrl-C was pressed last
    while True:
        try:
            if prompt is None:
                if not _ready(session, keys, running=running, told=told):
                    if keys.ended and (keys.terminal or not keys.waiting):
                        return _leave(session)
                    say(f"rank {session.stop.rank} runs; Ctrl-C stops it where it is, Ctrl-D detaches")
                    told = True
                    continue
                message = session.take()
                if message is None:
                    return False
                sys.stdout.write(message.text)
                sys.stdout.flush()
                running = message.running or (running and message.prompt is None)
                prompt = message.prompt
                continue
            told = False
            line = keys.line(prompt)
            if line is None or line.strip() in _LEAVING:
                return _leave(session)
            prompt = None
            session.send_line(line)
        except KeyboardInterrupt as interrupt:
            if interrupt.args:  # SIGTERM
                raise
            if not running and time.monotonic() - pressed < _TWICE:  # C code may hear nothing of an interrupt
                session.detach()
                return True
            pressed = time.monotonic()
            session.interrupt()
            if running:
                say(f"rank {session.stop.rank} is to stop: its main thread does so at its next line of Python")


def _ready(session: PdbSession, keys: Keys, *, running: bool, told: bool) -> bool:
    """Wait for a message; False if the input has ended while the script runs, or the user should know that it runs."""
    while True:
        watched = [session.handle, 0] if running and not keys.ended else [session.handle]
        briefly = running and not (told and (keys.waiting or not keys.ended))
        ready, _, _ = select.select(watched, [], [], _BRIEFLY if briefly else None)
        if session.handle in ready:
            return True
        if not ready:
            return False
        keys.read()
        if keys.ended and keys.terminal:
            return False


def _leave(session: PdbSession) -> bool:
    """Detach, and show what still comes; return True."""
    session.detach()
    with contextlib.suppress(KeyboardInterrupt):
        while message := session.take():
            sys.stdout.write(message.text)
            sys.stdout.flush()
    return True


class Keys:
    """What the user types: lines on demand, and before they are asked for."""

    def __init__(self) -> None:
        self.terminal = os.isatty(0)
        self.ended = False  # Ctrl-D, or the end of the file
        self._typed = b""
        if self.terminal:
            with contextlib.suppress(ImportError):  # a Python without it
                importlib.import_module("readline")  # lets input() edit the line

    @property
    def waiting(self) -> bool:
        """Whether a line was typed that nobody has asked for yet."""
        return bool(self._typed)

    def read(self) -> None:
        """Take what is there."""
        data = os.read(0, _READ_SIZE)
        self._typed += data
        self.ended = self.ended or not data

    def line(self, prompt: str) -> str | None:
        """Return the next line; None at the end of the input."""
        while self.terminal and not self._typed:
            try:
                return input(prompt)
            except KeyboardInterrupt as interrupt:
                if interrupt.args:  # SIGTERM
                    raise
                sys.stdout.write("\n")  # the line is given up
            except EOFError:
                sys.stdout.write("\n")
                return None
        while b"\n" not in self._typed and not self.ended:
            self.read()
        line, _, self._typed = self._typed.partition(b"\n")
        if not line and not self._typed and self.ended:
            return None
        sys.stdout.write(f"{prompt}{line.decode(errors='replace')}\n")
        return line.decode(errors="replace")
