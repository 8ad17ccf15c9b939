"""The launcher `dummy`: starts runs on hosts of the inventory as SSH does, and writes down what it was asked for."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.hosts.ask import ask
from clusterddp.hosts.fanout import Outcome, each
from clusterddp.launch.launcher import FileQuery, HostQuery, Launcher, LentHosts
from clusterddp.launch.plan_run import plan_run
from clusterddp.launch.ssh.over_ssh import launch
from clusterddp.remote.shared.run.stop_records import StopAnswer, StopRequest
from clusterddp.runs import proof
from clusterddp.runs.node_answers import query_nodes
from clusterddp.runs.run import Run
from clusterddp.runs.run_on_hosts import ALL, Wanted
from clusterddp.sync.transfer.collect import Origin
from tests.integration.another_launcher import NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from clusterddp.errors import ClusterddpError
    from clusterddp.hosts.client import Host
    from clusterddp.inventory import HostEntry
    from clusterddp.launch.options import RunOptions
    from clusterddp.runs.proof import Proof
    from clusterddp.runs.run_on_hosts import R, Site
    from clusterddp.runs.view.run_view import Reports

CALLS: list[str] = []  # names of methods, each once a call


class Dummy:
    """See ``Launcher``."""

    name = NAME
    clean_operation = "clean"

    def render(self, site: Site, options: RunOptions) -> str:
        CALLS.append("render")
        plan, _ = plan_run(site, options, dry=True)
        return plan.render()

    def submit(self, site: Site, options: RunOptions) -> Run:
        CALLS.append("submit")
        plan, hosts = plan_run(site, options)
        plan = plan.with_record(launcher=NAME)
        run = Run(site, plan.run, plan.attempt, {host.name: "" for host in hosts}, plan.record)
        site.launched = run
        return replace(run, spools=launch(hosts, plan, {}, site.webhook).spools)

    def ready(self, site: Site) -> str:  # noqa: ARG002 - of Launcher
        return ""

    def hosts_with_files(self, site: Site) -> Sequence[HostEntry]:
        return [entry for entry in site.inventory.nodes if entry.launcher == NAME]

    def describe(
        self,
        site: Site,
        run: str,
        entries: Sequence[HostEntry],
        wanted: Wanted = ALL,
        patience: float | None = None,  # noqa: ARG002 - of Launcher
    ) -> list[Outcome[Reports]]:
        CALLS.append("describe")
        mine = [entry for entry in entries if entry.launcher == NAME]
        return each(mine, lambda entry: [*query_nodes(site.host(entry.name), run, site.notify, wanted)])

    @contextlib.contextmanager
    def files(self, site: Site, query: FileQuery) -> Iterator[tuple[list[Origin], list[ClusterddpError]]]:
        CALLS.append("files")
        assert query.run
        workdirs = query.run.record.workdirs
        yield (
            [Origin(host=site.host(name), workdir=path, path="", run=query.run.run) for name, path in workdirs.items()],
            [],
        )

    @contextlib.contextmanager
    def borrow_hosts(self, site: Site, query: HostQuery) -> Iterator[LentHosts]:
        CALLS.append("borrow_hosts")
        assert query.wanted
        yield LentHosts(site=site)

    def begun(self, cluster: Site, run: R, progress: Callable[[str], None]) -> R:  # noqa: ARG002 - of Launcher
        return run

    def cancel(self, cluster: Site, run: str, hosts: Sequence[str], *, grace: float, reason: str) -> list[Proof]:
        CALLS.append("cancel")

        def one(entry: HostEntry) -> Proof:
            order = StopRequest(run=run, hosts=(entry.name,), grace=grace, reason=reason)
            answer = ask(cluster.host(entry.name), "stop", order, StopAnswer, timeout=grace + 60)
            return proof.of_answer(entry.name, answer)

        asked = [entry for entry in cluster.inventory.nodes if entry.name in hosts]
        return [outcome.get() for outcome in each(asked, one)]

    def reader(self, cluster: Site, run: str, host: str) -> Host:  # noqa: ARG002 - of Launcher
        CALLS.append("reader")
        return cluster.host(host)

    def host(self, cluster: Site, run: str, host: str) -> Host:  # noqa: ARG002 - of Launcher
        CALLS.append("host")
        return cluster.host(host)


LAUNCHER: Launcher = Dummy()
