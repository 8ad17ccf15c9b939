"""What was gathered of the hosts, as the checks read it: one frozen value a host, one for all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterddp.errors import ClusterddpError
    from clusterddp.facts import Bench, DialFailure, Facts, Interface, Pair
    from clusterddp.inventory import HostEntry


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a host answered to one question, or why it did not."""

    value: Any = None
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """One host as it was found: not reached (``error``), or what it told; ``answers`` by the names of needs."""

    entry: HostEntry
    error: ClusterddpError | None = None
    noise: str = ""
    facts: Facts | None = None
    facts_error: str = ""
    answers: Mapping[str, Answer] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The host's name in the inventory."""
        return self.entry.name


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkSeen:
    """Dials between all pairs, both ways, on the network that serves best.

    Attributes:
        label: The network.
        where: Each host's interface in it.
        failures: The dials on it that did not come through.
        pairs: What the dials on it came to, every ordered pair of hosts, row by row.
        unreached: Addresses that a host dialled in vain on other networks, and why: by host and address.
        deaf: Hosts that could not listen or dial, and why.
        error: No network comes into question; nothing was dialled.
        remedy: What helps against the error.
    """

    label: str = ""
    where: Mapping[str, Interface] = field(default_factory=dict)
    failures: tuple[DialFailure, ...] = ()
    pairs: tuple[Pair, ...] = ()
    unreached: Mapping[tuple[str, str], str] = field(default_factory=dict)
    deaf: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    remedy: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSeen:
    """A run that lives on some hosts, or has left processes there without a supervisor (``left``: pids by host)."""

    run: str
    name: str = ""
    operator: str = ""
    hosts: tuple[str, ...] = ()
    left: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearsalSeen:
    """A small job that was run over the hosts.

    Attributes:
        reached: The last stage that each host told; empty for one that told none.
        backend: ``nccl`` or ``gloo``; ``why``: why not NCCL, where there are GPUs.
        blamed: Hosts that failed, where it is known.
        words: How it failed; empty where it did not, or hung.
        remedy: What helps, where the words are known.
        seconds: How long it took.
        left: Hosts on which something of it may be left, and what.
    """

    reached: Mapping[str, str] = field(default_factory=dict)
    backend: str = "gloo"
    why: str = ""
    blamed: tuple[str, ...] = ()
    words: str = ""
    remedy: str = ""
    seconds: float = 0.0
    left: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmSeen:
    """What Slurm tells on a login host. Fields of ``scontrol`` and ``sacctmgr`` by their names there.

    Attributes:
        error: Why it tells nothing.
        config: ``scontrol show config``.
        partition: The one that is asked for, or the default one; empty where it is not there.
        nodes: The partition's nodes.
        associations: The user's accounts; None where Slurm keeps none, or does not tell.
        asked: What a job would ask for: ``partition``, ``account``, ``qos``, ``gpus-per-node``, how many ``nodes``.
        refused: Why it was given no job to look at nodes in, and what helps.
        apart: Each node of that job, with those of a run's folders that it and the login host do not share, and how.
    """

    error: str = ""
    config: Mapping[str, str] = field(default_factory=dict)
    partition: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[Mapping[str, str], ...] = ()
    associations: tuple[Mapping[str, str], ...] | None = None
    asked: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[str, str] | None = None
    apart: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """All that is known of the cluster; for a check only the hosts that it can judge."""

    hosts: tuple[Seen, ...]
    network: NetworkSeen | None = None
    runs: tuple[RunSeen, ...] | None = None
    rehearsal: RehearsalSeen | None = None
    bench: Bench | None = None
    slurm: SlurmSeen | None = None
    share_gpus: bool = False  # whether it is meant that others compute on the GPUs too
    broken: tuple[str, ...] = ()  # needs, by name, that could not be gathered for a bug of ours

    @property
    def facts(self) -> list[tuple[HostEntry, Facts]]:
        """The hosts' facts, in order."""
        return [(seen.entry, seen.facts) for seen in self.hosts if seen.facts]
