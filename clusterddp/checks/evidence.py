"""Everything that `doctor` collected, as values for the checks: one per host, and one for the cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterddp.errors import ClusterddpError
    from clusterddp.facts.bench import Bench
    from clusterddp.facts.dials import Pair
    from clusterddp.facts.host import Facts, Interface
    from clusterddp.facts.network import DialFailure
    from clusterddp.inventory import HostEntry


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A host's answer to one question, or why there is none."""

    value: Any = None
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What is known of one host: why it was not reached (``error``), or its facts and answers (by name of the need)."""

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
    """Connections tried between every two hosts, both ways, on the network that a run would use.

    Attributes:
        where: Each host's interface on that network.
        failures: The connections that failed.
        pairs: The result for every ordered pair of hosts, row by row.
        unreached: Addresses on other networks that a host could not reach, and why, by host and address.
        deaf: Hosts that could not listen or dial, and why.
        error: Why no network could be chosen; then nothing was tried.
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
    """A live run on some hosts, or one that left processes without a supervisor (``left``: their pids by host)."""

    run: str
    name: str = ""
    operator: str = ""
    hosts: tuple[str, ...] = ()
    left: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearsalSeen:
    """The result of the small job that `doctor` runs over the hosts.

    Attributes:
        reached: The last stage that each host reported; empty for one that reported none.
        backend: ``nccl`` or ``gloo``; ``why`` says why not NCCL on hosts with GPUs.
        blamed: Hosts that failed, where it is known.
        failure: How it failed; empty if it succeeded or hung.
        left: Hosts on which processes or files of it may remain, and what.
    """

    reached: Mapping[str, str] = field(default_factory=dict)
    backend: str = "gloo"
    why: str = ""
    blamed: tuple[str, ...] = ()
    failure: str = ""
    remedy: str = ""
    seconds: float = 0.0
    left: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmSeen:
    """What Slurm reports on a login host; fields of ``scontrol`` and ``sacctmgr`` keep their names.

    Attributes:
        error: Why nothing could be learned.
        config: ``scontrol show config``.
        partition: The partition asked for, or the default one; empty if it does not exist.
        associations: The user's accounts; None where Slurm keeps none, or does not show them.
        asked: What a job would ask for: ``partition``, ``account``, ``qos``, ``gpus-per-node``, number of ``nodes``.
        refused: Why Slurm gave no job in which to examine nodes, and the remedy.
        unshared: For each node of that job, the folders of a run that it does not share with the login host, and how.
    """

    error: str = ""
    config: Mapping[str, str] = field(default_factory=dict)
    partition: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[Mapping[str, str], ...] = ()
    associations: tuple[Mapping[str, str], ...] | None = None
    asked: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[str, str] | None = None
    unshared: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """All that is known of the cluster; a check gets it with only the hosts that it can judge."""

    hosts: tuple[Seen, ...]
    network: NetworkSeen | None = None
    runs: tuple[RunSeen, ...] | None = None
    rehearsal: RehearsalSeen | None = None
    bench: Bench | None = None
    manager: SlurmSeen | None = None  # what the workload manager that has the hosts reports
    share_gpus: bool = False  # whether the user accepts that others compute on the GPUs too
    broken: tuple[str, ...] = ()  # names of needs that were not collected because of a bug in clusterddp

    @property
    def facts(self) -> list[tuple[HostEntry, Facts]]:
        """The facts of the hosts that reported them, in order."""
        return [(seen.entry, seen.facts) for seen in self.hosts if seen.facts]
