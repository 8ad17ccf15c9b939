"""Which lines are wanted, as the operation ``tail`` on a host is asked for them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict

from clusterddp.errors import UsageError
from clusterddp.text.units import parse_duration, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

STREAMS = ("out", "err", "both")


class Words(TypedDict, total=False):
    """Which lines, by the options of `logs`: as text like there, or as values."""

    rank: str | int | Iterable[int]
    host: str
    stream: str
    since: str | int
    until: str | int
    grep: str
    tail: int


def ranks(value: object) -> tuple[int, ...] | None:
    """``0,2-5`` → (0, 2, 3, 4, 5); a number, or several, are taken as they are; ``all`` → None.

    Raises:
        UsageError: it is no list of ranks.
    """
    if value is None or value == "all":
        return None
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, Iterable) else [value]
    found: list[int] = []
    for part in parts:
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", str(part).strip(), re.ASCII)
        if not match or (match[2] and int(match[2]) < int(match[1])):
            raise UsageError(f"{shown(value)} is no list of ranks", remedy="write 0,2-5")
        found.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(found)


def moment(value: Any, now_ns: int) -> int:
    """Ns since the epoch from a duration before ``now_ns`` (``10m``), an ISO date, or a number of ns.

    Raises:
        UsageError: it is no time.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = str(value).strip()
    with contextlib.suppress(UsageError):
        return now_ns - int(parse_duration(text) * 1e9)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1e9)
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"{shown(value)} is no time", remedy="write 10m (ago) or 2026-01-31T12:00") from None


def selected_by(words: Words, hosts: Iterable[str] | None, now_ns: int) -> Selection:
    """The selection that the words mean.

    Args:
        words: As the options of `logs`; ``host`` apart.
        hosts: The hosts that ``host`` matches; None for all.
        now_ns: What a duration ago is counted from, ns since the epoch.

    Raises:
        UsageError: a word is no option, or a value cannot be meant; says which.
    """
    unknown = sorted(set(words) - set(Words.__annotations__))
    if unknown:
        known = ", ".join(Words.__annotations__)
        raise UsageError(f"{unknown[0]} is no option of logs", remedy=f"use one of {known}")
    times = {name: moment(value, now_ns) for name, value in words.items() if name in ("since", "until")}
    return Selection(
        hosts=None if hosts is None else tuple(hosts),
        ranks=ranks(words.get("rank")),
        stream=words.get("stream", "both"),
        since_ns=times.get("since"),
        until_ns=times.get("until"),
        grep=words.get("grep"),
        tail=words.get("tail"),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """How far a host's files were read: the next offset of each; ``caught_up``: its past is complete."""

    offsets: Mapping[str, int] = field(default_factory=dict)
    caught_up: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The lines wanted of every host.

    Attributes:
        hosts: Names of hosts; None for all.
        ranks: Global ranks; None for all.
        stream: ``out``, ``err`` or ``both``.
        agent: Whether the agents' own output is wanted too; None: where no ranks are chosen.
        teardown: Of it, also the lines that follow a signal of ours or torchrun's own end of its workers.
        follow: Go on until the run has ended.
        since_ns: Lines of this time and later; ns by the operator's clock.
        until_ns: Lines of this time and earlier.
        grep: A regular expression; only lines that match.
        tail: Only so many last lines of each worker.
        timed: Lines carry their time (costs a tenth of a second while following).
        partials: Unfinished lines too.
        ordered: stdout and stderr of a worker in the order in which they were written; else each by itself.
        start: Where to go on: host → file → offset; a file not named is read from its start. See ``resume.py``.

    Raises:
        UsageError: a value cannot be meant.
    """

    hosts: tuple[str, ...] | None = None
    ranks: tuple[int, ...] | None = None
    stream: str = "both"
    agent: bool | None = None
    teardown: bool = True
    follow: bool = False
    since_ns: int | None = None
    until_ns: int | None = None
    grep: str | None = None
    tail: int | None = None
    timed: bool = False
    partials: bool = False
    ordered: bool = True
    start: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.stream not in STREAMS:
            raise UsageError(f"--stream {self.stream}", remedy=f"choose one of {', '.join(STREAMS)}")
        if self.tail is not None and self.tail < 0:
            raise UsageError(f"--tail {self.tail} is no number of lines", remedy="write 0 or more")
        try:
            re.compile((self.grep or "").encode())
        except re.error as error:
            raise UsageError(f"--grep {self.grep}: {error}", remedy="write a Python regular expression") from error

    def resume_position(self, host: str, position: Position) -> Position:
        """The position at which a host's stream is opened: ``start``, overridden by ``position``."""
        return replace(position, offsets={**self.start.get(host, {}), **position.offsets})

    def args(self, spool: str, position: Position | None = None) -> dict[str, Any]:
        """The arguments of ``tail`` for one spool, from ``position`` on."""
        at = position or Position()
        return {
            "spool": spool,
            "from": dict(at.offsets),
            "follow": self.follow,
            "stream": self.stream,
            "ranks": None if self.ranks is None else list(self.ranks),
            "agent": self.ranks is None if self.agent is None else self.agent,
            "teardown": self.teardown,
            "since": self.since_ns,
            "until": self.until_ns,
            "grep": self.grep,
            "tail": None if at.caught_up else self.tail,
            "timed": self.timed,
            "partials": self.partials,
            "ordered": self.ordered,
        }
