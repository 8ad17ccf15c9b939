"""An inventory as immutable values, independent of YAML and files."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from clusterddp.errors import InventoryError
from clusterddp.inventory.launchers import DEFAULT_LAUNCHER
from clusterddp.inventory.patterns import select
from clusterddp.inventory.redact import redacted
from clusterddp.text.folding import few, folded_words

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from clusterddp.consent import Writers

Role = Literal["node", "spare", "login", "none"]
Transport = Literal["auto", "fabric", "openssh"]
DEFAULT_PORTS = (29400, 29499)
WARM = 900.0  # seconds
_MOST_NAMED = 8  # names listed in one error


@dataclass(frozen=True, kw_only=True, slots=True)
class HostEntry:
    """One host of the inventory, with its variables merged and read.

    Attributes:
        address: Where to connect: ``ansible_host``, else the name.
        port: ``ansible_port``; None leaves it to ssh_config.
        user: ``ansible_user``; None leaves it to ssh_config.
        groups: All groups it is in, with ancestors, without ``all``, sorted: Ansible's ``group_names``.
        vars: All variables as Ansible merges them; ``!vault`` and ``!unsafe`` values are opaque.
        connection: How to reach it: over SSH, or as a child process on this machine.
        identity_file: The private key to use, ``~`` expanded.
        ssh_args: ``ansible_ssh_common_args`` and then ``ansible_ssh_extra_args``, split as a shell would.
        ansible_python: ``ansible_python_interpreter``; None lets the helper look for one.
        role: Only nodes and spares run jobs, and ``none`` is never touched.
        setup: Shell lines to run before anything of the job.
        python: The interpreter with torch, as found in the environment that the setup leaves; None: ``python``.
        nproc: Number of workers on this host; None is ``auto``.
        gpus: How many GPUs are expected, or the indices or UUIDs to use; None is all.
        environment: A lock file of the project, with extras in brackets, from which the host gets an environment.
        env: Variables for the job, merged over groups, the host's winning.
        secrets: Names of variables whose values come from the operator's environment, merged over groups.
        data_address: Its address for connections between nodes; None: determined by trial.
        interface: Its network card for connections between nodes; None: determined by trial.
        ports: First and last port that we may listen on.
        workdir: A worker's current folder; None is the default.
        links: Path below that → the target of the link on this host.
        carry: Paths below that which are copied to a host that replaces another.
        state: The folder of spools and helper; None is the default.
        transport: Which SSH implementation to use.
        launcher: What starts torchrun.
        fork_server: Whether workers are forked from one process that has imported torch.
        warm: Seconds that a process which has imported torch waits for the next run; 0: there is none.
        preload: Packages that such a process imports besides torch.
        slurm: ``partition``, ``account``, ``time``: text; ``lines``: a tuple of sbatch lines; ``shared``: whether the
            nodes and the login host share a folder. Only what is set.
        where: ``file:line`` of the host's first mention.
    """

    name: str
    address: str
    port: int | None = None
    user: str | None = None
    groups: tuple[str, ...] = ()
    vars: Mapping[str, Any] = field(default_factory=dict, repr=False)
    connection: Literal["ssh", "local"] = "ssh"
    identity_file: Path | None = None
    ssh_args: tuple[str, ...] = ()
    ansible_python: str | None = None
    role: Role = "node"
    setup: tuple[str, ...] = ()
    python: str | None = None
    nproc: int | None = None
    gpus: int | tuple[str, ...] | None = None
    environment: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = ()
    data_address: str | None = None
    interface: str | None = None
    ports: tuple[int, int] = DEFAULT_PORTS
    workdir: str | None = None
    links: Mapping[str, str] = field(default_factory=dict)
    carry: tuple[str, ...] = ()
    state: str | None = None
    transport: Transport = "auto"
    launcher: str = "ssh"
    fork_server: bool = True
    warm: float = WARM
    preload: tuple[str, ...] = ()
    slurm: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""

    @property
    def keeps_warm(self) -> bool:
        """Whether a run may leave a process on the host that has imported torch and waits for the next run."""
        return self.fork_server and self.warm > 0 and self.launcher == "ssh" and self.role in {"node", "spare"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """Hosts and groups.

    Attributes:
        path: The file it was read from; None for the built-in one.
        hosts: All hosts in inventory order (as ``ansible all --list-hosts``): those directly under ``all``, those of no
            group, then group after group as written, outer groups before the groups inside them.
        groups: Each group's hosts in order, with those of the groups below it; ``all`` and ``ungrouped`` are among
            them.
        notices: Warnings for the user that are no reason to stop.
        pattern: The host pattern that selected its hosts; empty if all of the file's are in it.
        writers: Who may write the file; None if there is no file.
    """

    path: Path | None
    hosts: tuple[HostEntry, ...]
    groups: Mapping[str, tuple[str, ...]]
    notices: tuple[str, ...] = ()
    pattern: str = ""
    writers: Writers | None = None

    @property
    def nodes(self) -> tuple[HostEntry, ...]:
        """The hosts that run jobs, in inventory order."""
        return tuple(host for host in self.hosts if host.role == "node")

    @property
    def spares(self) -> tuple[HostEntry, ...]:
        """The hosts that can replace a lost node."""
        return tuple(host for host in self.hosts if host.role == "spare")

    @property
    def logins(self) -> tuple[HostEntry, ...]:
        """The hosts from which jobs are submitted."""
        return tuple(host for host in self.hosts if host.role == "login")

    @property
    def submitting(self) -> tuple[HostEntry, ...]:
        """The login hosts that submit to a workload manager."""
        return tuple(host for host in self.logins if host.launcher != DEFAULT_LAUNCHER)

    @property
    def managed(self) -> bool:
        """Whether a workload manager runs the jobs of all hosts, so that only login hosts are connected to."""
        return bool(self.hosts) and all(host.launcher != DEFAULT_LAUNCHER for host in self.hosts if host.role != "none")

    def limit(self, pattern: str) -> Inventory:
        """The part of it that a host pattern selects (``gpu:!gpu03``, ``gpu[0:3]``), still in inventory order.

        Raises ``InventoryError`` if the pattern is wrong or selects no host.
        """
        selection = select(pattern, [host.name for host in self.hosts], self.groups)
        chosen = set(selection.hosts)
        if not chosen:
            raise self._nothing(pattern)
        return replace(
            self,
            hosts=tuple(host for host in self.hosts if host.name in chosen),
            groups={name: tuple(h for h in hosts if h in chosen) for name, hosts in self.groups.items()},
            notices=self.notices + selection.notices,
            pattern=pattern,
        )

    def matching(self, pattern: str, option: str) -> list[str]:
        """The names of the hosts that an option's pattern selects; an ``InventoryError`` names the option."""
        try:
            return [host.name for host in self.limit(pattern).hosts]
        except InventoryError as error:
            error.message = f"{option}: {error.message.removeprefix('limit ')}"
            raise

    def pattern_without(self, names: Collection[str]) -> str:
        """A host pattern for its hosts without these; empty if no node would be left."""
        left = [host.name for host in self.hosts if host.name not in names]
        if not any(host.name in left for host in self.nodes):
            return ""
        base = self.pattern or "all"
        without = [f"!{word}" for word in self._folded(names)]
        if "," in base or (base == "all" and any(":" in name for name in names)):
            return ",".join([base, *without])
        if any(":" in name for name in names):
            return ",".join(left)
        return ":".join([base, *without])

    def _folded(self, names: Collection[str]) -> list[str]:
        """The names as patterns: in ranges, unless a range would mean positions in a group of that name."""
        named = [host.name for host in self.hosts if host.name in names]
        words = folded_words(named)
        ranges = [word for word in words if word not in named]
        taken = all("[" in word and word.partition("[")[0] not in self.groups for word in ranges)
        return words if taken else named

    def to_json(self) -> list[dict[str, Any]]:
        """The data of ``hosts --json``: ``name, address, port, user, groups, vars`` of each host.

        ``groups`` and ``vars`` are what Ansible's ``group_names`` and ``ansible-inventory --list`` show, except that
        the values of secrets are replaced by ``********`` (redact.py defines which those are).
        """
        return [
            {
                "name": host.name,
                "address": host.address,
                "port": host.port,
                "user": host.user,
                "groups": list(host.groups),
                "vars": redacted(host.vars),
            }
            for host in self.hosts
        ]

    def _nothing(self, pattern: str) -> InventoryError:
        if pattern in self.groups:
            return InventoryError(f"group {pattern!r} has no hosts", remedy="put hosts into it, or limit to another")
        groups = ", ".join(list(self.groups)[:_MOST_NAMED])
        hosts = few(folded_words([host.name for host in self.hosts]), _MOST_NAMED)
        remedy = f"groups are {groups}; hosts are {hosts}"
        return InventoryError(f"limit {pattern!r} selects no host", remedy=remedy)
