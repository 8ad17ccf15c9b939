"""What an inventory is to the rest of the program: frozen values, no YAML, no files."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from clusterddp.errors import InventoryError
from clusterddp.inventory.patterns import select
from clusterddp.inventory.redact import redacted
from clusterddp.inventory.variable_names import LAUNCHERS
from clusterddp.text.folding import few, folded_words

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from clusterddp.consent import Writers

Role = Literal["node", "spare", "login", "none"]
Transport = Literal["auto", "fabric", "openssh"]
DEFAULT_PORTS = (29400, 29499)
WARM = 900.0  # seconds
_MOST_NAMED = 8  # names listed in an error


@dataclass(frozen=True, kw_only=True, slots=True)
class HostEntry:
    """One host of the inventory, its variables merged and ours read.

    Attributes:
        name: The name in the inventory; unique there.
        address: Where to connect: ``ansible_host``, else the name.
        port: ``ansible_port``; None leaves it to ssh_config.
        user: ``ansible_user``; None leaves it to ssh_config.
        groups: All groups it is in, ancestors too, ``all`` not, sorted: Ansible's ``group_names``.
        vars: All variables as Ansible merges them; ``!vault`` and ``!unsafe`` values are opaque.
        connection: How to reach it: over SSH, or as a child process on this machine.
        identity_file: The private key to use, ``~`` expanded.
        ssh_args: ``ansible_ssh_common_args`` and then ``ansible_ssh_extra_args``, split as a shell would.
        ansible_python: ``ansible_python_interpreter``; None lets the helper look for one.
        role: What it is for; only nodes and spares run jobs, and ``none`` is never touched.
        setup: Shell lines to run before anything of the job.
        python: The interpreter with torch, as found in the environment that the setup leaves; None: ``python``.
        nproc: Workers on this host; None is ``auto``.
        gpus: How many GPUs are expected, or the indices or UUIDs to use; None is all.
        environment: A lock file of the project, with extras in brackets, of which hosts get an environment; None: none.
        env: Variables for the job, joined over groups, the host's winning.
        secrets: Names of variables whose values come from the operator's environment, joined over groups.
        data_address: Its address on the data plane; None: to be probed.
        interface: Its NIC on the data plane; None: to be probed.
        ports: First and last port that we may listen on.
        workdir: A worker's current folder; None is the default.
        links: Path below that → where it leads on this host.
        carry: Paths below that which go to a host that takes another's place.
        state: The folder of spools and helper; None is the default.
        transport: Which SSH to use.
        launcher: What starts torchrun.
        fork_server: Whether workers are forked from one process that has imported torch.
        warm: Seconds that a process which has imported torch stays for the next run; 0: none does.
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
        """Whether a run may leave a process there that waits for the next one."""
        return self.fork_server and self.warm > 0 and self.launcher == "ssh" and self.role in {"node", "spare"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """Hosts and groups.

    Attributes:
        path: The file it was read from; None is the built-in one.
        hosts: All hosts in inventory order (as ``ansible all --list-hosts``): those that stand directly under ``all``,
            those of no group, then group after group as written, outer groups before the groups inside them.
        groups: Each group's hosts in order, those of the groups below it too; ``all`` and ``ungrouped`` among them.
        notices: What a reader should hear of, though nothing is wrong enough to stop.
        pattern: The host pattern that has selected its hosts; empty for all of the file's.
        writers: Who may write the file; None where there is none.
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
        """The hosts that stand by for a relaunch."""
        return tuple(host for host in self.hosts if host.role == "spare")

    @property
    def logins(self) -> tuple[HostEntry, ...]:
        """The hosts from which jobs are submitted."""
        return tuple(host for host in self.hosts if host.role == "login")

    @property
    def submitting(self) -> tuple[HostEntry, ...]:
        """Those of them that a workload manager's inventory names."""
        return tuple(host for host in self.logins if host.launcher != LAUNCHERS[0])

    @property
    def managed(self) -> bool:
        """Whether a workload manager has all of its hosts: none is connected to but those that submit."""
        return bool(self.hosts) and all(host.launcher != LAUNCHERS[0] for host in self.hosts if host.role != "none")

    def limit(self, pattern: str) -> Inventory:
        """The part of it that a host pattern selects, still in inventory order.

        Args:
            pattern: An Ansible host pattern, such as ``gpu:!gpu03`` or ``gpu[0:3]``.

        Raises:
            InventoryError: The pattern is wrong or selects no host.
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
        """The names of the hosts that the pattern of an option selects.

        Raises:
            InventoryError: as of ``limit``; names the option.
        """
        try:
            return [host.name for host in self.limit(pattern).hosts]
        except InventoryError as error:
            error.message = f"{option}: {error.message.removeprefix('limit ')}"
            raise

    def pattern_without(self, names: Collection[str]) -> str:
        """The host pattern that selects its hosts but for these; empty where no node would be left."""
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
        """The names as patterns: in ranges, unless a range would mean places in a group of that name."""
        named = [host.name for host in self.hosts if host.name in names]
        words = folded_words(named)
        ranges = [word for word in words if word not in named]
        taken = all("[" in word and word.partition("[")[0] not in self.groups for word in ranges)
        return words if taken else named

    def to_json(self) -> list[dict[str, Any]]:
        """The data of ``hosts --json``: ``name, address, port, user, groups, vars`` of each host.

        ``groups`` and ``vars`` are what Ansible's ``group_names`` and ``ansible-inventory --list`` show, but that the
        values of secrets are replaced by ``********`` (see redact.py for which those are).
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
