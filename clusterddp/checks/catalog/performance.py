"""Checks of measured TCP speed: only with ``doctor --bench``, and only where nothing else computes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.checks.catalog import gpus
from clusterddp.checks.model import Check, Finding, fail, missing_data, warn
from clusterddp.checks.needs import BENCH, DIALLED, FACTS, HEALTH, PAIRS, RUNS
from clusterddp.facts.speeds import find_slow_hosts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterddp.checks.evidence import Evidence
    from clusterddp.facts.speeds import SlowHost, Speed

CATEGORY = "Performance"
_MIN_SHARE_OF_LINK = 0.1  # of the link's rate; TCP reaches about 0.8, our single stream far less on the fastest links


def busy(evidence: Evidence) -> list[Finding]:
    """What else computes on the hosts, as failures: it would distort a measurement and be disturbed by it."""
    found = [replace(one, verdict="fail") for one in gpus.busy_gpus(evidence) if one.verdict != "unknown"]
    judged = set(evidence.names)
    for run in evidence.runs or ():
        if not run.left:
            owner = f" of {run.operator}" if run.operator else ""
            found += [fail(host, f"run {run.run}{owner} is live") for host in run.hosts if host in judged]
    return found


def _bandwidth(evidence: Evidence) -> Iterable[Finding]:
    bench = evidence.bench
    judged = set(evidence.names)
    if bench is None:
        return
    if bench.alone:
        yield Finding(verdict="skipped", hosts=evidence.names, message=bench.alone)
        return
    speeds = [one for one in bench.speeds if {one.source, one.target} <= judged]
    found = find_slow_hosts(speeds)
    for host in found.hosts:
        yield warn(host.name, f"{_direction(host)} {rate(host.mbit)}, others reach {rate(found.usual)}")
    for way in found.ways:
        message = f"{way.source} → {way.target}: {rate(way.mbit)}, others reach {rate(found.usual)}"
        yield Finding(verdict="warn", hosts=(way.source, way.target), message=message)
    yield from _unmeasured(evidence, speeds)
    link_rate = _slowest_link(evidence)
    if link_rate and 0 < found.usual < _MIN_SHARE_OF_LINK * link_rate:
        message = f"all hosts: {rate(found.usual)} at best on links of {rate(link_rate)}"
        yield Finding(verdict="warn", hosts=evidence.names, message=message)


def _unmeasured(evidence: Evidence, speeds: Iterable[Speed]) -> Iterable[Finding]:
    """Pairs whose measurement failed, except those that the check of connections has reported already."""
    network = evidence.network
    shut = {(one.source, one.target) for one in network.failures} if network else set()
    for one in speeds:
        if one.error and (one.source, one.target) not in shut:
            yield missing_data(one.source, f"{one.source} → {one.target}: {one.error}")


def _direction(host: SlowHost) -> str:
    if host.sends and host.receives:
        return "sends and receives"
    return "sends" if host.sends else "receives"


def _slowest_link(evidence: Evidence) -> float | None:
    """The rate of the slowest host's link in Mbit/s; None unless the rate of every host's card is known."""
    where = evidence.where
    speeds = [where[report.name].speed_mbit if report.name in where else None for report in evidence.hosts]
    known = [one for one in speeds if one is not None]
    return float(min(known)) if known and len(known) == len(speeds) else None


def rate(mbit: float) -> str:
    """A speed as text, from Mbit/s."""
    return f"{mbit / 1000:.1f} Gbit/s" if mbit >= 1000 else f"{mbit:.0f} Mbit/s"


CHECKS = (
    Check(
        name="idle",
        category=CATEGORY,
        title="nothing else computes on the hosts",
        judge=busy,
        needs=(FACTS, HEALTH, RUNS, BENCH),
        symptom="measurements that mean nothing, and a job of somebody else's that is slowed down",
        fix="wait for its end, or stop it; then measure",
    ),
    Check(
        name="bandwidth",
        category=CATEGORY,
        title="TCP flows equally fast between all hosts",
        judge=_bandwidth,
        needs=(FACTS, DIALLED, PAIRS),
        after=("idle", "network", "ports"),
        symptom="every step takes as long as on the slowest way",
        fix="look at cable, switch port and errors of the card (`ethtool -S CARD`), and at other traffic",
    ),
)
