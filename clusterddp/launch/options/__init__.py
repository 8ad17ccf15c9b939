"""The options of a run: each is declared here, once.

From a field follow ``run``'s option and its help, the key of ``[tool.clusterddp]``, the keyword of ``Cluster.run``
(``run_keywords.py``, which ``python -m tests.run_keywords`` writes anew) and the row on the API's page. Fields stand in
the order in which ``run --help`` shows them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from clusterddp.errors import UsageError
from clusterddp.launch.options import option_values as values
from clusterddp.launch.options.declare import declarations, option, required_option
from clusterddp.remote.shared.run.run_settings import GRACE
from clusterddp.text.units import duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """The options of a run."""

    script: str = field(
        metadata=required_option(values.text, doc="Path in the project; with ``module`` a module's name.")
    )
    args: tuple[str, ...] = option(values.arguments, default=(), doc="The script's arguments, untouched.")
    nnodes: tuple[int, int] | None = option(
        values.nodes,
        default=None,
        accepts="int | str | tuple[int, int] | None",
        metavar="N|MIN:MAX",
        setting=True,
        help="Use the first N nodes that can take part (all); or MIN to MAX.",
        doc=(
            "Use the first so many nodes that can take part; None: all, and every one must. ``2:4``: the run "
            "is elastic: it starts with 2 to 4 nodes, and goes on while 2 are left."
        ),
    )
    nproc_per_node: int | None = option(
        values.number(1, auto=True),
        default=None,
        accepts="int | str | None",
        metavar="N|auto",
        setting=True,
        help="Workers a host (auto: one a GPU, else one).",
        doc="Workers per host; None leaves it to the inventory and the GPUs.",
    )
    gpus: str | None = option(
        values.checked(values.gpus),
        default=None,
        metavar="all|free[:N]|0,3",
        setting=True,
        help="Which GPUs of each host.",
        doc="``all``, ``free``, ``free:N`` or indices; None leaves it to the inventory.",
    )
    share_gpus: bool = option(
        values.flag,
        default=False,
        setting=True,
        help="Take GPUs that others use, too.",
        doc="Nodes may take the same GPUs.",
    )
    env: Mapping[str, str] = option(
        values.environment,
        default={},
        metavar="K[=V]",
        help="A variable for all workers; K alone: as it is here.",
        doc="Variables for all workers; they override the inventory's.",
    )
    secret: tuple[str, ...] = option(
        values.Each(values.secret),
        default=(),
        accepts="str | Iterable[str]",
        metavar="K",
        help="Like --env K; its value is written nowhere.",
        doc="Names of variables set here whose values workers get; the values are written nowhere else.",
    )
    name: str | None = option(
        values.checked(values.run_name), default=None, metavar="NAME", help="A name for the run.", doc="The run's name."
    )
    array: str | None = option(
        values.checked(values.array),
        default=None,
        metavar="A-B[%N]",
        help="Under Slurm: runs NAME.A to NAME.B, N at once; print their ids.",
        doc="Under Slurm: submit as many runs as this has indices, ``0-7%2``, as one array.",
    )
    time_limit: float | None = option(
        values.limit,
        default=None,
        accepts="float | str | None",
        metavar="D",
        setting=True,
        help="End the run after so long (exit code 124).",
        doc="Seconds, or a duration such as ``5m``, after which the run is ended.",
    )
    grace: float = option(
        duration,
        default=GRACE,
        accepts="float | str",
        metavar="D",
        setting=True,
        help="Time between SIGTERM and SIGKILL (30s).",
        doc=(
            "Seconds, or a duration, between SIGTERM and SIGKILL for the workers, when the run is stopped or "
            "a round starts again; 1 s if one of their hosts was lost."
        ),
    )
    max_restarts: int = option(
        values.number(0),
        default=0,
        metavar="N",
        setting=True,
        help="Start failed workers again, so often (0).",
        doc="How often torchrun starts failed workers again.",
    )
    relaunch: int = option(
        values.number(0),
        default=0,
        metavar="N",
        setting=True,
        help="Start the job again where a host is lost, so often (0).",
        doc="How often the job is started again, as the next attempt, after hosts or agents are lost.",
    )
    stall: float | None = option(
        values.stall,
        default=None,
        accepts="float | str | None",
        metavar="D",
        setting=True,
        help="Let the hosts find out that ranks hang in a collective for so long.",
        doc=(
            "Seconds, or a duration from ``10s``, for which ranks hang until the hosts do what ``on_stall`` says; 0: "
            "they do not look. None leaves it to the inventory."
        ),
    )
    on_stall: str = option(
        values.Choice("report", "restart", "stop"),
        default="report",
        setting=True,
        help="Then report it (default), restart the workers, or stop the run.",
        doc="``report`` a stall, ``restart`` the workers too (one of ``max_restarts``), or ``stop`` the run.",
    )
    on_disconnect: str = option(
        values.Choice("keep", "stop"),
        default="keep",
        setting=True,
        help="When the terminal is lost: keep the run (default), or stop it.",
        doc="``keep`` the run when its terminal is lost, or ``stop`` it.",
    )
    sync_limit: int | None = option(
        values.size,
        default=None,
        accepts="int | str | None",
        metavar="SIZE",
        setting=True,
        help="Sync up to so much (500MB).",
        doc="The most that a sync may hold, in bytes or as a size such as ``2G``; None is the default.",
    )
    spread: str = option(
        values.spread,
        default="auto",
        setting=True,
        help="Whether hosts pass files on to each other (auto: where that saves time).",
        doc=("Whether hosts pass on to each other what a sync brings: ``auto`` (if it saves time), ``on`` or ``off``."),
    )
    take: str | None = option(
        values.take,
        default=None,
        help="Whose version of data is taken that both project and host changed (neither: it is refused).",
        doc=(
            "Which version wins for a data file that both project and host changed: ``project`` or ``host``. "
            "None: the run is refused."
        ),
    )
    log_limit: int | None = option(
        values.size,
        default=None,
        accepts="int | str | None",
        metavar="SIZE",
        setting=True,
        help="Keep so much output on each host (10GB).",
        doc=(
            "How much output each host keeps, in bytes or as a size; beyond it the oldest is deleted. None is "
            "the default."
        ),
    )
    no_sync: bool = option(
        values.flag,
        default=False,
        setting=True,
        help="Use the code that is on the hosts.",
        doc="Use the code that is on the hosts.",
    )
    no_fork_server: bool = option(
        values.flag,
        default=False,
        setting=True,
        help="Start every worker plainly, whatever the inventory says.",
        doc="Start every worker without the fork server, whatever the inventory says.",
    )
    no_comm_trace: bool = option(
        values.flag,
        default=False,
        setting=True,
        help="Do not let workers answer for their collectives.",
        doc="Start no server in the workers that says which collective operations they are in (``why`` asks it).",
    )
    pdb: bool = option(
        values.flag,
        default=False,
        help="Wait for `debug` at an uncaught exception, too.",
        doc="At an uncaught exception a worker waits for ``clusterddp debug``, as at ``breakpoint()``, before it ends.",
    )
    breakpoint_timeout: float | None = option(
        duration,
        default=None,
        accepts="float | str | None",
        metavar="D",
        setting=True,
        help="Go on after so long at a breakpoint() to which nobody comes (10m).",
        doc=(
            "Seconds, or a duration, that ``breakpoint()`` waits for ``clusterddp debug``; None: 10 minutes, or a "
            "minute less than the process groups' timeouts leave."
        ),
    )
    no_doctor: bool = option(
        values.flag,
        default=False,
        setting=True,
        help="Skip the quick checks before the start.",
        doc="Do not refuse hosts because of the doctor's quick checks.",
    )
    skip: tuple[str, ...] = option(
        values.checks,
        default=(),
        accepts="str | Iterable[str]",
        metavar="CHECKS",
        complete="checks",
        help="Skip these checks, with commas.",
        doc="Names of such checks, or of categories, to leave out.",
    )
    workdir: str | None = option(
        values.checked(values.workdir),
        default=None,
        metavar="NAME|fresh",
        help="A folder of its own beside the project's.",
        doc=(
            "The name of a separate folder beside the project's on each host, or ``fresh``: the run's id is "
            "the name. None: the project's."
        ),
    )
    launcher: str | None = option(
        values.checked(values.launcher),
        default=None,
        metavar="NAME",
        setting=True,
        help="What starts torchrun: ssh (default) or slurm.",
        doc="The launcher's name; None leaves it to the inventory.",
    )
    rdzv_backend: str = option(
        values.Choice("auto", "c10d", "static"),
        default="auto",
        setting=True,
        help="How torchrun's agents meet (auto).",
        doc=(
            "torchrun's rendezvous: ``c10d``, ``static``, or ``auto``: clusterddp's own if every host's torch "
            "supports it."
        ),
    )
    torchrun_arg: tuple[str, ...] = option(
        values.Each(values.torchrun_arg),
        default=(),
        accepts="str | Iterable[str]",
        metavar="X",
        help="One more word for torchrun.",
        doc="More options for torchrun.",
    )
    pass_local_rank: bool = option(
        values.flag,
        default=False,
        setting=True,
        help="Give the script --local-rank=N, as torch.distributed.launch did.",
        doc="Pass ``--local-rank=N`` to the script, as ``torch.distributed.launch`` does.",
    )
    debug_comm: bool = option(
        values.flag,
        default=False,
        setting=True,
        help="Let NCCL and torch tell what they do.",
        doc="Make NCCL and torch log what they do.",
    )
    module: bool = option(
        values.flag, default=False, short="-m", help="SCRIPT is a module's name.", doc="Run it as ``python -m``."
    )
    again: str | None = option(
        values.text,
        default=None,
        metavar="RUN",
        complete="runs",
        help="Repeat a run of this project as it was, code and all; no SCRIPT then.",
        doc="The id of a run to repeat unchanged: the other options are that run's (``launch/repeat.py``).",
    )
    limit: str | None = option(values.text, default=None, doc="The host pattern that chose the hosts, for the record.")

    def __post_init__(self) -> None:
        for name, declared in DECLARED.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            object.__setattr__(self, name, values.read(name, declared.read, value))
        if self.rdzv_backend == "static":
            self._check_static()
        self._check_stall()

    def _check_static(self) -> None:
        """Refuse options that a static rendezvous cannot honour; raises UsageError."""
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

    def _check_stall(self) -> None:
        """Refuse a stall guard that could not see or do what is asked; raises UsageError."""
        if self.stall and self.no_comm_trace:
            raise UsageError(
                "--stall with --no-comm-trace: nobody can tell then whether workers hang",
                remedy="leave out one of the two",
            )
        if self.on_stall == "restart" and not self.max_restarts:
            raise UsageError(
                "--on-stall restart: no restart is allowed", remedy="give --max-restarts N too, or --on-stall stop"
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


DECLARED = declarations(RunOptions)
_OPTIONAL = frozenset(one.name for one in fields(RunOptions) if one.default is None)
# Not keywords of ``Cluster.run``: two are its arguments, the third chooses all other options.
BESIDE_KEYWORDS = ("script", "args", "again")


def run_options(script: str, args: Sequence[str], options: Mapping[str, Any]) -> RunOptions:
    """Build a run's options from keywords; raises UsageError if a keyword is unknown, or its value is invalid."""
    values.refuse_unknown(options, [name for name in DECLARED if name not in BESIDE_KEYWORDS], "a run")
    return RunOptions(script=script, args=values.arguments(args), **options)
