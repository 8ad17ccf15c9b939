"""The options of a run, and the keywords of ``Cluster``'s methods."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypedDict

from clusterddp.errors import UsageError
from clusterddp.launch import option_values as values
from clusterddp.project import Project, find
from clusterddp.remote.shared.run.node_env import GRACE
from clusterddp.text.units import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """The options of a run.

    Attributes:
        script: Path in the project; with ``module`` a module's name.
        args: The script's arguments, untouched.
        module: Run it as ``python -m``.
        name: The run's name.
        array: Under Slurm: submit as many runs as this has indices, ``0-7%2``, as one array.
        nnodes: Use the first so many nodes that can take part; None: all, and every one must. ``2:4``: the run is
            elastic: it starts with 2 to 4 nodes, and goes on while 2 are left.
        nproc_per_node: Workers per host; None leaves it to the inventory and the GPUs.
        gpus: ``all``, ``free``, ``free:N`` or indices; None leaves it to the inventory.
        share_gpus: Nodes may take the same GPUs.
        env: Variables for all workers; they override the inventory's.
        secret: Names of variables set here whose values workers get; the values are written nowhere else.
        time_limit: Seconds, or a duration such as ``5m``, after which the run is ended.
        relaunch: How often the job is started again, as the next attempt, after hosts or agents are lost.
        on_disconnect: ``keep`` the run when its terminal is lost, or ``stop`` it.
        max_restarts: How often torchrun starts failed workers again.
        rdzv_backend: torchrun's rendezvous: ``c10d``, ``static``, or ``auto``: clusterddp's own if every host's torch
            supports it.
        torchrun_arg: More options for torchrun.
        pass_local_rank: Pass ``--local-rank=N`` to the script, as ``torch.distributed.launch`` does.
        debug_comm: Make NCCL and torch log what they do.
        grace: Seconds, or a duration, between SIGTERM and SIGKILL for the workers, when the run is stopped or a round
            starts again; 1 s if one of their hosts was lost.
        no_doctor: Do not refuse hosts because of the doctor's quick checks.
        no_fork_server: Start every worker without the fork server, whatever the inventory says.
        skip: Names of such checks, or of categories, to leave out.
        no_sync: Use the code that is on the hosts.
        sync_limit: The most that a sync may hold, in bytes or as a size such as ``2G``; None is the default.
        spread: Whether hosts pass on to each other what a sync brings: ``auto`` (if it saves time), ``on`` or ``off``.
        take: Which version wins for a data file that both project and host changed: ``project`` or ``host``. None: the
            run is refused.
        log_limit: How much output each host keeps, in bytes or as a size; beyond it the oldest is deleted. None is the
            default.
        launcher: The launcher's name; None leaves it to the inventory.
        limit: The host pattern that chose the hosts, for the record.
        workdir: The name of a separate folder beside the project's on each host, or ``fresh``: the run's id is the
            name. None: the project's.
        again: The id of a run to repeat unchanged: the other options are that run's (``launch/repeat.py``).
    """

    script: str
    args: tuple[str, ...] = ()
    module: bool = False
    name: str | None = None
    array: str | None = None
    nnodes: tuple[int, int] | None = None
    nproc_per_node: int | None = None
    gpus: str | None = None
    share_gpus: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    secret: tuple[str, ...] = ()
    time_limit: float | None = None
    relaunch: int = 0
    on_disconnect: str = "keep"
    max_restarts: int = 0
    rdzv_backend: str = "auto"
    torchrun_arg: tuple[str, ...] = ()
    pass_local_rank: bool = False
    debug_comm: bool = False
    grace: float = GRACE
    no_doctor: bool = False
    no_fork_server: bool = False
    skip: tuple[str, ...] = ()
    no_sync: bool = False
    sync_limit: int | None = None
    spread: str = "auto"
    take: str | None = None
    log_limit: int | None = None
    launcher: str | None = None
    limit: str | None = None
    workdir: str | None = None
    again: str | None = None

    def __post_init__(self) -> None:
        for name, reader in _READERS.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            object.__setattr__(self, name, values.read(name, reader, value))
        if self.rdzv_backend == "static":
            self._check_static()

    def _check_static(self) -> None:
        if self.elastic:
            raise UsageError(
                f"--nnodes {self.size}: a static rendezvous has a fixed size",
                remedy="give one number, or no --rdzv-backend",
            )
        if self.max_restarts:
            raise UsageError(
                f"--max-restarts {self.max_restarts}: under static each host would start again alone, with what its"
                " store holds of the round before",
                remedy="leave out --rdzv-backend, or take --relaunch",
            )

    @property
    def elastic(self) -> bool:
        """Whether the run may shrink and grow."""
        return self.nnodes is not None and self.nnodes[0] < self.nnodes[1]

    @property
    def size(self) -> str:
        """``nnodes`` as on the command line; empty for all."""
        if self.nnodes is None:
            return ""
        least, most = self.nnodes
        return f"{least}:{most}" if self.elastic else str(most)


_READERS: Mapping[str, Callable[[Any], object]] = {
    "script": values.text,
    "args": values.arguments,
    "module": values.flag,
    "name": values.checked(values.run_name),
    "array": values.checked(values.array),
    "nnodes": values.nodes,
    "nproc_per_node": values.number(1, auto=True),
    "gpus": values.checked(values.gpus),
    "share_gpus": values.flag,
    "env": values.environment,
    "secret": values.each(values.secret),
    "time_limit": values.limit,
    "relaunch": values.number(0),
    "on_disconnect": values.choice("keep", "stop"),
    "max_restarts": values.number(0),
    "rdzv_backend": values.choice("auto", "c10d", "static"),
    "torchrun_arg": values.each(values.torchrun_arg),
    "pass_local_rank": values.flag,
    "debug_comm": values.flag,
    "grace": duration,
    "no_doctor": values.flag,
    "no_fork_server": values.flag,
    "skip": values.checks,
    "no_sync": values.flag,
    "sync_limit": values.size,
    "spread": values.spread,
    "take": values.take,
    "log_limit": values.size,
    "launcher": values.checked(values.launcher),
    "limit": values.text,
    "workdir": values.checked(values.workdir),
    "again": values.text,
}
_OPTIONAL = frozenset(one.name for one in fields(RunOptions) if one.default is None)


class RunKeywords(TypedDict, total=False):
    """The keywords of ``Cluster.run``: the command line's options by their names, with ``_`` for ``-``."""

    module: bool
    name: str | None
    array: str | None
    nnodes: int | str | tuple[int, int] | None
    nproc_per_node: int | str | None
    gpus: str | None
    share_gpus: bool
    env: Mapping[str, str]
    secret: str | Iterable[str]
    time_limit: float | str | None
    relaunch: int
    on_disconnect: str
    max_restarts: int
    rdzv_backend: str
    torchrun_arg: str | Iterable[str]
    pass_local_rank: bool
    debug_comm: bool
    grace: float | str
    no_doctor: bool
    no_fork_server: bool
    skip: str | Iterable[str]
    no_sync: bool
    sync_limit: int | str | None
    spread: str
    take: str | None
    log_limit: int | str | None
    launcher: str | None
    limit: str | None
    workdir: str | None


