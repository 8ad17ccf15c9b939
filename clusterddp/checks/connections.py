"""What failed connections between hosts say: whom they blame, and how much the dialled pairs prove."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.checks.model import Finding
from clusterddp.facts.dial_schedule import ALL_PAIRS_HOSTS
from clusterddp.text.folding import few

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from clusterddp.checks.evidence import Evidence, NetworkEvidence
    from clusterddp.facts.network import DialFailure

_MAX_LISTED_PAIRS = 4  # pairs of hosts listed in one finding


def coverage(network: NetworkEvidence) -> str:
    """How many pairs of many hosts were dialled, and what that proves; empty if all pairs were to be."""
    count = len(network.where)
    if count <= ALL_PAIRS_HOSTS or len(network.pairs) == count * (count - 1):
        return ""
    dialled = len({frozenset(pair) for pair in dialled_pairs(network, network.where)})
    share = 100 * dialled / (count * (count - 1) // 2)
    return (
        f"{dialled:,} of {count * (count - 1) // 2:,} pairs dialled; a single bad pair of hosts would be found with "
        f"{share:.2g} %; `doctor --all-pairs` dials the rest"
    )


def on_dialled(judge: Callable[[Evidence], Iterable[Finding]], title: str) -> Callable[[Evidence], Iterable[Finding]]:
    """A check of all pairs of hosts that, where not all were dialled, does not say of all that they are well."""

    def judged(evidence: Evidence) -> Iterable[Finding]:
        found = list(judge(evidence))
        yield from found
        named = {host for finding in found for host in finding.hosts}
        well = tuple(name for name in evidence.names if name not in named)
        tried = coverage(evidence.network) if evidence.network else ""
        if tried and well:
            yield Finding(verdict="pass", hosts=well, message=f"{title}: {tried}")

    return judged


def dialled_pairs(network: NetworkEvidence, hosts: Container[str]) -> set[tuple[str, str]]:
    """The directions between some of the hosts in which a connection was tried."""
    return {
        (pair.source, pair.target)
        for pair in network.pairs
        if pair.verdict != "unknown" and pair.source in hosts and pair.target in hosts
    }


def list_pairs(failures: Sequence[DialFailure]) -> str:
    """The failed pairs as text; of many, the first few."""
    return few([f"{failure.source} → {failure.target}" for failure in failures], _MAX_LISTED_PAIRS)


def culprits(failures: Sequence[DialFailure], dialled: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The hosts that take part in every failure; if there are none, those that explain them, then all that remain.

    A host explains its failures in a direction if all that was ``dialled`` from it, or to it, failed.
    """
    failed = dict.fromkeys((failure.source, failure.target) for failure in failures)
    blamed = _common(failed) or _failing_hosts(failed, dialled)
    remaining = [pair for pair in failed if not set(pair) & set(blamed)]
    return (*blamed, *(_common(remaining) or dict.fromkeys(host for pair in remaining for host in reversed(pair))))


def _common(pairs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The hosts that are in every one of some pairs, targets first."""
    pairs = list(pairs)
    common = set.intersection(*map(set, pairs)) if pairs else set()
    return tuple(host for host in dict.fromkeys(host for pair in pairs for host in reversed(pair)) if host in common)


def _failing_hosts(failed: Iterable[tuple[str, str]], dialled: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The hosts of which all that was dialled in one direction failed; first those with the most failures.

    A host all of whose failures those before it explain is not one of them.
    """
    failures, tried = list(failed), set(dialled)
    well = {(host, end) for pair in tried.difference(failures) for end, host in enumerate(pair)}
    failing: dict[tuple[str, int], set[str]] = {}  # host, as source (0) or target (1) → the others, still unexplained
    for pair in failures:
        for end, host in enumerate(pair) if pair in tried else ():
            failing.setdefault((host, end), set()).add(pair[1 - end])
    candidates = [way for way in failing if way not in well]
    named: dict[str, None] = {}
    while candidates:
        host, _ = most = max(candidates, key=lambda way: len(failing[way]))
        if not failing[most]:
            break
        named[host] = None
        for end in (0, 1):
            for other in failing.pop((host, end), ()):
                failing[other, 1 - end].discard(host)
        candidates = [way for way in candidates if way[0] != host]
    return tuple(named)
