"""Select log lines: the arguments of the operation ``tail`` on a host."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict

from clusterddp.errors import UsageError
from clusterddp.remote.shared.logs.tail_request import TailRequest
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.text.units import parse_duration, ranks, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

STREAMS = ("out", "err", "both")
_MAX = (1 << 63) - 1  # the largest number that a host reads


class Words(TypedDict, total=False):
    """A selection as keywords named like the options of `logs`, with text as on the command line or with values."""

    rank: str | int | Iterable[int]
    host: str
    stream: str
    since: str | int
    until: str | int
    grep: str
    tail: int


def moment(value: Any, now_ns: int) -> int:
    """Return ns since the epoch for a duration before ``now_ns`` (``10m``), an ISO date, or a number of ns."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    try:
        found = value if is_number else _moment(str(value).strip(), now_ns)
    except (ValueError, OverflowError, OSError):
        found = -1
    if not 0 <= found <= _MAX:  # before 1970, or too large for a host
        raise UsageError(f"{shown(value)} is no time", remedy="write 10m (ago) or 2026-01-31T12:00")
    return found


def _moment(text: str, now_ns: int) -> int:
    with contextlib.suppress(UsageError):
        return now_ns - int(parse_duration(text) * 1e9)
    return int(datetime.fromisoformat(text).timestamp() * 1e9)


def selected_by(words: Words, now_ns: int) -> Selection:
    """Build a Selection from keywords, which are named like the options of `logs`.

    ``now_ns`` is what durations such as ``10m`` ago are subtracted from. Raises ``UsageError``, which names the
    keyword, for an unknown one or an invalid value.
    """
    unknown = sorted(set(words) - set(Words.__annotations__))
    if unknown:
        options = ", ".join(Words.__annotations__)
        raise UsageError(f"{unknown[0]} is no option of logs", remedy=f"use one of {options}")
    times = {name: moment(value, now_ns) for name, value in words.items() if name in ("since", "until")}
    return Selection(
        pattern=words.get("host"),
        ranks=ranks(words.get("rank")),
        stream=words.get("stream", "both"),
        since_ns=times.get("since"),
        until_ns=times.get("until"),
        grep=words.get("grep"),
        tail=words.get("tail"),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """How far a host's files were read: the next offset of each; ``caught_up``: all past lines were read."""

    offsets: Mapping[str, int] = field(default_factory=dict)
    caught_up: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Which lines to read from every host.

    Raises UsageError if a value is invalid.
    """

    pattern: str | None = None  # an Ansible pattern of hosts, matched against those of each attempt; None for all
    ranks: tuple[int, ...] | None = None  # global ranks; None for all
    stream: str = "both"  # ``out``, ``err`` or ``both``
    agent: bool | None = None  # whether to include the agents' own output; None: only if no ranks are chosen
    # whether that includes lines after a signal from clusterddp or after torchrun ended its own workers
    teardown: bool = True
    follow: bool = False  # continue until the run has ended
    since_ns: int | None = None  # only lines of this time or later; ns by the operator's clock
    until_ns: int | None = None  # only lines of this time or earlier
    grep: str | None = None  # a regular expression; only lines that match
    tail: int | None = None  # only this many last lines of each worker
    timed: bool = False  # lines have their time (while following, this delays them by a tenth of a second)
    partials: bool = False  # include unfinished lines
    ordered: bool = True  # stdout and stderr of a worker in the order they were written; otherwise each separately
    # where to continue: host → file → offset; a file not named is read from its start. See ``resume.py``.
    start: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.stream not in STREAMS:
            raise UsageError(f"--stream {self.stream}", remedy=f"choose one of {', '.join(STREAMS)}")
        if self.tail is not None and not (type(self.tail) is int and 0 <= self.tail <= _MAX):
            raise UsageError(
                f"--tail {shown(self.tail)} is no number of lines", remedy=f"write a number from 0 to {_MAX}"
            )
        if self.grep is not None and not isinstance(self.grep, str):
            raise UsageError(f"--grep {shown(self.grep)} is no text", remedy="write a Python regular expression")
        try:
            re.compile(self.grep or "")
        except (re.error, OverflowError, RecursionError) as error:
            raise UsageError(f"--grep {self.grep}: {error}", remedy="write a Python regular expression") from error

    def resume_position(self, host: str, position: Position) -> Position:
        """Return the position at which a host's stream is opened: ``start``, overridden by ``position``."""
        return replace(position, offsets={**self.start.get(host, {}), **position.offsets})

    def args(self, spool: str, position: Position | None = None) -> dict[str, Any]:
        """Return the arguments of ``tail`` for one spool, from ``position`` on."""
        start = position or Position()
        request = TailRequest(
            spool=spool,
            offsets=dict(start.offsets),
            follow=self.follow,
            stream=self.stream,
            ranks=None if self.ranks is None else tuple(self.ranks),
            agent=self.ranks is None if self.agent is None else self.agent,
            teardown=self.teardown,
            since=self.since_ns,
            until=self.until_ns,
            grep=self.grep,
            tail=None if start.caught_up else self.tail,
            timed=self.timed,
            partials=self.partials,
            ordered=self.ordered,
        )
        return to_fields(request)