class ClusterKeywords(TypedDict, total=False):
    """The keywords of the constructors of ``Cluster``.

    Attributes:
        project: The project, or a folder in it; by default the current folder's.
        accept_new_host_keys: Record unknown host keys instead of refusing them; a changed one is always refused.
        notify: Receives notices, a line each.
        progress: Receives the current activity, in a few words.
        ask: Asks the user for a passphrase or a second factor, one prompt at a time; None: there is no user to ask.
    """

    project: Project | str | Path | None
    accept_new_host_keys: bool
    notify: Callable[[str], None]
    progress: Callable[[str], None]
    ask: Callable[[str], str] | None


class DoctorKeywords(TypedDict, total=False):
    """The keywords of ``Cluster.doctor``: the command line's options by their names.

    Attributes:
        only: Names of checks or categories, in any case, as ``"gpus,network"`` or several; none means all.
        skip: Names of those to leave out.
        bench: Also measure, on hosts where nothing else computes.
        share_gpus: Others' work on the GPUs is expected; it becomes a warning.
        launcher: The launcher whose hosts are judged; None leaves it to the inventory. With ``slurm``, the nodes of a
            short job are judged.
        nnodes: How many of them; None: those that the inventory names, or else one.
        partition: Slurm's partition, in place of the inventory's.
    """

    only: str | Iterable[str]
    skip: str | Iterable[str]
    bench: bool
    share_gpus: bool
    launcher: str | None
    nnodes: int | None
    partition: str | None


class ExecKeywords(TypedDict, total=False):
    """The keywords of ``Cluster.exec``: the command line's options by their names.

    Attributes:
        shell: A text for ``bash -c`` instead of a program.
        bare: Use the login's environment and home; otherwise, as for a worker, setup lines, interpreter and workdir.
        timeout: Seconds, or a duration such as ``5m``, after which the command is ended; None: no limit.
        grace: Seconds, or a duration, between SIGTERM and SIGKILL when the command is ended.
        sync: First sync the project's code to the hosts that answer.
    """

    sync: bool
    shell: str | None
    bare: bool
    timeout: float | str | None
    grace: float | str


CLUSTER_READERS: Mapping[str, Callable[[Any], object]] = {
    "project": values.optional(lambda given: given if isinstance(given, Project) else find(values.folder(given))),
    "accept_new_host_keys": values.flag,
    "notify": values.callback,
    "progress": values.callback,
    "ask": values.optional(values.callback),
}
DOCTOR_READERS: Mapping[str, Callable[[Any], object]] = {
    "only": values.checks,
    "skip": values.checks,
    "bench": values.flag,
    "share_gpus": values.flag,
    "launcher": values.optional(values.checked(values.launcher)),
    "nnodes": values.optional(values.number(1)),
    "partition": values.optional(values.text),
}
EXEC_READERS: Mapping[str, Callable[[Any], object]] = {
    "shell": values.optional(values.text),
    "bare": values.flag,
    "timeout": values.optional(values.limit),
    "grace": duration,
    "sync": values.flag,
}


def run_options(script: str, args: Sequence[str], options: Mapping[str, Any]) -> RunOptions:
    """Build a run's options from keywords.

    Raises:
        UsageError: A keyword is unknown, or its value is invalid; the message names it.
    """
    values.known(options, RunKeywords.__annotations__, "a run")
    return RunOptions(script=script, args=values.arguments(args), **options)
