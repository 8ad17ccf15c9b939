"""A host of the inventory: each variable is declared here, once, as the field that has its value.

From the declarations follow the names that an inventory may have (``variable_names.py``), how a host is read
(``read_host.py``), and what a Slurm job refuses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from clusterddp.inventory.ansible_names import COMMON_ARGS, CONNECTION, EXTRA_ARGS, HOST, KEY_FILE, PORT, PYTHON, USER
from clusterddp.inventory.launchers import DEFAULT_LAUNCHER
from clusterddp.inventory.variables import variable_readers as readers
from clusterddp.inventory.variables.declare import declared_variables, required, variable, variables
from clusterddp.inventory.variables.reader import choice

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Role = Literal["node", "spare", "login", "none"]
Transport = Literal["auto", "fabric", "openssh"]
DEFAULT_PORTS = (29400, 29499)
WARM = 900.0  # seconds: the default of ``clusterddp_warm``


@dataclass(frozen=True, kw_only=True, slots=True)
class HostEntry:
    """One host of the inventory, with its variables merged and read."""

    name: str
    # All groups it is in, with ancestors, without ``all``, sorted: Ansible's ``group_names``.
    groups: tuple[str, ...] = ()
    # All variables as Ansible merges them; ``!vault`` and ``!unsafe`` values are opaque.
    vars: Mapping[str, Any] = field(default_factory=dict, repr=False)
    # ``file:line`` of the host's first mention.
    where: str = ""
    # Only nodes and spares run jobs, and ``none`` is never touched.
    role: Role = variable("clusterddp_role", choice("node", "spare", "login", "none"), default="node")
    # Where to connect: ``ansible_host``, else the name.
    address: str = field(metadata=required(HOST, readers.address))
    # ``ansible_port``; None leaves it to ssh_config.
    port: int | None = variable(PORT, readers.port, default=None)
    # ``ansible_user``; None leaves it to ssh_config.
    user: str | None = variable(USER, readers.user, default=None)
    # How to reach it: over SSH, or as a child process on this machine.
    connection: Literal["ssh", "local"] = variable(CONNECTION, readers.connection, default="ssh")
    # The private key to use, ``~`` expanded.
    identity_file: Path | None = variable(KEY_FILE, readers.identity_file, default=None)
    # ``ansible_ssh_common_args`` and then ``ansible_ssh_extra_args``, split as a shell would.
    ssh_args: tuple[str, ...] = variables((*COMMON_ARGS, EXTRA_ARGS), readers.ssh_args, default=())
    # ``ansible_python_interpreter``; None lets the helper look for one.
    ansible_python: str | None = variable(PYTHON, readers.ansible_python, default=None)
    # Which SSH implementation to use.
    transport: Transport = variable("clusterddp_transport", choice("auto", "fabric", "openssh"), default="auto")
    # The folder of spools and helper; None is the default.
    state: str | None = variable("clusterddp_state", readers.folder, default=None, of_job="login")
    # Shell lines to run before anything of the job.
    setup: tuple[str, ...] = variable("clusterddp_setup", readers.setup, default=(), of_job="nodes")
    # The interpreter with torch, as found in the environment that the setup leaves; None: ``python``.
    python: str | None = variable("clusterddp_python", readers.python, default=None, of_job="nodes")
    # Number of workers on this host; None is ``auto``.
    nproc: int | None = variable("clusterddp_nproc", readers.nproc, default=None, of_job="nodes")
    # A lock file of the project, with extras in brackets, from which the host gets an environment.
    environment: str | None = variable("clusterddp_environment", readers.environment, default=None, of_job="nodes")
    # How many GPUs are expected, or the indices or UUIDs to use; None is all.
    gpus: int | tuple[str, ...] | None = variable("clusterddp_gpus", readers.gpus, default=None, of_job="nodes")
    # Its address for connections between nodes; None: determined by trial.
    data_address: str | None = variable("clusterddp_address", readers.address, default=None)
    # Its network interface for connections between nodes; None: determined by trial.
    interface: str | None = variable("clusterddp_interface", readers.interface, default=None, of_job="nodes")
    # First and last port that we may listen on.
    ports: tuple[int, int] = variable("clusterddp_ports", readers.ports, default=DEFAULT_PORTS, of_job="nodes")
    # A worker's current folder; None is the default.
    workdir: str | None = variable("clusterddp_workdir", readers.folder, default=None, of_job="login")
    # Whether workers are forked from one process that has imported torch.
    fork_server: bool = variable("clusterddp_fork_server", readers.flag, default=True, of_job="nodes")
    # Whether a worker has a server that says which collective operations it is in.
    comm_trace: bool = variable("clusterddp_comm_trace", readers.flag, default=True, of_job="nodes")
    # Seconds for which ranks hang until a run's hosts report it; 0: they do not look.
    stall: float = variable("clusterddp_stall", readers.stall, default=0.0, of_job="nodes")
    # Seconds that a process which has imported torch waits for the next run; 0: there is none.
    warm: float = variable("clusterddp_warm", readers.warm, default=WARM)
    # Packages that the fork server and the warm server import besides torch.
    preload: tuple[str, ...] = variable("clusterddp_preload", readers.preload, default=(), of_job="nodes")
    # Path below the workdir → the target of the link there on this host.
    links: Mapping[str, str] = variable("clusterddp_links", readers.links, default={}, of_job="login")
    # Paths below the workdir that are copied to a host which replaces another.
    carry: tuple[str, ...] = variable("clusterddp_carry", readers.carry, default=())
    # The name of what starts torchrun: ``ssh`` or ``slurm``.
    launcher: str = variable("clusterddp_launcher", readers.launcher, default=DEFAULT_LAUNCHER)
    # Variables for the job, merged over groups, the host's winning.
    env: Mapping[str, str] = variables(("clusterddp_env",), None, default={}, of_job="nodes", repr=False)
    # Names of variables whose values come from the operator's environment, merged over groups.
    secrets: tuple[str, ...] = variables(("clusterddp_secrets",), None, default=(), of_job="nodes")
    # ``partition``, ``account``, ``time``: text; ``lines``: a tuple of sbatch lines; ``shared``: whether the nodes
    # and the login host share a folder. Only what is set.
    slurm: Mapping[str, Any] = variables(tuple(readers.SLURM.values()), readers.slurm, default={}, of_job="nodes")

    @property
    def keeps_warm(self) -> bool:
        """Whether a run may leave a process on the host that has imported torch and waits for the next run."""
        return self.fork_server and self.warm > 0 and self.launcher == "ssh" and self.role in {"node", "spare"}


VARIABLES = declared_variables(HostEntry)
