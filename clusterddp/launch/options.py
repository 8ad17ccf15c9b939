"""What a user can say about a run.

Not here: how the words are written on a command line (cli/), the script itself (launch/script.py), what hosts make of
it all (launch/prepare.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError
from clusterddp.remote.shared.node_env import GRACE
from clusterddp.remote.shared.workdirs import FRESH, NAME

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """What a user can say about a run.

    Attributes:
        script: Path in the project; with ``module`` a module's name.
        args: The script's arguments, untouched.
        module: Run it as ``python -m``.
        name: The run's name.
        nnodes: Use the first so many nodes that can take part; None is all, and each must.
        min_nodes: The run is elastic: it starts with so many nodes at least, ``nnodes`` at most, and goes on while so
            many are left. None: its size is fixed.
        nproc: Workers a host; None leaves it to the inventory and the GPUs.
        gpus: ``all``, ``free``, ``free:N`` or indices; None leaves it to the inventory.
        share_gpus: Nodes may take the same GPUs.
        env: Variables for all workers; above the inventory's.
        secrets: Names of variables of ours whose values workers get; they are written nowhere else.
        time_limit: Seconds.
        relaunch: How often the job is started again, as the next attempt, when hosts or agents are lost.
        on_disconnect: ``keep`` the run when its terminal is lost, or ``stop`` it.
        max_restarts: How often torchrun starts failed workers again.
        rdzv_backend: torchrun's rendezvous: ``c10d``, ``static``, or ``auto``: ours where every torch can have it.
        torchrun_args: More options for torchrun.
        pass_local_rank: The script gets ``--local-rank=N`` too, as from ``torch.distributed.launch``.
        debug_comm: Let NCCL and torch tell what they do.
        grace: Seconds between SIGTERM and SIGKILL for the workers, when the run is stopped or a round starts again.
        no_doctor: Refuse no host by the doctor's quick checks.
        skip: Names of those checks, or of categories, that are left out.
        no_sync: Use what is on the hosts.
        sync_limit: Bytes that a sync may hold; None is the default.
        log_limit: Bytes of output that each host keeps; beyond it the oldest go. None is the default.
        launcher: What starts the run, by its name; None leaves it to the inventory.
        limit: The host pattern that chose the hosts, for the record.
        workdir: The name of a folder of its own beside the project's on each host, or ``fresh``: the run's id is the
            name. None: the project's.
    """

    script: str
    args: tuple[str, ...] = ()
    module: bool = False
    name: str | None = None
    nnodes: int | None = None
    min_nodes: int | None = None
    nproc: int | None = None
    gpus: str | None = None
    share_gpus: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    time_limit: float | None = None
    relaunch: int = 0
    on_disconnect: str = "keep"
    max_restarts: int = 0
    rdzv_backend: str = "auto"
    torchrun_args: tuple[str, ...] = ()
    pass_local_rank: bool = False
    debug_comm: bool = False
    grace: float = GRACE
    no_doctor: bool = False
    skip: tuple[str, ...] = ()
    no_sync: bool = False
    sync_limit: int | None = None
    log_limit: int | None = None
    launcher: str | None = None
    limit: str | None = None
    workdir: str | None = None

    def __post_init__(self) -> None:
        if self.workdir is not None and not NAME.fullmatch(self.workdir):
            raise UsageError(
                f"--workdir {self.workdir!r} cannot be a folder's name",
                remedy=f"use at most 64 letters, digits, '.', '_' and '-', or {FRESH}",
            )
        if self.min_nodes is not None and (self.nnodes is None or not 0 < self.min_nodes <= self.nnodes):
            raise UsageError(f"--nnodes {self.min_nodes}:{self.nnodes}: the least is more than the most")
        if self.rdzv_backend != "static":
            return
        if self.min_nodes is not None:
            size = f"--nnodes {self.min_nodes}:{self.nnodes}"
            raise UsageError(
                f"{size}: a static rendezvous has a fixed size", remedy="give one number, or no --rdzv-backend"
            )
        if self.max_restarts:
            raise UsageError(
                f"--max-restarts {self.max_restarts}: under static each host would start again alone, with what its"
                " store holds of the round before",
                remedy="leave out --rdzv-backend, or take --relaunch",
            )
