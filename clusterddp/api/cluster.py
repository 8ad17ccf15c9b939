"""The class ``Cluster``, as ``from clusterddp import Cluster, Run`` imports it: everything the command line does.

    with Cluster.from_inventory("inventory.yaml") as cluster:
        cluster.up()
        run = cluster.run("train.py", ["--lr", "3e-4"])
        for line in run.logs(follow=True):
            print(line.rank, line.text)
        print(run.status()["verdict"])

A Cluster keeps one connection and one helper per host, opened in parallel when first needed. Methods import what only
they need: looking at a run does not wait for what starts runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING

from clusterddp import api
from clusterddp.api import code_and_commands
from clusterddp.api.cluster_hosts import ClusterHosts
from clusterddp.inventory import built_in, load
from clusterddp.launch import answering, launcher
from clusterddp.launch.options import RunOptions, option_values, run_options
from clusterddp.launch.options.keywords import DOCTOR_READERS, EXEC_READERS
from clusterddp.launch.options.option_values import read
from clusterddp.remote.shared.run.run_settings import GRACE
from clusterddp.runs.run_on_hosts import BRIEF, Wanted
from clusterddp.text.units import duration, ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Self, Unpack

    import clusterddp.api.copy
    import clusterddp.api.find_runs
    import clusterddp.api.leftovers  # noqa: F401 - so that their types are known
    from clusterddp.checks.model import Diagnosis
    from clusterddp.environments.removal import EnvironmentFound
    from clusterddp.hosts.client import Host
    from clusterddp.launch.host_report import HostReport
    from clusterddp.launch.make_plan import LaunchPlan
    from clusterddp.launch.options.keywords import ClusterKeywords, DoctorKeywords, ExecKeywords
    from clusterddp.launch.options.run_keywords import RunKeywords
    from clusterddp.runs import cleanup
    from clusterddp.runs.choose import Requester
    from clusterddp.runs.difference import Difference
    from clusterddp.runs.holdings import EverythingRemoved, Holdings
    from clusterddp.runs.named_workdirs import WorkdirBeside
    from clusterddp.runs.proof import Proof
    from clusterddp.runs.run import Run
    from clusterddp.runs.view.run_view import RunView
    from clusterddp.shell import Command, Executed, Execution
    from clusterddp.sync.code_diff import FileDiff
    from clusterddp.sync.deliver import Delivered
    from clusterddp.sync.result import SyncResult
    from clusterddp.sync.transfer.collect import Pulled


class Cluster(ClusterHosts):
    """The hosts of one inventory, and a project whose code runs on them.

    ``options`` are those of ``ClusterKeywords``; one that is unknown, or has an invalid value, raises UsageError.
    """

    @classmethod
    def from_inventory(
        cls, path: str | Path, *, limit: str | None = None, **options: Unpack[ClusterKeywords]
    ) -> Cluster:
        """Return the cluster of an inventory file, or of the hosts in it that ``limit`` (an Ansible pattern) matches.

        Raises:
            InventoryError: The file is missing or wrong; says file, line and key.
            UsageError: An option is unknown, or its value is invalid; names it.
        """
        read("limit", option_values.optional(option_values.text), limit)
        inventory = load(Path(path))
        return cls(inventory.limit(limit) if limit else inventory, **options)

    @classmethod
    def local(cls, **options: Unpack[ClusterKeywords]) -> Cluster:
        """Return a cluster of two nodes on this machine, without SSH."""
        return cls(built_in(), **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def up(self, *, fresh: bool = False, skip: str | Iterable[str] = (), spread: str = "auto") -> list[HostReport]:
        """Reach every node, find out what it is, and say which ranks it would hold; remembers nothing.

        Args:
            fresh: Ask torch again on hosts where it has answered before.
            skip: Checks or categories that shall not refuse a host.
            spread: Whether hosts pass an environment's wheels on to each other: ``auto``, ``on`` or ``off``.

        Raises:
            UsageError: A name is not a check.
            HostsError: Hosts cannot be reached or cannot train; names each.
        """
        from clusterddp.launch import host_report  # noqa: PLC0415 - only for `up`

        fresh, left_out = read("fresh", option_values.flag, fresh), read("skip", option_values.checks, skip)
        spread = read("spread", option_values.spread, spread)
        if (not self.inventory.nodes or self.inventory.managed) and (ready := self._launcher().ready(self)):
            return self.notify(ready) or []
        answering.nodes(self.inventory)
        code_and_commands.install(self, self.reached(), spread)
        return host_report.report(self.reached(), fresh=fresh, skip=left_out, notify=self.notify)

    def doctor(self, **options: Unpack[DoctorKeywords]) -> Diagnosis:
        """Judge every node and spare: what was found, and each check's results, the worst ones first.

        Its options are those of `clusterddp doctor`, by the same names.

        Raises:
            ClusterddpError: A name is not a check, an option's value is invalid, or there is no node.
        """
        from clusterddp.doctor.examine import examine  # noqa: PLC0415 - only for `doctor`

        given = option_values.read_all(options, DOCTOR_READERS, "the doctor")
        return examine(self, **given)

    def plan(self, options: RunOptions, *, dry: bool = False) -> tuple[LaunchPlan, list[Host]]:
        """Do all that ``run`` does before it starts anything: connect, ask for facts, sync, plan.

        Raises:
            ClusterddpError: A host cannot take part, or the code cannot be synced.
        """
        from clusterddp.launch.plan_run import plan_run  # noqa: PLC0415 - only what starts runs plans

        return plan_run(self, options, dry=dry)

    def run(self, script: str, args: Sequence[str] = (), **options: Unpack[RunKeywords]) -> Run:
        """Sync the project's code, start ``script`` by torchrun on every node, and return at once.

        Args:
            script: Path in the project, or with ``module=True`` a module's name.
            options: Those of `clusterddp run`, by the same names and written the same way: ``time_limit="5m"``.

        Raises:
            UsageError: An option is unknown, or its value is invalid; names it.
            ClusterddpError: The run could not be started; nothing is left running on hosts that answer.
        """
        return self._renewed(self.start(run_options(script, args, options)))

    def again(self, reference: str) -> Run:
        """Start a run of this project (id or name) once more as it was; its secrets are read from the environment now.

        Raises:
            ClusterddpError: Something it needs is gone or has changed; says what.
        """
        return self._renewed(self.start(self.options_again(reference)))

    def options_again(self, reference: str, ask: Callable[[str], str] | None = None) -> RunOptions:
        """Return the options that ``again`` starts with; ``ask`` asks a person for a secret that is not set here."""
        from clusterddp.launch import repeat as again  # noqa: PLC0415 - only for `run --again`

        return again.options_of(again.find_record(self.project, reference), ask)

    def start(self, options: RunOptions) -> Run:
        """Start a run with its options as one value."""
        return self._launcher(options.launcher).submit(self, options)

    def _renewed(self, run: Run) -> Run:
        """Return the run, which was just started; its lease, if it has one, is renewed until this Cluster is closed."""
        from clusterddp.runs.background import renewed_until  # noqa: PLC0415 - only what starts runs renews leases

        return renewed_until(self._closed, run)

    def render(self, options: RunOptions) -> str:
        """Return what ``start`` would do, as commands or a script to submit; starts and syncs nothing."""
        return self._launcher(options.launcher).render(self, options)

    def _launcher(self, wanted: str | None = None) -> launcher.Launcher:
        """Return the launcher of that name; None: the one that this shell or the inventory implies."""
        named = wanted or launcher.of_shell(self.inventory)
        return launcher.choose(named, [entry for entry in self.inventory.hosts if entry.role != "none"])

    def join(self, run: Run, names: str | Iterable[str] | None = None, *, skip: str | Iterable[str] = ()) -> list[str]:
        """Let nodes of the inventory join the run: ``names``, or all that answer and are not in it; return their names.

        ``skip``: checks that refuse no host, besides those of the run itself.

        Raises:
            RunError: No host is left that could join.
            ClusterddpError: The run takes no more hosts, or a host cannot take part or be reached.
        """
        from clusterddp.launch.ssh import join  # noqa: PLC0415 - only for `run --join`

        return join.join_from_inventory(self, run, names, skip)

    def list_runs(self, wanted: Wanted = BRIEF) -> list[RunView]:
        """Return every run that hosts know, or those ``wanted``, oldest first; without processes and evidence."""
        return api.find_runs.list_runs(self, wanted)

    def diff(self, a: str, b: str) -> tuple[list[Difference], tuple[FileDiff, ...] | None]:
        """Return what differs between two runs (ids or names), file by file if this project kept the code of both."""
        return api.find_runs.diff(self, a, b)

    def find(self, reference: str | None = None, *, reading: bool = True) -> Run:
        """Return the run of an id, a unique prefix, or a name; by default the live one, else (``reading``) the last.

        Raises:
            RunError: There is no such run, or several.
        """
        return self.attach(api.find_runs.find(self, reference, reading=reading))

    def find_view(self, reference: str | None = None, *, reading: bool = True) -> RunView:
        """Return the run of ``find`` as its hosts report it now, with processes and evidence."""
        return api.find_runs.find_view(self, reference, reading=reading)

    @property
    def owner(self) -> Requester:
        """Return this user and project, which decide whose runs are ours."""
        return api.find_runs.owner(self.project)

    def attach(self, view: RunView) -> Run:
        """Return the run that a view is of."""
        return api.find_runs.attach(self, view)

    def bundle(self, run: Run, to: str | Path | None = None) -> Path:
        """Write all that a run and its hosts tell of it, without secrets, into one file (``to``); return its path."""
        from clusterddp.doctor.bundle.write_bundle import write_bundle  # noqa: PLC0415 - only for `bundle`

        return write_bundle(run, run.view(), Path(to) if to else None).path

    def sync(
        self,
        *,
        dry: bool = False,
        limit: int | str | None = None,
        rate: int | str | None = None,
        spread: str = "auto",
        take: str | None = None,
    ) -> SyncResult:
        """Bring the project to every node and spare; with ``dry`` only report what would change.

        Args:
            limit: Bytes, or a size such as ``2G``, that the project may hold, with any number of files; None: the
                default.
            rate, spread: As in ``push``.
            take: Whose version of data is used that both project and host changed: ``project`` or ``host``.

        Raises:
            ClusterddpError: A live run uses a workdir with other code, there is such data, or a sync fails.
        """
        return code_and_commands.sync(
            self,
            limit=read("limit", option_values.optional(option_values.size), limit),
            dry=read("dry", option_values.flag, dry),
            take=read("take", option_values.optional(option_values.take), take),
            spread=read("spread", option_values.spread, spread),
            rate=read("rate", option_values.optional(option_values.size), rate),
        )

    def push(
        self,
        *sources: str,
        to: str | None = None,
        overwrite: bool = False,
        rate: int | str | None = None,
        spread: str = "auto",
    ) -> tuple[Delivered, ...]:
        """Bring files of this machine to every node and spare, each content once: data, weights. Deletes nothing.

        Args:
            sources: Files and folders; with a trailing slash a folder's contents.
            to: On the hosts: below the workdir, from ``~/``, or absolute; with a trailing slash the sources go below it
                by name. By default a single source's own path in the project, or its name.
            overwrite: Replace files that differ, whoever put them there.
            rate: Bytes a second, or a size such as ``100MB``, from here to all hosts together; hosts that pass on send
                at most so much each.
            spread: Whether hosts pass chunks on to each other: ``auto``, ``on`` or ``off``.

        Raises:
            ClusterddpError: A source is missing, a host refuses it or has no room, or a file changes meanwhile.
        """
        most = read("rate", option_values.optional(option_values.size), rate)
        overwrite = read("overwrite", option_values.flag, overwrite)
        answering.run_hosts(self.inventory)
        how = read("spread", option_values.spread, spread)
        return api.copy.push(self, sources, to, overwrite=overwrite, rate=most, spread=how)

    def pull(
        self,
        what: str | None = None,
        to: str | None = None,
        *,
        run: str | None = None,
        rank: str | int | Sequence[int] | None = None,
        host: str | None = None,
        overwrite: bool = False,
    ) -> Pulled:
        """Bring files of nodes and spares here: those of a path, or all that is new in a run's folder since its start.

        Args:
            what: A path as in ``push``, or a run's id or name; by default the live run, else the last.
            to: A folder or file here; with a trailing slash the files go below it by name. By default their own name.
            run: A run's id or name, if ``what`` is none.
            rank: Only from the hosts that held these ranks, ``0,2-3``.
            host: Only from hosts that match this pattern.
            overwrite: Replace files here that differ.

        Raises:
            ClusterddpError: ``what`` is a run and a path, there is no such run or nothing there, no host answered, or
                the files cannot be written here.
        """
        overwrite = read("overwrite", option_values.flag, overwrite)
        chosen = read("rank", ranks, rank)
        wanted = api.copy.Pull(what=what, dest=to, run=run, ranks=chosen, hosts=host, overwrite=overwrite)
        return api.copy.pull(wanted, self)

    def exec(self, *argv: str, **options: Unpack[ExecKeywords]) -> list[Executed]:
        """Run a command on every node and spare at once; return how it ended on each, in the inventory's order."""
        from clusterddp.shell import Command  # noqa: PLC0415 - only for commands

        given = option_values.read_all(options, EXEC_READERS, "exec")
        sync = given.pop("sync", False)
        with self.execution(Command(argv=option_values.arguments(argv), **given), sync=sync) as running:
            return running.collected()

    def execution(self, command: Command, *, given: IO[bytes] | None = None, sync: bool = False) -> Execution:
        """Begin the command on each node and spare as soon as it answers; a host that does not delays no other.

        ``given`` is its input, the same for every host; with ``sync`` the hosts that answer get the project first.
        """
        return code_and_commands.execution(self, command, given, sync=sync)

    def warm(self, stays: str | float) -> list[str]:
        """Start a warm server on each node, to wait for ``stays`` (``15m``); return the hosts that have one."""
        from clusterddp.launch import preload  # noqa: PLC0415 - only for `up --warm`

        limit = read("stays", option_values.limit, stays)
        return preload.start_warm_servers(self.reached(), self.project, self.inventory, limit)

    def warm_servers(self) -> dict[str, int]:
        """Return the memory in bytes of the warm servers on the hosts that answer, by host."""
        return api.leftovers.warm_servers(self)

    def orphans(self) -> list[cleanup.Orphans]:
        """Return the processes of this account, on the hosts that answer, of runs whose supervisor is gone."""
        return api.leftovers.orphans(self)

    def unended_runs(self) -> list[RunView]:
        """Return the runs of all projects that are not over on some host, or whose processes are still there."""
        return api.leftovers.unended_runs(self)

    def workdirs_beside(self) -> list[WorkdirBeside]:
        """Return the folders of ``run --workdir NAME`` beside this project's workdir on the hosts that answer."""
        return api.leftovers.workdirs_beside(self)

    def environments(self, *, last_too: bool = False) -> list[EnvironmentFound]:
        """Return the environments installed from lock files on the hosts that answer, each with why `down` keeps it.

        ``last_too``: the one this project used last is not kept either.
        """
        return api.leftovers.environments(self, last_too=last_too)

    def down(
        self,
        views: Iterable[RunView] | None = None,
        *,
        purge: bool = False,
        workdirs: Sequence[WorkdirBeside] = (),
        environments: Sequence[EnvironmentFound] = (),
        grace: float | str = GRACE,
    ) -> tuple[dict[str, list[Proof]], list[cleanup.Cleaned]]:
        """Stop runs, and remove what is old from every host; the project's workdir stays.

        Args:
            views: The runs to stop; None for all of this project that live or have left processes.
            purge: Remove all ended runs of this project with their run dirs, and our helper too where no other project
                has runs; every connection is closed then.
            workdirs: Folders of ``workdirs_beside`` to be removed with all that is in them.
            environments: Those of ``environments`` to be removed.
            grace: Seconds, or a duration, between SIGTERM and SIGKILL.

        Returns: each run's proofs by its id, and what was removed, host by host.
        """
        grace, purge = read("grace", duration, grace), read("purge", option_values.flag, purge)
        return api.leftovers.down(self, views, purge=purge, grace=grace, workdirs=workdirs, environments=environments)

    def holdings(self) -> list[Holdings]:
        """Return what each host holds of ours in this account, of all projects."""
        return api.leftovers.held(self)

    def remove_everything(self, shown: Sequence[Holdings]) -> list[EverythingRemoved]:
        """Remove all that hosts hold of ours in this account: code, data, records, environments, helpers.

        ``shown`` is the result of ``holdings`` that the user has seen; a workdir that is not in it stays.

        Raises:
            RunError: A run, of any project of this account, is live; nothing is removed then.
        """
        return api.leftovers.remove_everything(self, shown)
