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
from typing import TYPE_CHECKING

from clusterddp.api.leftovers import LeftOnHosts
from clusterddp.errors import RunError, UnreachableError, UsageError
from clusterddp.hosts.connections import Connections
from clusterddp.hosts.fanout import Outcome, values
from clusterddp.hosts.ssh import Connector, append_known_hosts
from clusterddp.inventory import Inventory, built_in, load, with_own_python
from clusterddp.launch import answering, launcher, option_values
from clusterddp.launch.keywords import CLUSTER_READERS, DOCTOR_READERS
from clusterddp.launch.make_record import operator
from clusterddp.launch.option_values import read
from clusterddp.launch.options import RunOptions, run_options
from clusterddp.project.project import Project, find
from clusterddp.remote.shared.text.counted import counted
from clusterddp.runs import cleanup, local_cache
from clusterddp.runs.choose import Requester, choose_run
from clusterddp.runs.node_answers import ALL, BRIEF, Wanted
from clusterddp.runs.proof import Proof
from clusterddp.runs.run import Run
from clusterddp.runs.run_on_hosts import current_spools
from clusterddp.runs.run_view import Reports, RunView, run_views
from clusterddp.text.units import shown

__all__ = ["Cluster", "Proof", "Run", "RunOptions"]

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from typing_extensions import Unpack

    from clusterddp.checks.model import Diagnosis
    from clusterddp.errors import HostKeyError
    from clusterddp.hosts.client import Host
    from clusterddp.inventory import HostEntry
    from clusterddp.launch.host_report import HostReport
    from clusterddp.launch.keywords import ClusterKeywords, DoctorKeywords
    from clusterddp.launch.make_plan import LaunchPlan
    from clusterddp.launch.run_keywords import RunKeywords
    from clusterddp.remote.shared.run.run_record import RunRecord
    from clusterddp.runs.difference import Difference
    from clusterddp.runs.run_on_hosts import RunOnHosts, Webhook
    from clusterddp.sync.code_diff import FileDiff


