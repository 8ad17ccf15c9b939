"""``run --timeline FILE``: record how long each step of a run's start takes; write it when the command ends."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import TYPE_CHECKING

from clusterddp.cli.output import say, write_file
from clusterddp.errors import ClusterddpError
from clusterddp.runs.timeline import SPAN_LOGGER, THIS_MACHINE, TimedSpan, as_page, as_text, start_spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clusterddp.api.cluster import Cluster


class _Recorder(logging.Handler):
    """Collects timed spans: those that hosts' operations log, and the steps of this machine."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[TimedSpan] = []
        now = time.time()
        self._step, self._step_began = "start-up", now - _process_age()

    def emit(self, record: logging.LogRecord) -> None:
        host, name, seconds = getattr(record, "span")  # noqa: B009 - a LogRecord has any attributes
        self.spans.append(TimedSpan(host=host, name=name, began=record.created - seconds, ended=record.created))

    def step(self, text: str) -> None:
        """End the current step of this machine and begin one named by the first word of ``text`` (empty: none)."""
        name, now = (text.split() or [""])[0], time.time()
        if name != self._step:
            if self._step:
                self.spans.append(TimedSpan(host=THIS_MACHINE, name=self._step, began=self._step_began, ended=now))
            self._step, self._step_began = name, now

    def recording_steps(self, show: Callable[[str], None]) -> Callable[[str], None]:
        """Return ``show``, extended to record the steps too."""

        def show_and_record(text: str) -> None:
            self.step(text)
            show(text)

        return show_and_record


def _process_age() -> float:
    """Return this process's age in seconds; 0 if the kernel does not report it."""
    try:
        with open("/proc/self/stat", "rb") as stat:  # noqa: PTH123 - no file in the sense of a path
            ticks = int(stat.read().rpartition(b")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, AttributeError):  # no Linux
        return 0.0


@contextlib.contextmanager
def record_timeline(path: Path | None, cluster: Cluster) -> Iterator[_Recorder | None]:
    """Record while the block starts and follows a run of ``cluster``; write ``path`` at its end, if it is given."""
    if path is None:
        yield None
        return
    recorder = _Recorder()
    SPAN_LOGGER.addHandler(recorder)
    SPAN_LOGGER.setLevel(logging.DEBUG)
    try:
        yield recorder
    finally:
        SPAN_LOGGER.removeHandler(recorder)
        SPAN_LOGGER.setLevel(logging.NOTSET)
        if cluster.launched is not None:
            recorder.step("")
            _write(path, recorder.spans, cluster)


def _write(path: Path, spans: list[TimedSpan], cluster: Cluster) -> None:
    """Write the spans, with those that the run's hosts recorded, as HTML or text by the file's suffix.

    If that fails, the exit code remains the run's own.
    """
    run = cluster.launched
    if run is None:
        return
    try:
        view = cluster.find_view(run.id)
        spans = [*spans, *start_spans([*view.earlier, *view.nodes])]  # the first start may be an earlier attempt's
    except ClusterddpError as error:
        say(f"--timeline: without what the hosts did themselves: {error}")
    title = f"run {run.id}: where its start took its time"
    try:
        write_file(path, as_page(spans, title) if path.suffix == ".html" else as_text(spans))
    except OSError as error:
        say(f"--timeline {path}: cannot be written ({error.strerror})")
