"""What a Cluster does besides runs: the project's code brought to its hosts, commands on them.

The base of ``api.Cluster``, which has the hosts.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import IO, TYPE_CHECKING

from clusterddp.launch import answering, option_values
from clusterddp.launch.keywords import EXEC_READERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Unpack

    from clusterddp.hosts.client import Host
    from clusterddp.hosts.connections import Connections
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.inventory import HostEntry, Inventory
    from clusterddp.launch.keywords import ExecKeywords
    from clusterddp.project.project import Project
    from clusterddp.runs.node_answers import Wanted
    from clusterddp.runs.run_view import RunView
    from clusterddp.shell import Command, Executed, Execution
    from clusterddp.sync.deliver import Delivered
    from clusterddp.sync.result import SyncResult
    from clusterddp.sync.transfer.collect import Pulled


class BesideRuns:
    """Files and commands on the hosts of a cluster."""

    inventory: Inventory
    project: Project
    notify: Callable[[str], None]
    progress: Callable[[str], None]
    connections: Connections
    _open: Callable[[HostEntry], Host]

    @property
    def _reached(self) -> tuple[HostEntry, ...]:
        """The hosts on which runs may be."""
        return self.inventory.nodes + self.inventory.spares

    def connect(self, entries: Iterable[HostEntry] | None = None) -> list[Outcome[Host]]:
        """Open the hosts; each one's Host or its error."""
        raise NotImplementedError

    def list_runs(self, wanted: Wanted = ...) -> list[RunView]:
        """Every run that hosts know of, or those ``wanted``, the oldest first."""
        raise NotImplementedError

    def find_view(self, reference: str | None = None, *, reading: bool = True) -> RunView:
        """One run, as its hosts tell it now."""
        raise NotImplementedError

    def reached(self) -> list[Host]:
        """Every node and spare, open."""
        raise NotImplementedError

    def _install(self, hosts: Iterable[Host], spread: str = "auto") -> None:
        """Let the hosts that are to have an environment of a lock have it, and take its interpreter from now on."""
        from clusterddp.environments import install  # noqa: PLC0415 - start-up

        install.ensure([*hosts], self.project, self.notify, self.progress, spread=spread)

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
            dry: Only look.
            limit: Bytes, or a size such as ``2G``, that it may hold, and any number of files; None is the default.
            rate: As of ``push``.
            spread: As of ``push``.
            take: Whose version of data is taken that both project and host changed: ``project`` or ``host``.

        Raises:
            UsageError: an option has a value that cannot be meant; names it.
            ClusterddpError: a live run uses a workdir with other code, there is such data, or a sync fails.
        """
        most = option_values.read("limit", option_values.optional(option_values.size), limit)
        dry = option_values.read("dry", option_values.flag, dry)
        take = option_values.read("take", option_values.optional(option_values.take), take)
        mode = option_values.read("spread", option_values.spread, spread)
        rate = option_values.read("rate", option_values.optional(option_values.size), rate)
        answering.nodes(self.inventory)
        with ThreadPoolExecutor(1) as pool:  # the project is looked at while hosts are waited for
            scanning = pool.submit(lambda: import_module("clusterddp.launch.code_on_hosts").scan(self.project, most))
            hosts = self.reached()
            self.progress("looking at the project")
            tree = scanning.result()
        from clusterddp.launch import code_on_hosts  # noqa: PLC0415 - start-up
        from clusterddp.sync.transfer.between_hosts import TransferOptions  # noqa: PLC0415

        how = TransferOptions(mode=mode, rate=rate, notify=self.notify)
        return code_on_hosts.synced_or_previewed(
            hosts, self.project, self.notify, self.progress, tree, how, take=take, dry=dry
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
            UsageError: a source is not there, or an option has a value that cannot be meant.
            ClusterddpError: a host refuses it or has no room, or a file changes meanwhile.
        """
        from clusterddp.api import copy  # noqa: PLC0415 - start-up

        most = option_values.read("rate", option_values.optional(option_values.size), rate)
        overwrite = option_values.read("overwrite", option_values.flag, overwrite)
        answering.nodes(self.inventory)
        how = option_values.read("spread", option_values.spread, spread)
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
            UsageError: an option has a value that cannot be meant, or ``what`` is a run and a path.
            RunError: there is no such run, or nothing there.
            ClusterddpError: no host could tell, or it cannot be written here.
        """
        from clusterddp.api import copy  # noqa: PLC0415 - start-up
        from clusterddp.text.units import ranks  # noqa: PLC0415

        overwrite = option_values.read("overwrite", option_values.flag, overwrite)
        chosen = option_values.read("rank", ranks, rank)
        wanted = copy.Pull(what=what, dest=to, run=run, ranks=chosen, hosts=host, overwrite=overwrite)
        return copy.pull(wanted, self)

    def exec(self, *argv: str, **options: Unpack[ExecKeywords]) -> list[Executed]:
        """Run a command on every node and spare at once, and return how it ended on each, in the inventory's order.

        Raises:
            UsageError: an option is none, or has a value that cannot be meant; names it.
        """
        from clusterddp.shell import Command  # noqa: PLC0415 - start-up

        given = option_values.read_all(options, EXEC_READERS, "exec")
        sync = given.pop("sync", False)
        with self.execution(Command(argv=option_values.arguments(argv), **given), sync=sync) as running:
            return running.collected()

    def execution(self, command: Command, *, given: IO[bytes] | None = None, sync: bool = False) -> Execution:
        """The command begun on every node and spare as soon as it answers; a host that does not holds nobody up.

        Args:
            command: What to run.
            given: Its input, the same for every host.
            sync: First sync the project's code to the hosts that answer.
        """
        from clusterddp.shell import Execution  # noqa: PLC0415 - start-up

        answering.nodes(self.inventory)
        folders = answering.workdirs(self._reached, self.project)
        asked = sync or (not command.bare and any(entry.environment for entry in self._reached))
        hosts = [outcome.value for outcome in self.connect(self._reached) if outcome.value] if asked else []
        if asked and not command.bare:
            self._install(hosts)
        if sync:
            from clusterddp.launch import code_on_hosts  # noqa: PLC0415 - start-up

            folders.update(code_on_hosts.synced(hosts, self.project, self.notify, self.progress).workdirs)
        inside = self.project.subfolder
        return Execution(self._reached, self._open, command, workdirs=folders, subfolder=inside, given=given)
