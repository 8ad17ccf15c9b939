"""Decide which hosts a command works on, and what to do if some of them do not answer.

Every command imports this module, most of them before the first connection, so it imports as little as possible.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from clusterddp.errors import ClusterddpError, InventoryError, PlanError, UnreachableError, UsageError, one_error
from clusterddp.hosts.fanout import values
from clusterddp.remote.shared.text.counted import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.inventory import HostEntry, Inventory
    from clusterddp.launch.options import RunOptions
    from clusterddp.project.project import Project


def nodes(inventory: Inventory) -> tuple[HostEntry, ...]:
    """Return the hosts that take part in a run; raises InventoryError if there is none."""
    if not inventory.nodes:
        message = "no host takes part: each has a clusterddp_role other than node"
        raise InventoryError(message, where=str(inventory.path or ""), remedy="give one clusterddp_role: node")
    return inventory.nodes


def run_hosts(inventory: Inventory) -> tuple[HostEntry, ...]:
    """Return all nodes and spares; unlike ``nodes``, spares alone will do. Raises InventoryError without either."""
    return inventory.run_hosts or nodes(inventory)


def choose_answering(
    outcomes: Sequence[Outcome[Host]], options: RunOptions, inventory: Inventory, notify: Callable[[str], None]
) -> list[Host]:
    """Return the hosts to consider for a run: all, or with ``nnodes`` those that answer."""
    if options.nnodes is None:
        return require_all(outcomes, inventory)
    failed = [outcome for outcome in outcomes if outcome.error]
    hosts = [outcome.get() for outcome in outcomes if not outcome.error]
    least, _ = options.nnodes
    if least > len(outcomes):
        raise UsageError(
            f"--nnodes {options.size}: the inventory has {counted(len(outcomes), 'node')}", remedy="ask for fewer"
        )
    if len(hosts) < least:
        raise PlanError(f"{len(hosts)} of {counted(least, 'node')} answer: {failed[0].error}")
    for outcome in failed:
        notify(f"left out: {outcome.error}")
    return hosts


def count_replacements(outcomes: Sequence[Outcome[Host]], options: RunOptions) -> int:
    """Return how many spares must replace nodes that cannot be reached at all.

    Nodes that answer but refuse the connection (because of their key or ours) do not count: they need fixing, and
    replacing them would hide that.
    """
    unreachable = sum(isinstance(outcome.error, UnreachableError) for outcome in outcomes)
    failed = sum(outcome.error is not None for outcome in outcomes)
    if options.nnodes is None:
        return unreachable if unreachable == failed else 0
    _, most = options.nnodes
    return min(unreachable, max(0, min(most, len(outcomes)) - (len(outcomes) - failed)))


def replace_unreachable(
    nodes: Sequence[Outcome[Host]], spares: Sequence[Outcome[Host]], options: RunOptions, notify: Callable[[str], None]
) -> tuple[list[Outcome[Host]], list[Outcome[Host]], dict[str, str]]:
    """Replace unreachable nodes by spares; return the nodes, the spares left, and which spare replaces which node.

    If a run needs all of its nodes and there are too few spares, nothing is replaced.
    """
    needed = count_replacements(nodes, options)
    ready = [outcome for outcome in spares if not outcome.error][:needed]
    if options.nnodes is None and len(ready) < needed:
        if spares:
            notify(
                f"{counted(needed, 'node')} cannot be reached, and {counted(len(ready), 'spare')} could replace them"
            )
        return list(nodes), list(spares), {}
    result, replaced = list(nodes), {}
    unreachable = [index for index, outcome in enumerate(nodes) if isinstance(outcome.error, UnreachableError)]
    for index, spare in zip(unreachable, ready):  # noqa: B905 - an elastic run may get fewer spares than it needs
        notify(f"spare {spare.name} takes the place of {nodes[index].error}")
        replaced[nodes[index].name] = spare.name
        result[index] = spare
    return result, [spare for spare in spares if spare not in ready], replaced


def answering_spares(outcomes: Sequence[Outcome[Host]], notify: Callable[[str], None]) -> list[Host]:
    """Return the spares that answer; a run can begin without the others."""
    for outcome in outcomes:
        if outcome.error:
            notify(f"spare left out: {outcome.error}")
    return [outcome.value for outcome in outcomes if outcome.value]


def require_all(outcomes: Sequence[Outcome[Host]], inventory: Inventory) -> list[Host]:
    """Return the hosts; raises HostError or HostsError unless all of them answer."""
    failed = [outcome for outcome in outcomes if outcome.error]
    if failed:
        raise _no_answer_error(failed, inventory)
    return values(outcomes)


def _no_answer_error(failed: Sequence[Outcome[Host]], inventory: Inventory) -> ClusterddpError:
    """Return the error for hosts that do not answer; if any node is left, its remedy says how to go on without them."""
    errors = [outcome.error for outcome in failed if outcome.error]
    pattern = inventory.pattern_without([outcome.name for outcome in failed])
    for error in errors if pattern else ():
        error.remedy = f"{error.remedy + '; or ' if error.remedy else ''}go on without: --limit {shlex.quote(pattern)}"
    return one_error(errors)


def workdirs(entries: Iterable[HostEntry], project: Project) -> dict[str, str]:
    """Return host → the folder of the project's code there, unless a run uses its own; empty if there never was one."""
    usual = project.workdir if project.known_id else ""
    return {entry.name: entry.workdir or usual for entry in entries}
