"""`doctor --explain LOGFILE`: finds known messages in a log, each with the check that can prove its cause."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clusterddp.runs.view.known_messages import find

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterddp.runs.view.known_messages import KnownMessage


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplainedMessage:
    """A known message in a log: how often it occurs, and its first line (number from 1, text)."""

    known: KnownMessage
    count: int
    line: int
    text: str

    def to_json(self) -> dict[str, Any]:
        """As ``doctor --explain --json`` prints it."""
        row = self.known
        return {
            "name": row.name,
            "check": row.check or None,
            "message": row.cause,
            "fix": row.remedy,
            "count": self.count,
            "line": self.line,
            "text": self.text,
        }


def explain(lines: Iterable[str]) -> list[ExplainedMessage]:
    """Find the known messages in a log, in the order of their first lines."""
    found: dict[str, ExplainedMessage] = {}
    for number, line in enumerate(lines, 1):
        if row := find(line):
            first = found.get(row.name) or ExplainedMessage(known=row, count=0, line=number, text=line.strip()[:300])
            found[row.name] = replace(first, count=first.count + 1)
    return list(found.values())
