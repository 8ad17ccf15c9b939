"""From a run's plan without hosts to each node's: hosts that a workload manager chooses make it themselves."""

import re
from typing import Any, Dict, Mapping, Sequence, Tuple

from .node_env import Node
from .plan import BACKEND, OLDEST_TORCH, PORT_PLACEHOLDER, NodePlan, Peer, StorePlan, plan_for_node
from .run_record import RunRecord

AUTO = "auto"


def choose_backend(wanted: str, torch_versions: Sequence[str], states: Sequence[str]) -> str:
    """The rendezvous backend for torchrun on all hosts; ``wanted`` is ``auto``, or the backend itself.

    ``torch_versions`` are the hosts' torch versions, ``""`` where unknown; ``states`` are their state folders, which
    will hold the plugin.
    """
    if wanted != AUTO:
        return wanted
    fits = all(torch_release(version) >= OLDEST_TORCH for version in torch_versions)
    findable = all(":" not in state for state in states)  # PYTHONPATH cannot say such a path
    return BACKEND if fits and findable else "c10d"


def torch_release(version: str) -> Tuple[int, ...]:
    """The first two numbers of a version; ``(0, 0)`` where there are none."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def placed_plan(
    plan: NodePlan, nodes: Sequence[Node], member: int, *, attempt: int, backend: str, record_fields: Mapping[str, Any]
) -> NodePlan:
    """The plan of one node, from the run's plan without hosts.

    ``nodes`` take part, in the order of their ranks; ``member`` is the node's. ``record_fields`` are those of
    the run's record that only the nodes know.
    """
    node, count = nodes[member], len(nodes)
    address = nodes[0].address
    elastic = plan.settings.elastic
    endpoint = "%s:%s" % ("[%s]" % address if ":" in address else address, PORT_PLACEHOLDER)
    options = {"--rdzv-id": "%s.%d" % (plan.run, attempt), "--rdzv-backend": backend, "--rdzv-endpoint": endpoint}
    if not elastic:
        options["--nnodes"] = str(count)
    least = plan.settings.min_nodes if elastic else count
    return plan_for_node(plan, node, member)._replace(
        attempt=attempt,
        nnodes=count,
        argv=_with_options(plan.argv, options),
        world_size=sum(one.nproc for one in nodes),
        store=StorePlan(address) if member == 0 else None,
        record=_placed_record(plan.record, nodes, least, record_fields),
        members=tuple(range(count)),
        peers=tuple(map(Peer.of, nodes)),
        settings=plan.settings._replace(
            min_nodes=least, max_nodes=plan.settings.max_nodes if elastic else count, rdzv_backend=backend
        ),
    )


def _with_options(argv: Sequence[str], options: Dict[str, str]) -> Tuple[str, ...]:
    """What torchrun is told, with other values for these options; the script's own words are behind them."""
    arguments = list(argv)
    for option, value in options.items():
        arguments[arguments.index(option) + 1] = value
    return tuple(arguments)


def _placed_record(record: RunRecord, nodes: Sequence[Node], least: int, record_fields: Mapping[str, Any]) -> RunRecord:
    return record._replace(
        hosts=tuple(node.host for node in nodes),
        world_size=sum(node.nproc for node in nodes),
        nnodes=len(nodes),
        min_nodes=least,
        workdirs={node.host: node.workdir for node in nodes},
        **record_fields,
    )
