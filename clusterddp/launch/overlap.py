"""Do work while hosts are still connecting: scan the project's files, and ask each open host for its facts.

It is imported before any host is waited for, so it imports expensive modules in the background.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import TYPE_CHECKING, Any

from clusterddp.hosts import spans
from clusterddp.hosts.fanout import MAX_AT_ONCE, each
from clusterddp.runs.timeline import THIS_MACHINE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from typing_extensions import Self

    from clusterddp.facts.host import Facts
    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.launch.options import RunOptions
    from clusterddp.launch.repeat import Repeat
    from clusterddp.project.project import Project
    from clusterddp.sync.project_files.project_tree import Tree


class Early:
    """Work in parallel with the connections, as a context; on exit, pending requests are not waited for."""

    def __init__(self, project: Project, options: RunOptions, repeat: Repeat | None) -> None:
        self.repeat = repeat
        self._pool = ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="early")
        self._requests: dict[str, Future[Any]] = {}
        self._scan = self._pool.submit(_scan_project, project, options.sync_limit, repeat)
        # ``plan_run`` imports it too, once the hosts are open; it takes long, so that begins here.
        self._pool.submit(import_module, "clusterddp.launch.prepare")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def ask(self, host: Host) -> None:
        """Begin to ask an open host for its facts, unless it gets an environment and so has no interpreter yet."""
        if not host.entry.environment:
            self._requests[host.name] = self._pool.submit(_ask_facts, host)

    def facts(self, hosts: Sequence[Host]) -> dict[str, Outcome[Facts]]:
        """Return each host's facts, or an error; hosts not asked yet are asked now."""
        from clusterddp.probe.dial_hosts import decode_facts  # noqa: PLC0415 - beside the connections

        def facts_of(host: Host) -> Facts:
            request = self._requests.get(host.name)
            return decode_facts(host, request.result() if request else _ask_facts(host))

        return {outcome.name: outcome for outcome in each(hosts, facts_of)}

    def tree(self) -> Tree:
        """Return the code that is to run; raises SyncError if the project cannot be synced."""
        return self._scan.result()


def _scan_project(project: Project, limit: int | None, repeat: Repeat | None) -> Tree:
    """Return the code to run, found by a scan unless a run is repeated; ``limit``: the most bytes of a sync."""
    from clusterddp.sync.project_files.project_tree import scan  # noqa: PLC0415 - beside the connections

    began = time.monotonic()
    tree = repeat.tree if repeat else scan(project, limit)
    spans.log_span(THIS_MACHINE, "scan of the project", time.monotonic() - began)
    return tree


def _ask_facts(host: Host) -> Any:
    from clusterddp.probe.dial_hosts import ask_facts  # noqa: PLC0415 - beside the connections

    return ask_facts(host, fresh=False, packages=False)
