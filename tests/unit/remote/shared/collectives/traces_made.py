"""Two looks at workers, written in a few words a rank.

    look({0: "ar4 ar4*", 1: "ar4", 2: "ar4 | 1/tp: ba*"})

A rank's groups stand between bars, each begins with ``NAME:`` or ``NAME/DESCRIPTION:`` (default: the default group).
An operation is two letters and its size: ``ar4`` is done, ``ar4*`` was called, ``ar4>`` has started. ``@90`` before the
first is its sequence number. Words in brackets come first: ``[busy]``, ``[io]`` (between the looks), ``[dumb]`` (no
trace), ``[stopped]``, ``[store:WAIT+2]`` (which begins two times more between the looks), ``[start:1]`` and
``[restarts:0]`` (as many as starts if it is not said);
``[main:lock]`` is how the main thread waits, and ``[thread:sleep+9]`` another, which begins so nine times more.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clusterddp.remote.shared.collectives.trace_records import (
    CREATED,
    DONE,
    STARTED,
    GroupTrace,
    Operation,
    ThreadWait,
    WorkerTrace,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = {"ar": "all_reduce", "ag": "all_gather", "ba": "barrier", "br": "broadcast", "re": "reduce", "ga": "gather"}
PROGRESS = {"": DONE, "*": CREATED, ">": STARTED}
_OPERATION = re.compile(r"([a-z]{2})(\d*)([*>]?)")
_WORDS = re.compile(r"\[([^]]*)\]\s*")


def look(ranks: Mapping[int, str], *, second: bool = False) -> list[WorkerTrace]:
    """One look; at the second a second has passed."""
    return [worker(rank, text, second=second) for rank, text in ranks.items()]


def worker(rank: int, text: str, *, second: bool = False) -> WorkerTrace:
    words = _WORDS.findall(text)
    values = dict(word.split(":", 1) for word in words if ":" in word)
    dumb, stopped = "dumb" in words, "stopped" in words
    rest = _WORDS.sub("", text)
    groups = [group(number, part, second=second) for number, part in enumerate(rest.split("|")) if part.strip()]
    start = int(values.get("start", 0))
    waits = [word.partition("+") for word in values.get("store", "").split()]
    pid = 1000 + rank + 100 * start
    return WorkerTrace(
        rank=rank,
        local_rank=0,
        start=start,
        pid=pid,
        state="T" if stopped else "S",
        wchan="",
        cpu_ms=900 if second and "busy" in words else 10,
        io_bytes=1 << 21 if second and "io" in words else 10,
        children=(),
        waits=tuple(name for name, _, _ in waits),
        restarts=int(values.get("restarts", start)),
        calls=tuple(1 + int(more or 0) * second for _, _, more in waits),
        groups=() if dumb or stopped else tuple(groups),
        why="it does not answer" if dumb else "it is stopped (SIGSTOP)" if stopped else "",
        threads=tuple(
            thread(number, values[word], second=second)
            for word, number in (("main", pid), ("thread", 7))
            if word in values
        ),
    )


def thread(number: int, text: str, *, second: bool) -> ThreadWait:
    how, _, more = text.partition("+")
    return ThreadWait(number, how, 5 + (int(more or 0) if second else 0))


def group(ident: int, text: str, *, second: bool = False) -> GroupTrace:
    head, colon, rest = text.strip().partition(":")
    name, _, description = (head if colon else "0/default_pg").partition("/")
    words = (rest if colon else text).split()
    first = int(words.pop(0)[1:]) if words and words[0].startswith("@") else 1
    operations: list[Operation] = []
    rows = []
    for number, word in enumerate(words):
        found = _OPERATION.fullmatch(word)
        assert found, word
        kind, size, mark = found.groups()
        operation = Operation(NAMES[kind], f"float32 [{size}]" if size else "", kind + size)
        if operation not in operations:
            operations.append(operation)
        age = (len(words) - number) * 1000 + 10**6 * (100 - 10 * ident) + (10**6 if second else 0)
        rows.append([first + number, operations.index(operation), PROGRESS[mark], age])
    return GroupTrace(name, description, ident, tuple(operations), rows)
