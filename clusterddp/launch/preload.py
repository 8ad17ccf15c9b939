"""``up --warm``: start a warm server on each host before the first run, from the plan that a run would have there.

A warm server is a fork server without a run: it has imported torch, and forks the workers of the run that comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.errors import UsageError
from clusterddp.hosts.ask import ask
from clusterddp.hosts.fanout import each, values
from clusterddp.launch.options import RunOptions
from clusterddp.launch.overlap import Early
from clusterddp.launch.prepare import prepare
from clusterddp.remote.shared.supervisor.start_records import WarmAhead, WarmAheadRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.inventory import Inventory
    from clusterddp.project.project import Project
    from clusterddp.remote.shared.run.plan import NodePlan

START_TIMEOUT = 180.0  # seconds; setup lines may take most of it
# No script is known yet; the server's plan needs only what no script changes.
PLACEHOLDER_RUN = RunOptions(script="any", module=True, no_sync=True, no_doctor=True)


def start_warm_servers(hosts: Sequence[Host], project: Project, inventory: Inventory, idle_limit: float) -> list[str]:
    """Start a warm server on each host that has them enabled; return the names of the hosts where one started.

    Each waits ``idle_limit`` seconds for a run of ``project``.

    Raises ``UsageError`` if the inventory enables fork servers on none of the hosts.
    """
    enabled = {entry.name for entry in inventory.hosts if entry.fork_server}
    if not enabled & {host.name for host in hosts}:
        raise UsageError(
            "--warm: no host of the inventory has fork servers", remedy="leave clusterddp_fork_server: false out there"
        )
    with Early(project, PLACEHOLDER_RUN, None) as early:
        plan, ordered = prepare(hosts, (), project, inventory, PLACEHOLDER_RUN, _discard, _discard, early)
    plans = {host.name: _with_idle_limit(plan.node_plan(position), idle_limit) for position, host in enumerate(ordered)}

    def start(host: Host) -> bool:
        return ask(host, "warm_ahead", WarmAheadRequest(plans[host.name]), WarmAhead, timeout=START_TIMEOUT).begun

    starting = [host for host in ordered if host.name in enabled]
    outcomes = values(each(starting, start))
    return [host.name for host, started in zip(starting, outcomes, strict=True) if started]


def _with_idle_limit(plan: NodePlan, seconds: float) -> NodePlan:
    return plan._replace(host_settings=plan.host_settings._replace(warm=seconds))


def _discard(_: str) -> None:
    """Discard a notice that ``up`` has already shown."""
