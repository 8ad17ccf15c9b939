"""Plan a run on the hosts of an inventory: open them, replace unreachable ones by spares, prepare the others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.launch import answering
from clusterddp.launch import repeat as again
from clusterddp.launch.overlap import Early
from clusterddp.launch.script import check_script

if TYPE_CHECKING:
    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.inventory import HostEntry, Inventory
    from clusterddp.launch.make_plan import LaunchPlan
    from clusterddp.launch.options import RunOptions
    from clusterddp.runs.run_on_hosts import Site


def plan_run(site: Site, options: RunOptions, *, dry: bool = False) -> tuple[LaunchPlan, list[Host]]:
    """Do everything that precedes the start of a run; return its plan and its hosts, ordered by member index.

    ``dry``: sync nothing. Raises ClusterddpError if a host cannot take part, or the code cannot be synced.
    """
    with again.resolve_repeat(site.inventory, site.project, options) as (inventory, project, repeat):
        entries = answering.nodes(inventory)
        options = replace(options, script=check_script(options, project))
        with Early(project, options, repeat) as early:
            nodes, spares, replaced = _open_hosts(site, inventory, entries, options, early)
            from clusterddp.launch.prepare import prepare  # noqa: PLC0415 - ``Early`` has imported it by now

            hosts = answering.choose_answering(nodes, options, inventory, site.notify)
            reserve = answering.answering_spares(spares if options.relaunch else (), site.notify)
            more = (project, inventory, options, site.notify, site.progress, early)
            plan, taking = prepare(hosts, reserve, *more, dry=dry)
            return plan.with_record(replaced=replaced), taking


def _open_hosts(
    site: Site, inventory: Inventory, entries: tuple[HostEntry, ...], options: RunOptions, early: Early
) -> tuple[list[Outcome[Host]], list[Outcome[Host]], dict[str, str]]:
    """Open the nodes, and the spares if the run keeps or needs some; return both, and which spare replaces which node.

    Each host is asked for its facts as soon as it is open.
    """

    def open_all_of(wanted: tuple[HostEntry, ...]) -> list[Outcome[Host]]:
        return site.connections.open_all(wanted, site.progress, early.ask, writes=True)

    reserve = inventory.spares if options.relaunch else ()
    outcomes = open_all_of((*entries, *reserve))
    nodes, spares = outcomes[: len(entries)], outcomes[len(entries) :]
    if not reserve and inventory.spares and answering.count_replacements(nodes, options):
        spares = open_all_of(inventory.spares)
    return answering.replace_unreachable(nodes, spares, options, site.notify)
