"""Why a dial was not answered, from what both ends report: a firewall is the cause only where nothing else is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.facts.network import QUEUE_FULL, SLOW, TABLE_FULL
from clusterddp.remote.shared.probes.network_records import NO_DATA, TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterddp.facts.dials import DialAttempt
    from clusterddp.remote.shared.probes.network_records import Heard, KernelTable

LATE_MS = 1000  # a listener that did not get to run for so long may have answered too late


def explain_unanswered(
    dialled: Iterable[DialAttempt], heard: Mapping[str, Heard], addresses: Mapping[str, Sequence[str]]
) -> list[DialAttempt]:
    """Give dials that were not answered a more exact word, where the listeners' reports have a reason.

    ``heard`` are the reports of those of their hosts that gave one; ``addresses`` are those of every host.
    """
    return [replace(one, word=_reason(one, heard, addresses)) for one in dialled]


def _reason(one: DialAttempt, heard: Mapping[str, Heard], addresses: Mapping[str, Sequence[str]]) -> str:
    target = heard.get(one.target)
    if one.word not in (TIMEOUT, NO_DATA) or target is None:
        return one.word
    if set(target.callers.get(str(one.port), ())) & set(addresses.get(one.source, ())):
        return SLOW
    if one.word == NO_DATA:
        return SLOW if target.late_ms >= LATE_MS else NO_DATA
    if any(_is_full(report) for name in (one.source, one.target) if (report := heard.get(name))):
        return TABLE_FULL
    return QUEUE_FULL if listen_overflows(target) else TIMEOUT


def _is_full(report: Heard) -> bool:
    """Whether a table of the host's kernel was full while others dialled."""
    return any(table_drops(report, name) or _has_no_room(table) for name, table in report.after.tables.items())


def listen_overflows(report: Heard) -> int:
    """How many connections the host's listeners had no room for while others dialled."""
    return max(0, (report.after.listen_overflows or 0) - (report.before.listen_overflows or 0))


def table_drops(report: Heard, name: str) -> int:
    """How often a table of the host's kernel had no room while others dialled."""
    before, after = report.before.tables.get(name), report.after.tables.get(name)
    return max(0, (after.refused or 0) - (before.refused or 0)) if before and after else 0


def _has_no_room(table: KernelTable) -> bool:
    return table.used is not None and table.limit is not None and table.used >= table.limit > 0
