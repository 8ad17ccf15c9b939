"""The scheduler ``clusterddp`` of torchx: its commands run, show and stop runs of clusterddp (docs/torchx.md).

torchx imports this file by the folder that it lies in; nothing of clusterddp does. No ``__init__.py`` lies beside or
above it, so that other distributions' schedulers lie in the same folders. torchx's default scheduler is the first that
is registered; modules of subfolders such as this one come last.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    import torchx
    from torchx.plugins import register
    from torchx.runner import config
    from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream
    from torchx.specs import AppDryRunInfo, AppState, ReplicaStatus, Role, RoleStatus, runopts
except ImportError as error:
    raise ImportError(
        "clusterddp: its scheduler needs a torchx that reads torchx_plugins, which 0.7.0 does not;"
        " `pip install torchx-nightly==2026.10.26`"
    ) from error

from clusterddp.cli.output import say
from clusterddp.cli.session import open_cluster
from clusterddp.errors import ClusterddpError, RunError, UsageError
from clusterddp.project.project import find
from clusterddp.remote.shared.run.run_state import RunState
from torchx_plugins.schedulers.clusterddp._mapping import map_app, role_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from clusterddp import Cluster, RunOptions, RunView

NAME = "clusterddp"
_HANDLE = "TORCHX_JOB_ID"  # the variable in which torchx gives an app its own handle
_STATES = {
    RunState.QUEUED: AppState.PENDING,
    RunState.STARTING: AppState.PENDING,
    RunState.RUNNING: AppState.RUNNING,
    RunState.SUCCEEDED: AppState.SUCCEEDED,
    RunState.FAILED: AppState.FAILED,
    RunState.LOST: AppState.FAILED,
    RunState.STOPPED: AppState.CANCELLED,
}
_STREAMS = {Stream.STDOUT: "out", Stream.STDERR: "err"}


@dataclass(frozen=True)
class Request:
    """What is started: the options of a run, and the hosts to start it on."""

    options: RunOptions
    inventory: str | None
    limit: str | None

    def __str__(self) -> str:
        """Return the command line that starts the same run."""
        given = self.options
        words = ["clusterddp", "run", "--detach"]
        for option, value in {
            "-i": self.inventory,
            "--limit": self.limit,
            "--nnodes": given.size,
            "--nproc-per-node": given.nproc_per_node,
            "--max-restarts": given.max_restarts or None,
            "--time-limit": given.time_limit,
            "--workdir": given.workdir,
            "--name": given.name,
        }.items():
            words += [option, str(value)] if value else []
        for name, value in given.env.items():
            words += ["--env", f"{name}={value}"]
        return shlex.join([*words, *(["-m"] if given.module else []), given.script, *given.args])


class ClusterddpScheduler(Scheduler):
    """Runs of clusterddp as apps of torchx: a host is a replica, and the app's id is the run's name."""

    def __init__(self, session_name: str) -> None:
        super().__init__(NAME, session_name)
        self._clusters: dict[tuple[str | None, str | None, bool], Cluster] = {}

    def _run_opts(self) -> runopts:
        opts = runopts()
        opts.add("inventory", type_=str, help="the inventory's file; by default that of `clusterddp up`")
        opts.add("limit", type_=str, help="use only the hosts that this pattern matches")
        opts.add("workdir", type_=str, help="a folder of its own on the hosts: a name, or `fresh`")
        opts.add("time_limit", type_=str, help="end the run after so long, such as `90m`")
        return opts

    def _submit_dryrun(self, app: Any, cfg: Mapping[str, Any]) -> AppDryRunInfo:
        with _one_line():
            _refuse_inventory_of_folder(cfg)
            label = re.sub(r"[^A-Za-z0-9_.-]+", "-", app.name).strip("-.")[:60] or "app"
            settings = {name: cfg[name] for name in ("workdir", "time_limit") if cfg.get(name) is not None}
            options = map_app(app, f"{label}-{secrets.token_hex(5)}", torchx.IMAGE, settings)
            return AppDryRunInfo(Request(options, _inventory(cfg.get("inventory")), cfg.get("limit")), str)

    def schedule(self, dryrun_info: AppDryRunInfo) -> str:
        """Start the run; return its name."""
        request: Request = dryrun_info.request
        with _one_line():
            cluster = self._open(request.inventory, request.limit, starts=True)
            cluster.detached = True
            cluster.start(request.options)
            return str(request.options.name)

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return the state of a run and its hosts; None if there is no such run, which is said."""
        with _one_line():
            try:
                view = self._of_run(app_id).find_view(app_id)
            except RunError as error:
                say(str(error))
                return None
            status, record = view.to_json(), view.record
            name = role_name(record.script or "", module=record.module)
            replicas = [
                ReplicaStatus(id=at, state=_state(host["state"]), role=name, hostname=host["name"])
                for at, host in enumerate(status["hosts"])
            ]
            said = [text for text in (status["verdict"], status["remedy"]) if text]
            return DescribeAppResponse(
                app_id=app_id,
                state=_state(view.state()),
                num_restarts=status["attempt"] - 1 + status["round"],
                msg="; ".join(said),
                roles=[Role(name=name, image=torchx.IMAGE, num_replicas=len(replicas))],
                roles_statuses=[RoleStatus(role=name, replicas=replicas)],
            )

    def list(self, cfg: Mapping[str, Any] | None = None) -> list[ListAppResponse]:
        """Return this project's runs, those of other commands too."""
        given = cfg or {}
        with _one_line():
            _refuse_inventory_of_folder(given)
            cluster = self._open(_inventory(given.get("inventory")), given.get("limit"))
            own = cluster.owner
            views = [view for view in cluster.list_runs() if own.shares_project(view)]
            return [
                ListAppResponse(app_id=_app_id(view), state=_state(view.state()), name=view.record.script or "")
                for view in views
            ]

    def _cancel_existing(self, app_id: str) -> None:
        with _one_line():
            for proof in self._of_run(app_id).find(app_id, reading=False).stop():
                say(proof.summary)

    def log_iter(
        self,
        app_id: str,
        role_name: str,  # noqa: ARG002 - a run has one role
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,  # noqa: FBT001, FBT002 - torchx's signature
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """Yield the lines of the workers on the run's ``k``-th host, with their ranks as torchrun writes them."""
        try:
            yield from self._lines(app_id, k, regex, since, until, streams, follow=should_tail)
        except ClusterddpError as error:
            if "torchx.cli.main" not in sys.modules:
                raise
            say(str(error))  # `torchx log` reads each replica in a thread, which cannot end the command

    def _lines(
        self,
        app_id: str,
        replica: int,
        regex: str | None,
        since: datetime | None,
        until: datetime | None,
        streams: Stream | None,
        *,
        follow: bool,
    ) -> Iterator[str]:
        cluster = self._of_run(app_id)
        view = cluster.find_view(app_id)
        hosts = [host.name for host in view.hosts()]
        if replica >= len(hosts):
            raise UsageError(f"replica {replica}: the run has {len(hosts)} hosts", remedy="they are counted from 0")
        words: dict[str, Any] = {"host": hosts[replica], "stream": _STREAMS.get(streams), "grep": regex}
        words |= {"since": since and since.astimezone().isoformat(), "until": until and until.astimezone().isoformat()}
        chosen = {name: value for name, value in words.items() if value is not None}
        for line in cluster.attach(view).logs(follow=follow, **chosen):
            if line.rank is not None:
                yield f"[{line.rank}]:{line.text}\n"

    def close(self) -> None:
        """End every connection. Runs go on."""
        for cluster in self._clusters.values():
            cluster.close()
        self._clusters.clear()

    def _open(
        self, inventory: str | None, limit: str | None, *, starts: bool = False, built_in: bool = False
    ) -> Cluster:
        """Return the cluster of an inventory, opened once; torchx asks several times in one command."""
        key, path = (inventory, limit, built_in), Path(inventory) if inventory else None
        if key not in self._clusters:
            self._clusters[key] = open_cluster(path, limit, starts=starts, built_in=built_in)
        return self._clusters[key]

    def _of_run(self, app_id: str) -> Cluster:
        """Return the cluster that a run was started on from this project, else the one that other commands use."""
        for record in reversed(find().runs(own=True)):
            if app_id in (record.run, record.name):
                return self._open(record.inventory, record.limit, built_in=record.inventory is None)
        return self._open(_inventory(None), None)


def _inventory(given: Any) -> str | None:
    """Return the inventory that the user named for this command."""
    return str(given) if given else os.environ.get("CLUSTERDDP_INVENTORY") or None


def _refuse_inventory_of_folder(cfg: Mapping[str, Any]) -> None:
    """Refuse an inventory that the current folder's .torchxconfig names: the folder may be a stranger's clone.

    Not one of the user's own file: that of TORCHXCONFIG, beside which torchx reads no other, or of the home.
    """
    folder, named = Path.cwd(), os.environ.get("TORCHXCONFIG")
    read = Path(named).resolve().parent if named else folder
    if read != folder or folder == Path.home().resolve():
        return
    of_folder: dict[str, Any] = {}
    config.apply(NAME, of_folder, dirs=[str(folder)])
    if cfg.get("inventory") and cfg["inventory"] == of_folder.get("inventory"):
        raise UsageError(
            f".torchxconfig: the inventory {cfg['inventory']} is not read without your consent",
            remedy=f"if you trust it, take it out there and `clusterddp up {shlex.quote(str(cfg['inventory']))}`",
        )


def _app_id(view: RunView) -> str:
    """Return the id under which torchx knows a run: the name that it was started with, else the run's own."""
    by_torchx = _HANDLE in view.record.env
    return view.record.name if by_torchx and view.record.name else view.run


def _state(state: str) -> AppState:
    return _STATES.get(state, AppState.UNKNOWN)


@contextmanager
def _one_line() -> Iterator[None]:
    """End torchx's own command with a user's mistake as one line; programs that use torchx get the exception."""
    try:
        yield
    except ClusterddpError as error:
        if "torchx.cli.main" not in sys.modules:
            raise
        raise SystemExit(f"clusterddp: {error}") from None


def create_scheduler(session_name: str, **_: object) -> ClusterddpScheduler:
    """Make the scheduler for one torchx command or session."""
    return ClusterddpScheduler(session_name)


def _registers() -> bool:
    """Whether this scheduler can be registered without becoming anybody's default.

    torchx takes the first registered scheduler for its default, before its own ones. ``torchx run`` and ``torchx list``
    ask for the default where neither the command line nor .torchxconfig names a scheduler; other commands do not.
    Programs may ask at any time, so they register it themselves.
    """
    if "torchx.cli.main" not in sys.modules:
        return False
    words = sys.argv[1:]
    command = next((word for word in words if word in ("run", "list")), None)
    if command is None or {"-h", "--help", "--stdin"} & set(words):
        return True
    text = " ".join(words)
    if re.search(rf"(?:^| )(?:-s[ =]?|--scheduler[ =]){NAME}(?: |$)", text) or f"{NAME}://" in text:
        return True
    return bool(config.get_config(prefix="cli", name=command, key="scheduler") == NAME)


if _registers():
    register.scheduler(name=NAME)(create_scheduler)
