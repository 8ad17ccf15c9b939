"""``clusterddp top``: watch what hosts and ranks do; elsewhere than on a terminal one look and the end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

import click

from clusterddp.cli.session import open_cluster
from clusterddp.errors import UsageError
from clusterddp.runs import openmetrics as metrics
from clusterddp.runs.watch_hosts import HOSTS_INTERVAL, RATE_PAUSE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clusterddp.runs.top_looks import TopLook
    from clusterddp.runs.watch_hosts import Top

_TOP, _BELOW, _LINE_END = "\x1b[H", "\x1b[J", "\x1b[K"


def act(inventory: Path | None, limit: str | None, run: str | None, *, as_json: bool, openmetrics: Path | None) -> int:
    """Show one look, or on a terminal one after the other until the run ends or Ctrl-C; return the exit code."""
    if openmetrics and not openmetrics.parent.is_dir():
        remedy = "make it, or name another"
        raise UsageError(f"--openmetrics {openmetrics}: there is no folder {openmetrics.parent}", remedy=remedy)
    with open_cluster(inventory, limit) as cluster:
        top = cluster.top(run)
        if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb" or (run and not top.live):
            _show(top.settled(), as_json=as_json, file=openmetrics)
            return 0
        with contextlib.suppress(KeyboardInterrupt):  # only the looking ends
            _watch(top, as_json=as_json, file=openmetrics)
    return 0


def _watch(top: Top, *, as_json: bool, file: Path | None) -> None:
    """Show look after look, until the run has ended; at a new size of the terminal the last one again."""
    resized = threading.Event()
    had_run, pause = top.live, RATE_PAUSE
    with _calling_at_resize(resized.set):
        click.echo("" if as_json else "\x1b[2J", nl=False)
        while True:
            look = top.look()
            _show(look, as_json=as_json, file=file, in_place=not as_json)
            if had_run and not top.live:
                return
            due = time.monotonic() + pause
            while (left := due - time.monotonic()) > 0:
                if resized.wait(left):
                    resized.clear()
                    if not as_json:
                        _show(look, as_json=False, file=None, in_place=True)
            pause = HOSTS_INTERVAL


@contextlib.contextmanager
def _calling_at_resize(call: Callable[[], None]) -> Iterator[None]:
    before = signal.signal(signal.SIGWINCH, lambda *_: call())
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


def _show(look: TopLook, *, as_json: bool, file: Path | None, in_place: bool = False) -> None:
    """Write one look to stdout, ``in_place`` over the one before, and to ``file`` as OpenMetrics."""
    if file:
        _write(file, look)
    if as_json:
        click.echo(json.dumps(look.to_json()))
        return
    from clusterddp.cli.top_tables import lines  # noqa: PLC0415 - --json needs no rich

    shown = lines(look)
    if not in_place:
        click.echo("\n".join(shown))
        return
    room = max(2, shutil.get_terminal_size().lines - 1)
    if len(shown) > room:
        shown = [*shown[: room - 1], f"… {len(shown) - room + 1} lines more than the terminal has"]
    click.echo(_TOP + "".join(f"{line}{_LINE_END}\n" for line in shown) + _BELOW, nl=False)


def _write(file: Path, look: TopLook) -> None:
    try:
        metrics.write(file, look)
    except OSError as error:
        remedy = "name a file in a folder that you can write"
        raise UsageError(f"--openmetrics {file}: {error.strerror}", remedy=remedy) from error