class Cluster(LeftOnHosts):
    """The hosts of one inventory, and a project whose code runs on them.

    Args:
        inventory: Which hosts.
        options: See ``ClusterKeywords``.

    Raises:
        UsageError: an option is none, or has a value that cannot be meant; names it.
    """

    def __init__(self, inventory: Inventory, **options: Unpack[ClusterKeywords]) -> None:
        if not isinstance(inventory, Inventory):
            raise UsageError(
                f"inventory: {shown(inventory)} is no Inventory", remedy="Cluster.from_inventory reads a file"
            )
        given = option_values.read_all(options, CLUSTER_READERS, "a cluster")
        self.inventory = with_own_python(inventory)
        self.project: Project = given.get("project") or find()
        self.notify: Callable[[str], None] = given.get("notify", lambda _line: None)
        self.progress: Callable[[str], None] = given.get("progress", lambda _line: None)
        self.detached = False  # whether nobody is to follow the runs that are started
        self.webhook: Webhook | None = None  # is told of the runs that are started
        self.launched: RunOnHosts | None = None  # the run started last, from its first host's start on
        connector = Connector(accept_new_host_keys=given.get("accept_new_host_keys", False), ask=given.get("ask"))
        self.connections = Connections(connector, self._tell)
        self._open = self.connections.open

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

    def __repr__(self) -> str:
        where = self.inventory.path or "this machine"
        return f"<Cluster of {counted(len(self.inventory.hosts), 'host')} from {where}, project {self.project.root}>"

    def __enter__(self) -> Cluster:  # noqa: PYI034 - typing.Self is Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every connection. Runs go on."""
        self.connections.close()

    def _tell(self, line: str) -> None:
        self.notify(line)  # whoever takes them by then

    def connect(self, entries: Iterable[HostEntry] | None = None, *, writes: bool = False) -> list[Outcome[Host]]:
        """Open the hosts (nodes and spares, else login hosts) that are not open yet; each one's Host or its error.

        ``writes``: a host whose state folder cannot be written is an error.
        """
        wanted = (self._reached or self.inventory.submitting) if entries is None else entries
        return self.connections.open_all(wanted, self.progress, writes=writes)

    def trust(self, errors: Sequence[HostKeyError]) -> None:
        """Record the unknown keys of ``errors``, as the user has compared them; hosts can be connected again."""
        append_known_hosts(errors)

    def host(self, name: str) -> Host:
        """The open host of that name, opened again if its connection was lost."""
        for entry in self.inventory.hosts:
            if entry.name == name:
                return self._open(entry)
        raise UnreachableError(name, "is not in the inventory")

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
        from clusterddp.launch import host_report  # noqa: PLC0415 - start-up

        fresh, left_out = read("fresh", option_values.flag, fresh), read("skip", option_values.checks, skip)
        spread = read("spread", option_values.spread, spread)
        if (not self.inventory.nodes or self.inventory.managed) and (ready := self._launcher().ready(self)):
            return self.notify(ready) or []
        answering.nodes(self.inventory)
        self._install(self.reached(), spread)
        return host_report.report(self.reached(), fresh=fresh, skip=left_out, notify=self.notify)

    def reached(self) -> list[Host]:
        """Every node and spare, open.

        Raises:
            HostError, HostsError: hosts do not answer; the remedy tells how to go on without them.
        """
        return answering.answering(self.connect(writes=True), self.inventory)

    def doctor(self, **options: Unpack[DoctorKeywords]) -> Diagnosis:
        """Judge every node and spare: what was found, and each check's results in order, the worst of it first.

        Args:
            options: Those of `clusterddp doctor`, by the same names.

        Raises:
            UsageError: a name is no check, or an option has a value that cannot be meant; names it.
            InventoryError: there is no node.
        """
        from clusterddp.doctor.borrowed_nodes import examine  # noqa: PLC0415 - start-up

        given = option_values.read_all(options, DOCTOR_READERS, "the doctor")
        return examine(self, lambda reached: self._runs("", reached, BRIEF), **given)

    def plan(self, options: RunOptions, *, dry: bool = False) -> tuple[LaunchPlan, list[Host]]:
        """All that ``run`` does before it starts anything: connect, facts, sync, plan.

        Raises:
            ClusterddpError: a host cannot take part, or the code cannot be synced.
        """
        from clusterddp.launch.plan_run import plan_run  # noqa: PLC0415 - start-up

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
        from clusterddp.launch import repeat as again  # noqa: PLC0415 - start-up

        return again.options_of(again.recorded(self.project, reference), ask)

    def start(self, options: RunOptions) -> Run:
        """``run`` with its options as one value."""
        return self._launcher(options.launcher).start(self, options)

    def render(self, options: RunOptions) -> str:
        """What ``start`` would do, as text: commands, or a script to submit; starts and syncs nothing."""
        return self._launcher(options.launcher).render(self, options)

    def _launcher(self, wanted: str | None = None) -> launcher.Launcher:
        named = wanted or launcher.of_shell(self.inventory)
        return launcher.chosen(named, [entry for entry in self.inventory.hosts if entry.role != "none"])

    def launcher_of(self, record: RunRecord) -> launcher.Launcher:
        """The launcher of a run with this record."""
        return launcher.of_record(record)

    def join(self, run: Run, names: str | Iterable[str] | None = None, *, skip: str | Iterable[str] = ()) -> list[str]:
        """Let nodes of the inventory join the run: these, or all that answer and are not in it; their names.

        ``skip``: names of checks that refuse nobody, besides those of the run itself.

        Raises:
            RunError: no host is left that could.
            ClusterddpError: the run takes no more hosts, or a host cannot take part, or one of ``names`` be reached.
        """
        from clusterddp.launch.ssh import join  # noqa: PLC0415 - start-up

        join.refuse_other_launchers(run.record)
        if names is None:
            free = [entry for entry in self.inventory.nodes if entry.name not in run.spools]
            outcomes = self.connect(free, writes=True)
            for outcome in outcomes:
                if outcome.error:
                    self.notify(f"left out: {outcome.error}")
            hosts = [outcome.value for outcome in outcomes if outcome.value]
        else:
            hosts = [self.host(name) for name in read("names", option_values.names, names)]
        if not hosts:
            raise RunError(f"no host can join run {run.id}: all that answer are in it")
        guide, spool = next((name, spool) for name, spool in run.spools.items() if spool)
        skip = read("skip", option_values.checks, skip)
        self._install([self.host(guide), *hosts])
        return list(join.join(self.host(guide), spool, hosts, self.project, self.notify, skip=skip))

    def list_runs(self, wanted: Wanted = BRIEF) -> list[RunView]:
        """Every run the reachable hosts know of, or those ``wanted``, oldest first; without processes and evidence."""
        replaced = local_cache.replaced(self.project, wanted.reference)  # were off at its start, and are not in it
        hosts = [one.name for one in self._reached if one.name not in replaced] if replaced else None
        reports, silent = self.gather("", hosts, wanted)
        begun = local_cache.begun(self.project) if silent else ()
        return run_views(reports, silent, local_cache.kept(self.project), begun)

    def diff(self, a: str, b: str) -> tuple[list[Difference], tuple[FileDiff, ...] | None]:
        """What tells two runs (ids or names) apart; file by file too where their code is kept in this project."""
        from clusterddp.runs.difference import differences  # noqa: PLC0415 - start-up
        from clusterddp.sync.code_diff import code_diff  # noqa: PLC0415

        found = self.list_runs()
        one, other = (choose_run(found, reference, self.owner).record for reference in (a, b))
        return differences(one, other), code_diff(self.project, one.code, other.code)

    def find(self, reference: str | None = None, *, reading: bool = True) -> Run:
        """The run of an id, a unique prefix of one, or a name; without: the live one, else (``reading``) the last.

        Raises:
            RunError: none, or several.
        """
        return self.attach(self._meant(reference, reading=reading))

    def find_view(self, reference: str | None = None, *, reading: bool = True) -> RunView:
        """``find``, as the hosts tell it now, with processes and evidence. Whose runs count: ``runs.choose``."""
        view = self._meant(reference, reading=reading)
        return local_cache.seen(self.project, self.attach(view).detailed(view))

    def _meant(self, reference: str | None, *, reading: bool) -> RunView:
        found = self.list_runs(Wanted(reference=reference, brief=True))
        return choose_run(found, reference, self.owner, ending=not reading, notify=self.notify)

    @property
    def _keeping(self) -> list[HostEntry]:
        return launcher.keeping(self)

    @property
    def owner(self) -> Requester:
        """Who we are, and in which project: whose runs are ours."""
        return Requester(operator=operator(), project=self.project.known_id)

    def attach(self, view: RunView) -> Run:
        """The run that a view is of."""
        spools = current_spools(view, self.inventory)
        return Run(self, view.run, view.attempt, spools, view.record, view.spools, live=view.live)

    def warm(self, stays: str | float) -> list[str]:
        """Start a warm server on each node for a first run within ``stays`` (``15m``); the hosts that have one now."""
        from clusterddp.launch import preload  # noqa: PLC0415 - start-up

        return preload.begin(self.reached(), self.project, self.inventory, read("stays", option_values.limit, stays))

    def warm_servers(self) -> dict[str, int]:
        """Bytes of memory of the processes that wait for a next run on the hosts that answer, by host."""
        return cleanup.warm_servers([one for one in self._reached if one.keeps_warm], self._open)

    def gather(
        self,
        run: str,
        hosts: Container[str] | None = None,
        wanted: Wanted = ALL,
        *,
        quiet: bool = False,
        patience: float | None = None,
    ) -> tuple[Reports, list[str]]:
        """Every node of every run on the hosts that answer, and the names of those that do not.

        Args:
            run: What the runs' ids begin with.
            hosts: Only these.
            wanted: Which runs, and how much of them.
            quiet: Who does not answer is not told.
            patience: Seconds of silence after which a host counts as one that does not answer.

        Raises:
            HostError, HostsError: no host answers, and the project knows of no such run either.
        """
        entries = [one for one in self._reached if hosts is None or one.name in hosts]
        outcomes = self._runs(run, entries, wanted, patience)
        if all(outcome.error for outcome in outcomes) and not local_cache.knows(self.project, run):
            values(outcomes)
        silent = {outcome.name: str(outcome.error) for outcome in outcomes if outcome.error}
        for error in () if quiet else silent.values():
            self.notify(error)
        return [node for outcome in outcomes for node in outcome.value or ()], list(silent)

    def _runs(
        self, run: str, entries: Sequence[HostEntry], wanted: Wanted, patience: float | None = None
    ) -> list[Outcome[Reports]]:
        """What each host knows of a run, or of all, by every launcher."""
        launchers = launcher.launchers(self)
        return [outcome for one in launchers for outcome in one.describe(self, run, entries, wanted, patience)]
