"""What ``from clusterddp import Cluster, Run`` offers: everything the command line does.

    with Cluster.from_inventory("inventory.yaml") as cluster:
        cluster.up()
        run = cluster.run("train.py", ["--lr", "3e-4"])
        for line in run.logs(follow=True):
            print(line.rank, line.text)
        print(run.status()["verdict"])

A Cluster keeps one connection and one helper a host, opened in parallel when first needed. What only some methods need
they import themselves: looking at a run waits neither for the doctor nor for what launches one.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING

from clusterddp.api import code_and_commands, find_runs, leftovers
from clusterddp.api.cluster_hosts import ClusterHosts
from clusterddp.inventory import built_in, load
from clusterddp.launch import answering, launcher, option_values
from clusterddp.launch.keywords import DOCTOR_READERS, EXEC_READERS
from clusterddp.launch.option_values import read
from clusterddp.launch.options import RunOptions, run_options
from clusterddp.remote.shared.run.run_settings import GRACE
from clusterddp.runs import cleanup
from clusterddp.runs.choose import Requester, choose_run
from clusterddp.runs.difference import differences
from clusterddp.runs.node_answers import BRIEF, Wanted
from clusterddp.runs.proof import Proof
from clusterddp.runs.run import Run
from clusterddp.shell import Command
from clusterddp.text.units import duration, ranks

__all__ = ["Cluster", "Proof", "Run", "RunOptions"]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Unpack

    from clusterddp.checks.model import Diagnosis
    from clusterddp.environments.removal import EnvironmentFound
    from clusterddp.hosts.client import Host
    from clusterddp.launch.host_report import HostReport
    from clusterddp.launch.keywords import ClusterKeywords, DoctorKeywords, ExecKeywords
    from clusterddp.launch.make_plan import LaunchPlan
    from clusterddp.launch.run_keywords import RunKeywords
    from clusterddp.runs.beside import WorkdirBeside
    from clusterddp.runs.difference import Difference
    from clusterddp.runs.holdings import EverythingRemoved, Holdings
    from clusterddp.runs.run_view import RunView
    from clusterddp.shell import Executed, Execution
    from clusterddp.sync.code_diff import FileDiff
    from clusterddp.sync.deliver import Delivered
    from clusterddp.sync.result import SyncResult
    from clusterddp.sync.transfer.collect import Pulled


class Cluster(ClusterHosts):
    """The hosts of one inventory, and a project whose code runs on them.

    Args:
        inventory: Which hosts.
        options: See ``ClusterKeywords``.

    Raises:
        UsageError: an option is none, or has a value that cannot be meant; names it.
    """

    @classmethod
    def from_inventory(
        cls, path: str | Path, *, limit: str | None = None, **options: Unpack[ClusterKeywords]
    ) -> Cluster:
        """The cluster of an inventory file, or of the hosts in it that ``limit`` (an Ansible pattern) matches.

        Raises:
            InventoryError: the file is missing or wrong; says file, line and key.
            UsageError: an option is none, or has a value that cannot be meant; names it.
        """
        read("limit", option_values.optional(option_values.text), limit)
        inventory = load(Path(path))
        return cls(inventory.limit(limit) if limit else inventory, **options)

    @classmethod
    def local(cls, **options: Unpack[ClusterKeywords]) -> Cluster:
        """Two nodes on this machine, without SSH."""
        return cls(built_in(), **options)

    def __enter__(self) -> Cluster:  # noqa: PYI034 - typing.Self is Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def up(self, *, fresh: bool = False, skip: str | Iterable[str] = (), spread: str = "auto") -> list[HostReport]:
        """Reach every node, find out what it is, and say which ranks it would hold; remembers nothing.

        Args:
            fresh: Ask torch anew where it has answered before.
            skip: Names of checks, or of categories, that are left out of those that a run would refuse hosts by.
            spread: Whether hosts pass an environment's wheels on to each other: ``auto``, ``on`` or ``off``.

        Raises:
            UsageError: a name is no check.
            HostsError: hosts cannot be reached or cannot train; names each.
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
        """Judge every node and spare: what was found, and each check's results in order, the worst of it first.

        Its options are those of `clusterddp doctor`, by the same names.

        Raises:
            ClusterddpError: a name is no check, an option has a value that cannot be meant, or there is no node.
        """
        from clusterddp.doctor.examine import examine  # noqa: PLC0415 - only for `doctor`

        given = option_values.read_all(options, DOCTOR_READERS, "the doctor")
        return examine(self, **given)

    def plan(self, options: RunOptions, *, dry: bool = False) -> tuple[LaunchPlan, list[Host]]:
        """All that ``run`` does before it starts anything: connect, facts, sync, plan.

        Raises:
            ClusterddpError: a host cannot take part, or the code cannot be synced.
        """
        from clusterddp.launch.plan_run import plan_run  # noqa: PLC0415 - only what starts runs plans

        return plan_run(self, options, dry=dry)

    def run(self, script: str, args: Sequence[str] = (), **options: Unpack[RunKeywords]) -> Run:
        """Sync the project's code, start ``script`` by torchrun on every node, return at once.

        Args:
            script: Path in the project, or with ``module=True`` a module's name.
            args: The script's arguments, untouched.
            options: Those of `clusterddp run`, by the same names and written the same way: ``time_limit="5m"``.

        Raises:
            UsageError: an option is none, or has a value that cannot be meant; names it.
            ClusterddpError: it could not be started; nothing is left running on hosts that answer.
        """
        return self.start(run_options(script, args, options))

    def again(self, reference: str) -> Run:
        """Start a run of this project (id or name) once more as it was; secrets are those of the environment now.

        Raises:
            ClusterddpError: something of it is gone, or differs by now; says what.
        """
        return self.start(self.options_again(reference))

    def options_again(self, reference: str, ask: Callable[[str], str] | None = None) -> RunOptions:
        """What ``again`` starts, as a value; ``ask`` asks a person for a secret that is not set here."""
        from clusterddp.launch import repeat as again  # noqa: PLC0415 - only for `run --again`

        return again.options_of(again.recorded(self.project, reference), ask)

    def start(self, options: RunOptions) -> Run:
        """``run`` with its options as one value."""
        return self._launcher(options.launcher).submit(self, options)

    def render(self, options: RunOptions) -> str:
        """What ``start`` would do, as text: commands, or a script to submit; starts and syncs nothing."""
        return self._launcher(options.launcher).render(self, options)

    def _launcher(self, wanted: str | None = None) -> launcher.Launcher:
        named = wanted or launcher.of_shell(self.inventory)
        return launcher.chosen(named, [entry for entry in self.inventory.hosts if entry.role != "none"])

    def join(self, run: Run, names: str | Iterable[str] | None = None, *, skip: str | Iterable[str] = ()) -> list[str]:
        """Let nodes of the inventory join the run: these, or all that answer and are not in it; their names.

        ``skip``: names of checks that refuse nobody, besides those of the run itself.

        Raises:
            RunError: no host is left that could.
            ClusterddpError: the run takes no more hosts, or a host cannot take part, or one of ``names`` be reached.
        """
        from clusterddp.launch.ssh import join  # noqa: PLC0415 - only for `run --join`

        return join.join_from_inventory(self, run, names, skip)

    def list_runs(self, wanted: Wanted = BRIEF) -> list[RunView]:
        """Every run the reachable hosts know of, or those ``wanted``, oldest first; without processes and evidence."""
        return find_runs.list_runs(self, wanted)

    def diff(self, a: str, b: str) -> tuple[list[Difference], tuple[FileDiff, ...] | None]:
        """What tells two runs (ids or names) apart; file by file too where their code is kept in this project."""
        from clusterddp.sync.code_diff import code_diff  # noqa: PLC0415 - only for `runs --diff`

        found = self.list_runs()
        one, other = (choose_run(found, reference, self.owner).record for reference in (a, b))
        return differences(one, other), code_diff(self.project, one.code, other.code)

    def find(self, reference: str | None = None, *, reading: bool = True) -> Run:
        """The run of an id, a unique prefix of one, or a name; without: the live one, else (``reading``) the last.

        Raises:
            RunError: none, or several.
        """
        return self.attach(find_runs.find(self, reference, reading=reading))

    def find_view(self, reference: str | None = None, *, reading: bool = True) -> RunView:
        """``find``, as the hosts tell it now, with processes and evidence. Whose runs count: ``runs.choose``."""
        return find_runs.find_view(self, reference, reading=reading)

    @property
    def owner(self) -> Requester:
        """Who we are, and in which project: whose runs are ours."""
        return find_runs.owner(self.project)

    def attach(self, view: RunView) -> Run:
        """The run that a view is of."""
        return find_runs.attach(self, view)

    def sync(
        self,
        *,
        dry: bool = False,
        limit: int | str | None = None,
        rate: int | str | None = None,
        spread: str = "auto",
        take: str | None = None,
    ) -> SyncResult:
        """Bring the project to every node and spare; with ``dry`` only say what that would change.

        Args:
            limit: Bytes, or a size such as ``2G``, that it may hold, and any number of files; None is the default.
            rate, spread: As of ``push``.
            take: Whose version of data is taken that both project and host changed: ``project`` or ``host``.

        Raises:
            ClusterddpError: a live run uses a workdir with other code, there is such data, or a sync fails.
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
            sources: Files and folders; with a slash at the end a folder's contents.
            to: On the hosts: below the workdir, from ``~/``, or absolute; with a slash at the end sources go below it
                by name. By default a single source's own place in the project, or its name.
            overwrite: Replace files that differ, whoever has put them there.
            rate: Bytes a second, or a size such as ``100MB``, from here to all hosts together; hosts that pass on send
                at most so much each.
            spread: Whether hosts pass chunks on to each other: ``auto``, ``on`` or ``off``.

        Raises:
            ClusterddpError: a source is not there, a host refuses it or has no room, or a file changes meanwhile.
        """
        from clusterddp.api import copy  # noqa: PLC0415 - only for `push` and `pull`

        most = read("rate", option_values.optional(option_values.size), rate)
        overwrite = read("overwrite", option_values.flag, overwrite)
        answering.nodes(self.inventory)
        how = read("spread", option_values.spread, spread)
        wanted = copy.Push(sources=sources, dest=to, overwrite=overwrite, rate=most, spread=how)
        return copy.push(wanted, self.project, self.reached, self.notify, self.progress)

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
        """Bring files of nodes and spares here: at a path, or all that is new in a run's folder since its start.

        Args:
            what: A path as of ``push``, or a run's id or name; none of both: the live run, else the last.
            to: A folder or file here; with a slash at the end it goes below that by name. By default its own name.
            run: A run's id or name, where ``what`` is none.
            rank: Only from the hosts that held these ranks, ``0,2-3``.
            host: Only from hosts that match this pattern.
            overwrite: Replace files here that differ.

        Raises:
            ClusterddpError: ``what`` is a run and a path, there is no such run, or nothing there, no host could tell,
                or it cannot be written here.
        """
        from clusterddp.api import copy  # noqa: PLC0415 - only for `push` and `pull`

        overwrite = read("overwrite", option_values.flag, overwrite)
        chosen = read("rank", ranks, rank)
        wanted = copy.Pull(what=what, dest=to, run=run, ranks=chosen, hosts=host, overwrite=overwrite)
        return copy.pull(wanted, self)

    def exec(self, *argv: str, **options: Unpack[ExecKeywords]) -> list[Executed]:
        """Run a command on every node and spare at once, and return how it ended on each, in the inventory's order."""
        given = option_values.read_all(options, EXEC_READERS, "exec")
        sync = given.pop("sync", False)
        with self.execution(Command(argv=option_values.arguments(argv), **given), sync=sync) as running:
            return running.collected()

    def execution(self, command: Command, *, given: IO[bytes] | None = None, sync: bool = False) -> Execution:
        """The command begun on every node and spare as soon as it answers; a host that does not holds nobody up.

        ``given`` is its input, the same for every host; with ``sync`` the hosts that answer get the project first.
        """
        return code_and_commands.execution(self, command, given, sync=sync)

    def warm(self, stays: str | float) -> list[str]:
        """Start a warm server on each node for a first run within ``stays`` (``15m``); the hosts that have one now."""
        from clusterddp.launch import preload  # noqa: PLC0415 - only for `up --warm`

        return preload.begin(self.reached(), self.project, self.inventory, read("stays", option_values.limit, stays))

    def warm_servers(self) -> dict[str, int]:
        """Bytes of memory of the processes that wait for a next run on the hosts that answer, by host."""
        return cleanup.warm_servers(
            [one for one in find_runs.takers(self.inventory) if one.keeps_warm], self.connections.open
        )

    def orphans(self) -> list[cleanup.Orphans]:
        """Processes of this account on the hosts that answer, of runs whose supervisor is gone."""
        return leftovers.orphans(self)

    def workdirs_beside(self) -> list[WorkdirBeside]:
        """The folders beside this project's workdir on the hosts that answer: of ``run --workdir NAME``."""
        return leftovers.workdirs_beside(self)

    def environments(self, *, last_too: bool = False) -> list[EnvironmentFound]:
        """The environments of locks on the hosts that answer, each with why it stays if `down` does not remove it.

        ``last_too``: what this project used last does not stay either.
        """
        return leftovers.environments(self, last_too=last_too)

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
            purge: Remove all ended runs of this project with their run dirs, and where no other project's are left
                also our helper; every connection is closed then.
            workdirs: Folders beside it, of ``workdirs_beside``, to be removed with all that is in them.
            environments: Those of ``environments`` that are to be removed.
            grace: Seconds, or a duration, between SIGTERM and SIGKILL.

        Returns: each run's proofs by its id, and what was removed, host by host.
        """
        grace, purge = read("grace", duration, grace), read("purge", option_values.flag, purge)
        return leftovers.down(self, views, purge=purge, grace=grace, workdirs=workdirs, environments=environments)

    def holdings(self) -> list[Holdings]:
        """What each host holds of ours in this account, of all projects."""
        return leftovers.held(self)

    def remove_everything(self, shown: Sequence[Holdings]) -> list[EverythingRemoved]:
        """Remove all that hosts hold of ours in this account: code, data, records, environments, helpers.

        ``shown``: what ``holdings`` has told of the hosts; a workdir that is not in it stays.

        Raises:
            RunError: a run, of any project of this account, is live; nothing is removed then.
        """
        return leftovers.remove_everything(self, shown)
