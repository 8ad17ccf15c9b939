"""Extract the lines of the first failed worker's output that explain the failure, shown at the end of a failed run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clusterddp.errors import ClusterddpError
from clusterddp.hosts.ask import ask
from clusterddp.remote.shared.processes.process_records import LastWords, LastWordsRequest
from clusterddp.remote.shared.verdict.failures import OUT_OF_MEMORY, SENT_FROM_OUTSIDE, SIGNAL, without_ignored
from clusterddp.runs.ending import SILENCE_LIMIT
from clusterddp.text.folding import cut_in_the_middle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.remote.shared.verdict.judge import Failure
    from clusterddp.runs.run_on_hosts import RunOnHosts

TIMEOUT = 10.0  # seconds for the worker's host to answer
FIRST_LINES, LAST_LINES = 8, 14  # lines of a long traceback: where it began, and how it ended
LINES_WITHOUT_TRACEBACK = 10  # lines of stderr where there is no traceback
MAX_LINE_LENGTH = 400  # characters of a line
_TRACEBACK = re.compile(r"(  \+ Exception Group )?Traceback \(most recent call last\):")
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
_CRASH = re.compile(r"Fatal Python error:|terminate called ")


def failure_output(run: RunOnHosts, failure: Failure) -> list[str]:
    """Return the output lines of a failed worker with a heading; empty if there are none or they cannot be read.

    A worker that was killed from outside printed nothing about it, so nothing is shown for it.
    """
    worker = failure.worker
    if worker.signal in SENT_FROM_OUTSIDE and worker.cause in {SIGNAL, OUT_OF_MEMORY}:
        return []
    try:
        spool = _spool(run, failure)
        if not spool:
            return []
        asked = LastWordsRequest(spool=spool, start=worker.start, local_rank=worker.local_rank)
        lines = relevant_lines(ask(run.reader(failure.host), "last_words", asked, LastWords, timeout=TIMEOUT).text)
    except ClusterddpError:  # no longer available: the verdict says what is known
        return []
    if not lines:
        return []
    heading = "traceback" if any(map(_TRACEBACK.match, lines)) else "last lines"
    shows = f"`clusterddp logs {run.id} --rank {worker.rank} --stream err` shows all"
    return [f"{heading} of rank {worker.rank} ({failure.host}:{worker.local_rank}):", *shorten(lines, shows)]


def _spool(run: RunOnHosts, failure: Failure) -> str:
    """Return the folder of the attempt in which a worker failed, on its host; empty if that is nowhere known.

    The run is looked at again if it was looked up in another attempt, or before the host joined it.
    """
    known = run.spools.get(failure.host) if failure.attempt == run.attempt else ""
    view = None if known else run.view(brief=True, quiet=True, patience=SILENCE_LIMIT)
    return known or (view.spools.get(failure.attempt, {}).get(failure.host, "") if view else "")


def relevant_lines(text: str) -> list[str]:
    """Return the lines of a worker's stderr that explain its failure: the last traceback and those chained to it.

    Without a traceback: everything from the crash message on, or the last lines.
    """
    told = without_ignored(text)
    lines = [line.rstrip() for line in (told if told.strip() else text).splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    begins = [number for number, line in enumerate(lines) if _TRACEBACK.match(line)]
    if begins:
        begin = begins.pop()
        while begins and any(line.startswith(_CHAINED) for line in lines[begins[-1] : begin]):
            begin = begins.pop()
        if begin > 3 and lines[begin - 2].startswith(_CHAINED):  # an exception that was not raised: without a traceback
            begin -= 4
        return lines[begin:]
    crash = next((number for number, line in enumerate(lines) if _CRASH.match(line)), None)
    return lines[-LINES_WITHOUT_TRACEBACK:] if crash is None else lines[crash:]


def shorten(lines: Sequence[str], shows: str) -> list[str]:
    """Indent lines; if there are many, replace the middle with a count and ``shows``, the command that shows all."""
    cut = [cut_in_the_middle(line, MAX_LINE_LENGTH) for line in lines]
    left_out = len(cut) - FIRST_LINES - LAST_LINES
    if left_out > 1:
        cut[FIRST_LINES : FIRST_LINES + left_out] = [f"… {left_out} lines; {shows}"]
    return [f"  {line}" for line in cut]
