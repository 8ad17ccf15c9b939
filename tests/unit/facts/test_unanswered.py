"""Why a dial is not answered: a firewall is blamed only where both ends have no other reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterddp.facts.dials import DialAttempt
from clusterddp.facts.unanswered import LATE_MS, explain_unanswered
from clusterddp.remote.shared.probes.network_records import Heard, KernelCounters, KernelTable

DIAL = DialAttempt(source="a", target="b", address="10.0.0.2", port=29400, ranged=True, word="timeout")
ADDRESSES = {"a": ["10.0.0.1", "10.1.0.1"], "b": ["10.0.0.2"]}
WELL = Heard()
CALLED = Heard(callers={"29400": ("10.0.0.1",)})
DROPPED = Heard(before=KernelCounters(listen_overflows=3), after=KernelCounters(listen_overflows=4))
STALE = Heard(before=KernelCounters(listen_overflows=4), after=KernelCounters(listen_overflows=4))
FULL = Heard(after=KernelCounters(tables={"conntrack": KernelTable(100, 100)}))
NEARLY = Heard(after=KernelCounters(tables={"conntrack": KernelTable(99, 100, 7)}))
OVERFLOWED = Heard(
    before=KernelCounters(tables={"arp": KernelTable(500, 1024, 1)}),
    after=KernelCounters(tables={"arp": KernelTable(500, 1024, 2)}),
)
STOOD = Heard(before=OVERFLOWED.before, after=OVERFLOWED.before)


@pytest.mark.parametrize(
    ("word", "source", "target", "reason"),
    [
        ("timeout", WELL, WELL, "timeout"),
        ("timeout", WELL, CALLED, "slow"),
        ("timeout", WELL, Heard(callers={"29400": ("10.9.9.9",), "40000": ("10.0.0.1",)}), "timeout"),
        ("timeout", WELL, DROPPED, "queue full"),
        ("timeout", DROPPED, STALE, "timeout"),
        ("timeout", WELL, FULL, "table full"),
        ("timeout", FULL, WELL, "table full"),
        ("timeout", WELL, OVERFLOWED, "table full"),
        ("timeout", NEARLY, STOOD, "timeout"),
        ("timeout", WELL, Heard(late_ms=60_000), "timeout"),
        ("no data", WELL, WELL, "no data"),
        ("no data", WELL, CALLED, "slow"),
        ("no data", WELL, Heard(late_ms=LATE_MS), "slow"),
        ("refused", WELL, CALLED, "refused"),
        ("lost", WELL, CALLED, "lost"),
        ("ok", WELL, CALLED, "ok"),
    ],
)
def test_the_reason_is_what_the_ends_report(word: str, source: Heard, target: Heard, reason: str) -> None:
    (found,) = explain_unanswered([replace(DIAL, word=word)], {"a": source, "b": target}, ADDRESSES)
    assert found == replace(DIAL, word=reason)


def test_without_the_targets_report_nothing_is_explained() -> None:
    assert explain_unanswered([DIAL], {"a": FULL}, ADDRESSES) == [DIAL]
