"""Checks of what a kernel drops packets for by itself: it looks like a firewall, and a sysctl mends it.

What happened while the hosts dialled is known of hosts with connections that failed; how full the tables are, of all
that reported their health.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from clusterddp.checks.model import Check, Finding, fail, warn
from clusterddp.checks.needs import DIALLED, FACTS, HEALTH
from clusterddp.facts.unanswered import listen_overflows, table_drops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from clusterddp.checks.evidence import Evidence, HostEvidence
    from clusterddp.remote.shared.probes.network_records import KernelTable

CATEGORY = "Network"
_NEARLY_FULL = 0.9  # share of a table's size
_FAMILIES = {"arp": 4, "ndisc": 6}  # tables of neighbours → version of IP


def _tables(*names: str) -> Callable[[Evidence], Iterable[Finding]]:
    """A check that these tables of the kernel have room."""

    def judge(evidence: Evidence) -> Iterable[Finding]:
        neighbours = _neighbours(evidence)
        for report in evidence.hosts:
            findings = [_table(evidence, report, name, neighbours.get(_FAMILIES.get(name, 0), 0)) for name in names]
            yield from sorted(filter(None, findings), key=lambda finding: finding.verdict)[:1]  # the worst one

    return judge


def _table(evidence: Evidence, report: HostEvidence, name: str, needed: int) -> Finding | None:
    """What is wrong with a table of a host's kernel, in which so many entries are ``needed`` for the hosts alone."""
    heard = evidence.network.heard.get(report.name) if evidence.network else None
    health = HEALTH.of(report)
    dropped = table_drops(heard, name) if heard else 0
    table = heard.after.tables.get(name) if heard else health.tables.get(name) if health else None
    if dropped:
        return fail(report.name, f"{_filled(table)}: while the hosts dialled it had no room {dropped} times")
    if table is None or table.used is None or not table.limit:
        return None
    if table.used >= table.limit:
        return fail(report.name, f"{_filled(table)}: it is full")
    if table.used >= _NEARLY_FULL * table.limit:
        return warn(report.name, f"{_filled(table)}: it is nearly full")
    if needed >= table.limit:
        return warn(report.name, f"{table.limit} entries at most, and {needed} hosts are in one subnet with it")
    return None


def _filled(table: KernelTable | None) -> str:
    return f"{table.used} of {table.limit} entries" if table and table.used is not None else "it overflows"


def _neighbours(evidence: Evidence) -> dict[int, int]:
    """The number of hosts in the largest subnet of the network, by version of IP."""
    members = Counter((interface.family, str(interface.network)) for interface in evidence.where.values())
    return {family: max(size for (own, _), size in members.items() if own == family) for family, _ in members}


def _listen_queues(evidence: Evidence) -> Iterable[Finding]:
    for report in evidence.hosts:
        heard = evidence.network.heard.get(report.name) if evidence.network else None
        if heard and (dropped := listen_overflows(heard)):
            yield warn(report.name, f"its listeners had no room for {dropped} connections while the hosts dialled")


CHECKS = (
    Check(
        name="neighbour-table",
        category=CATEGORY,
        title="the kernel's table of neighbours has room",
        judge=_tables(*_FAMILIES),
        needs=(FACTS, DIALLED),
        symptom="connections between some hosts time out, as behind a firewall; dmesg: neighbour table overflow",
        fix="raise it: sysctl net.ipv4.neigh.default.gc_thresh1=4096 net.ipv4.neigh.default.gc_thresh2=8192 "
        "net.ipv4.neigh.default.gc_thresh3=16384, with IPv6 net.ipv6.neigh.default.… too; in /etc/sysctl.d to keep it",
    ),
    Check(
        name="connection-tracking",
        category=CATEGORY,
        title="the kernel's table of tracked connections has room",
        judge=_tables("conntrack"),
        needs=(FACTS, DIALLED),
        symptom="new connections time out, as behind a firewall; dmesg: nf_conntrack: table full, dropping packet",
        fix="raise it: sysctl net.netfilter.nf_conntrack_max=1048576; or let no rule track the hosts' own network",
    ),
    Check(
        name="listen-queue",
        category=CATEGORY,
        title="listeners have room for connections",
        judge=_listen_queues,
        needs=(FACTS, DIALLED),
        symptom="some of many connections to one host take seconds, or time out",
        fix="raise it: sysctl net.core.somaxconn=4096 net.ipv4.tcp_max_syn_backlog=8192; or see which program accepts "
        "too slowly (`ss -ltn`: Recv-Q against Send-Q)",
    ),
)
