"""Which lines are wanted, as the operation ``tail`` on a host is asked for them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from clusterddp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

STREAMS = ("out", "err", "both")


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
        }
