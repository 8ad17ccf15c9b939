"""Checks of what a torchrun that is started by hand would meet: the defaults of torchrun, NCCL and gloo on these hosts.

clusterddp sets a run's store, addresses and network cards itself, so nothing here makes its runs fail: warnings only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.checks.catalog.network import CATEGORY, is_loopback
from clusterddp.checks.model import Check, Finding, warn
from clusterddp.checks.needs import DIALLED, ELECTION, FACTS, HEALTH, looked_up
from clusterddp.facts.library_defaults import NCCL_VARIABLE, gloo_interfaces, nccl_interfaces
from clusterddp.facts.network import is_virtual

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterddp.checks.evidence import Evidence, Seen
    from clusterddp.facts.host import Facts

_PINNED = "(runs of clusterddp pin it)"


def _election(evidence: Evidence) -> Iterable[Finding]:
    """Whether exactly the first host recognises itself in the endpoint that a torchrun by hand would be given.

    Nodes on the first host's machine (same boot id) recognise themselves too, rightly.
    """
    asked = evidence.hosts
    first = asked[0] if asked else None
    if first is None or first.facts is None or len({seen.facts.boot for seen in asked if seen.facts}) < 2:
        return
    nobodys: list[str] = []
    several: dict[tuple[str, ...], list[str]] = {}
    for endpoint in ELECTION.of(first) or {}:
        takers = [seen for seen in asked if (ELECTION.of(seen) or {}).get(endpoint)]
        wrong = tuple(one.name for one in takers if one.facts and one.facts.boot != first.facts.boot)
        if not takers:
            nobodys.append(endpoint)
        elif wrong:
            several.setdefault(wrong, []).append(endpoint)
    if nobodys:
        yield warn(first.name, f"no host takes itself for {' or '.join(nobodys)}{_why(first)} {_PINNED}")
    for hosts, endpoints in several.items():
        message = f"takes itself for {' and '.join(endpoints)}, which is {first.name} {_PINNED}"
        symptom = "each of them waits for the others at a store of its own: a hang without a word"
        yield Finding(verdict="warn", hosts=hosts, message=message, symptom=symptom)


def _why(seen: Seen) -> str:
    own = looked_up(seen, seen.facts.hostname) if seen.facts else None
    loops = [address for address in own.addresses if is_loopback(address)] if own else []
    return f": its own name means {loops[0]} there" if loops else ""


def _card_choice(evidence: Evidence) -> Iterable[Finding]:
    where = evidence.network.where if evidence.network else {}
    for seen in evidence.hosts:
        chosen = where.get(seen.name)
        if chosen is None or chosen.loopback or seen.facts is None:
            continue  # one host, or nodes of one machine
        own_name = looked_up(seen, seen.facts.hostname)
        notes = [*_nccl(seen.facts, chosen.name), *_gloo(gloo_interfaces(seen.facts, own_name), chosen.name)]
        if notes:
            yield warn(seen.name, f"{' and '.join(notes)}; runs of clusterddp set {chosen.name}")


def _nccl(facts: Facts, chosen: str) -> Iterable[str]:
    if NCCL_VARIABLE in facts.environment or not facts.devices:
        return  # the check `interface` judges a variable that is set; without GPUs nothing uses NCCL
    cards = nccl_interfaces(facts)
    if cards and cards[0] != chosen:
        yield f"NCCL by itself would take {cards[0]}"
        return
    doubtful = [card for card in cards if card != chosen and _doubtful(facts, card)]
    if doubtful:
        yield f"NCCL by itself would also use {', '.join(doubtful)}"


def _gloo(cards: tuple[str, ...], chosen: str) -> Iterable[str]:
    if cards and chosen not in cards and "lo" not in cards:  # `own-name` reports a name that means the loopback
        yield f"gloo by itself would take {cards[0]}"


def _doubtful(facts: Facts, card: str) -> bool:
    """Whether a card leads to no other machine: a bridge, a tunnel, or one with only link-local addresses."""
    return is_virtual(card) or all(one.link_local for one in facts.addresses if one.name == card)


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
        judge=_card_choice,
        needs=(FACTS, HEALTH, DIALLED),
        after=("network",),
        symptom="a job started by hand: No route to host, connectFullMesh failed, or a hang in the first collective",
        fix="by hand: export NCCL_SOCKET_IFNAME==CARD and GLOO_SOCKET_IFNAME=CARD on each host",
    ),
)
