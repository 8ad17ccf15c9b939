"""Ctrl-C and SIGTERM: both end a command in the same way, with different exit codes."""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import select
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.remote.shared.processes.exit_codes import EXIT_INTERRUPTED, EXIT_STOPPED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.runs.run import Run

REPEAT = 1.0  # seconds in which another SIGTERM is the same one: GNU timeout sends it to its child and to its group
_WAKE = signal.SIGURG  # the system ignores it by default: a program that is started or takes our place is safe from it
_WAKE_AFTER = (0.02, 0.05, 0.5)  # seconds between tries: a signal may come just before the main thread begins to wait
_sigterm_at = -math.inf  # when SIGTERM last acted as Ctrl-C


class WatchEndedError(KeyboardInterrupt):
    """Ctrl-C that only stopped watching a run; ``line`` is the message for it."""

    def __init__(self, line: str) -> None:
        super().__init__()
        self.line = line


@contextlib.contextmanager
def explaining_ctrl_c(run: Run) -> Iterator[None]:
    """If Ctrl-C ends the block, say that the run goes on, how to watch it again, and how to stop it."""
    try:
        yield
    except KeyboardInterrupt:
        if not run.live:  # it has ended, so nothing goes on
            raise
        shows = f"`clusterddp logs --follow {run.id}` shows it again"
        raise WatchEndedError(f"run {run.id} goes on; {shows}, `clusterddp stop {run.id}` ends it") from None


def raise_on_ctrl_c() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, where it has ended the command until now (entry.py)."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def waking_main_thread() -> Iterator[None]:
    """While the block runs, let each signal end what the main thread waits for, whichever thread takes the signal.

    The system may give a signal to any thread of the process, such as one that starts or ends at that moment. Python
    runs the handler in the main thread, but does not wake that thread, which may wait for a lock for ever. Nor does it
    where the signal comes just before the wait begins, as at a prompt that was just shown.
    """
    taken, told = os.pipe()
    os.set_blocking(told, False)
    before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    waker = threading.Thread(target=_wake_main_thread, args=(taken, threading.get_ident()), name="signals", daemon=True)
    with _interrupting_only(_WAKE):
        waker.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            os.close(told)
            waker.join()
            os.close(taken)


@contextlib.contextmanager
def _interrupting_only(number: signal.Signals) -> Iterator[None]:
    """While the block runs, let this signal interrupt a system call and do nothing else.

    A handler in Python will not do: `input` runs it after the one that raised KeyboardInterrupt, with that exception
    set, and fails with SystemError. faulthandler's is in C; it writes a traceback, here to nowhere.
    """
    with Path(os.devnull).open("wb") as nowhere:
        faulthandler.register(number, file=nowhere, all_threads=False)
        signal.siginterrupt(number, True)
        try:
            yield
        finally:
            faulthandler.unregister(number)


def _wake_main_thread(taken: int, main: int) -> None:
    """Read the numbers of signals as they are taken; after each, send the main thread signals that are for it alone."""
    more = select.poll()  # select() takes no number beyond 1023, as inherited descriptors may leave us
    more.register(taken, select.POLLIN)
    while os.read(taken, 64):
        for pause in _WAKE_AFTER:
            if more.poll(pause * 1000):
                break
            signal.pthread_kill(main, _WAKE)


def treat_as_ctrl_c(*numbers: signal.Signals) -> None:
    """Let these signals act as Ctrl-C; ``exit_code`` distinguishes them."""
    for number in numbers:
        signal.signal(number, _interrupt)


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """Return 130 for Ctrl-C itself, 143 for a signal that acts as it."""
    return EXIT_STOPPED if interrupt.args else EXIT_INTERRUPTED


def _interrupt(number: int, _frame: object) -> None:
    global _sigterm_at  # noqa: PLW0603 - there is one process
    if number == signal.SIGTERM:
        now = time.monotonic()
        if now - _sigterm_at < REPEAT:
            return
        _sigterm_at = now
    raise KeyboardInterrupt("SIGTERM")  # that there is an argument tells `exit_code` that it was no Ctrl-C
