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
    from clusterddp.remote.shared.probes.network_records import Heard


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A host's answer to one question, or why there is none."""

    value: Any = None
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostEvidence:
    """What is known of one host: why it was not reached (``error``), or its facts and answers (by name of the need)."""

    entry: HostEntry
    error: ClusterddpError | None = None
    noise: str = ""  # what its login shell printed without a terminal
    facts: Facts | None = None
    facts_error: str = ""  # why it did not report its facts
    answers: Mapping[str, Answer] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The host's name in the inventory."""
        return self.entry.name


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkEvidence:
    """Connections tried between every two hosts, both ways, on the network that a run would use."""

    label: str = ""  # the network's name for the user
    where: Mapping[str, Interface] = field(default_factory=dict)  # each host's interface on that network
    failures: tuple[DialFailure, ...] = ()  # the connections that failed
    pairs: tuple[Pair, ...] = ()  # the result for every ordered pair of hosts, row by row
    # addresses on other networks that a host could not reach, and why, by host and address
    unreached: Mapping[tuple[str, str], str] = field(default_factory=dict)
    deaf: Mapping[str, str] = field(default_factory=dict)  # host → why it could not listen or dial
    # of hosts with connections that failed, what their listeners and kernels report
    heard: Mapping[str, Heard] = field(default_factory=dict)
    error: str = ""  # why no network could be chosen; then nothing was tried
    remedy: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEvidence:
    """A live run on some hosts, or one that left processes without a supervisor (``left``: their pids by host)."""

    run: str
    name: str = ""
    operator: str = ""
    hosts: tuple[str, ...] = ()
    left: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearsalEvidence:
    """The result of the small job that `doctor` runs over the hosts."""

    # the last stage that each host reported; empty for one that reported none
    reached: Mapping[str, str] = field(default_factory=dict)
    backend: str = "gloo"  # ``nccl`` or ``gloo``; ``why`` says why not NCCL on hosts with GPUs
    why: str = ""
    blamed: tuple[str, ...] = ()  # hosts that failed, where it is known
    failure: str = ""  # how it failed; empty if it succeeded or hung
    remedy: str = ""
    seconds: float = 0.0
    # hosts on which processes or files of it may remain, and what
    left: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmEvidence:
    """What Slurm reports on a login host; fields of ``scontrol`` and ``sacctmgr`` keep their names."""

    error: str = ""  # why nothing could be learned
    config: Mapping[str, str] = field(default_factory=dict)  # ``scontrol show config``
    # the partitions asked for, of which any may take a job, or the default one; those that do not exist are left out
    partitions: tuple[Mapping[str, str], ...] = ()
    nodes: tuple[Mapping[str, str], ...] = ()
    # the user's accounts; None where Slurm keeps none, or does not show them
    associations: tuple[Mapping[str, str], ...] | None = None
    # what a job would ask for: ``partition``, ``account``, ``qos``, ``gpus-per-node``, number of ``nodes``
    asked: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[str, str] | None = None  # why Slurm gave no job in which to examine nodes, and the remedy
    # for each node of that job, the folders of a run that it does not share with the login host, and how
    unshared: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """All that is known of the cluster; a check gets it with only the hosts that it can judge."""

    hosts: tuple[HostEvidence, ...]
    network: NetworkEvidence | None = None
    runs: tuple[RunEvidence, ...] | None = None
    rehearsal: RehearsalEvidence | None = None
    bench: Bench | None = None
    manager: SlurmEvidence | None = None  # what the workload manager that has the hosts reports
    share_gpus: bool = False  # whether the user accepts that others compute on the GPUs too
    broken: tuple[str, ...] = ()  # names of needs that were not collected because of a bug in clusterddp

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts' names, in order."""
        return tuple(report.name for report in self.hosts)

    @property
    def where(self) -> Mapping[str, Interface]:
        """Each host's interface on the network that runs would use, by the host's name; empty without one."""
        return self.network.where if self.network else {}

    @property
    def facts(self) -> list[tuple[HostEntry, Facts]]:
        """The facts of the hosts that reported them, in order."""
        return [(report.entry, report.facts) for report in self.hosts if report.facts]
