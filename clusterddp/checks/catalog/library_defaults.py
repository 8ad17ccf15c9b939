"""Checks of what a torchrun that is started by hand would meet: the defaults of torchrun, NCCL and gloo on these hosts.

clusterddp sets a run's store, addresses and network cards itself, so nothing here makes its runs fail: warnings only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.checks.catalog.network import CATEGORY, is_loopback
from clusterddp.checks.model import Check, Finding, skipped, warn
from clusterddp.checks.needs import DIALLED, ELECTION, FACTS, HEALTH, endpoints_of, lookup_of
from clusterddp.facts.library_defaults import NCCL_VARIABLE, gloo_interfaces, nccl_interfaces
from clusterddp.remote.shared.names.interfaces import is_virtual

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterddp.checks.evidence import Evidence, HostEvidence
    from clusterddp.facts.host import Facts

_PINNED_NOTE = "(runs of clusterddp pin it)"


def _election(evidence: Evidence) -> Iterable[Finding]:
    """Whether exactly the first host recognises itself in the endpoint that a torchrun by hand would be given.

    Nodes on the first host's machine (same boot id) recognise themselves too, rightly.
    """
    reports = evidence.hosts
    first = reports[0] if reports else None
    if first is None or first.facts is None or len({report.facts.boot for report in reports if report.facts}) < 2:
        return
    if not set(ELECTION.of(first) or ()) <= {*endpoints_of(first.facts)}:
        yield from (skipped(report.name, "the first host cannot be judged") for report in reports)
        return
    unclaimed: list[str] = []
    claimants: dict[tuple[str, ...], list[str]] = {}
    for endpoint in ELECTION.of(first) or {}:
        claiming = [report for report in reports if (ELECTION.of(report) or {}).get(endpoint)]
        wrong = tuple(report.name for report in claiming if report.facts and report.facts.boot != first.facts.boot)
        if not claiming:
            unclaimed.append(endpoint)
        elif wrong:
            claimants.setdefault(wrong, []).append(endpoint)
    if unclaimed:
        why = _loopback_note(first)
        yield warn(first.name, f"no host takes itself for {' or '.join(unclaimed)}{why} {_PINNED_NOTE}")
    for hosts, endpoints in claimants.items():
        message = f"takes itself for {' and '.join(endpoints)}, which is {first.name} {_PINNED_NOTE}"
        symptom = "each of them waits for the others at a store of its own: a hang without a word"
        yield Finding(verdict="warn", hosts=hosts, message=message, symptom=symptom)


def _loopback_note(report: HostEvidence) -> str:
    """Return the reason that a host's own name resolves to a loopback address; empty if it does not."""
    lookup = lookup_of(report, report.facts.hostname) if report.facts else None
    loops = [address for address in lookup.addresses if is_loopback(address)] if lookup else []
    return f": its own name means {loops[0]} there" if loops else ""


def _interface_choice(evidence: Evidence) -> Iterable[Finding]:
    """Warn where NCCL or gloo, started by hand, would use another network card than a run of clusterddp."""
    where = evidence.where
    for report in evidence.hosts:
        chosen = where.get(report.name)
        if chosen is None or chosen.loopback or report.facts is None:
            continue  # one host, or nodes of one machine
        gloo = gloo_interfaces(report.facts, lookup_of(report, report.facts.hostname))
        notes = [*_nccl_choice(report.facts, chosen.name), *_gloo_choice(gloo, chosen.name)]
        if notes:
            yield warn(report.name, f"{' and '.join(notes)}; runs of clusterddp set {chosen.name}")


def _nccl_choice(facts: Facts, chosen: str) -> Iterable[str]:
    if NCCL_VARIABLE in facts.environment or not facts.devices:
        return  # the check `interface` judges a variable that is set; without GPUs nothing uses NCCL
    interfaces = nccl_interfaces(facts)
    if interfaces and interfaces[0] != chosen:
        yield f"NCCL by itself would take {interfaces[0]}"
        return
    unusable = [interface for interface in interfaces if interface != chosen and _is_unusable(facts, interface)]
    if unusable:
        yield f"NCCL by itself would also use {', '.join(unusable)}"


def _gloo_choice(interfaces: tuple[str, ...], chosen: str) -> Iterable[str]:
    if interfaces and chosen not in interfaces and "lo" not in interfaces:  # the check `own-name` reports the loopback
        yield f"gloo by itself would take {interfaces[0]}"


def _is_unusable(facts: Facts, interface: str) -> bool:
    """Whether a card leads to no other machine: a bridge, a tunnel, or one with only link-local addresses."""
    return is_virtual(interface) or all(one.link_local for one in facts.addresses if one.name == interface)


CHECKS = (
    Check(
        name="host-election",
        category=CATEGORY,
        title="a torchrun by hand would find one host for its store",
        judge=_election,
        needs=(FACTS, HEALTH, ELECTION),
        after=("python", "torch"),
        symptom="a torchrun started by hand fails after 140 s: RendezvousConnectionError",
        fix="by hand: --rdzv-conf is_host=1 on the first host, is_host=0 on the others; or mend /etc/hosts",
    ),
    Check(
        name="card-choice",
        category=CATEGORY,
        title="NCCL and gloo by themselves would take the card that runs set",
        judge=_interface_choice,
        needs=(FACTS, HEALTH, DIALLED),
        after=("network",),
        symptom="a job started by hand: No route to host, connectFullMesh failed, or a hang in the first collective",
        fix="by hand: export NCCL_SOCKET_IFNAME==CARD and GLOO_SOCKET_IFNAME=CARD on each host",
    ),
)
