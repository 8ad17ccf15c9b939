"""Carry out a launch plan over the connections: start every node's supervisor, or none.

All supervisors come up at once and bind their ports; when the last is ready each hears of all ports, and only then
the agents start. If one fails, those that have started are stopped again. Slurm is another rendering of the same plan.
"""

from __future__ import annotations

import contextlib
import json
import secrets as random
from typing import TYPE_CHECKING, Any

from clusterddp.errors import ClusterddpError, HelperError
from clusterddp.hosts.fanout import each, values
from clusterddp.remote.shared.records import written

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.launch.plan import LaunchPlan
    from clusterddp.remote.shared.plan import NodePlan

START_TIMEOUT = 180.0  # seconds; a setup line on a cold file system may take most of it
CLEANUP_REASON = "the start failed on another host"


def launch(hosts: Sequence[Host], plan: LaunchPlan, secrets: Mapping[str, str]) -> dict[str, str]:
    """Start the plan's nodes on ``hosts``, one for each place.

    Args:
        hosts: The open hosts, in the order of the plan's places.
        plan: What to start.
        secrets: Values by name; they travel as data and lie in one file on each host.

    Returns:
        Each host's spool by host name.

    Raises:
        HostError: a host could not start; nothing is left running on those that answer.
    """
    key = random.token_hex(32)  # of run control; it travels inside SSH only
    nodes = {host.name: plan.node_plan(place) for place, host in enumerate(hosts)}
    try:
        started = values(each(hosts, lambda host: start_node(host, nodes[host.name], secrets, key)))
        answers = dict(zip(nodes, started, strict=True))
        spools = {name: str(answer["spool"]) for name, answer in answers.items()}
        peers = [
            [node.address, answer["control"]] for node, answer in zip(plan.all_nodes, answers.values(), strict=True)
        ]
        ready = {"store": answers[hosts[0].name]["store"], "peers": peers}
        _commit(hosts, spools, ready)
    except BaseException:  # Ctrl-C too
        _undo(hosts, plan.run)
        raise
    return spools


def start_node(host: Host, plan: NodePlan, secrets: Mapping[str, str], key: str) -> dict[str, Any]:
    """Start one node's supervisor, which waits for ``commit``; ``{started, spool, store, control}``.

    Args:
        host: Where.
        plan: The node's.
        secrets: Values by name; it gets those that its plan names.
        key: The run's, of run control.

    Raises:
        HostError: it could not start.
    """
    mine = {name: secrets[name] for name in plan.secrets}
    message = json.dumps({"plan": written(plan), "secrets": mine, "key": key}).encode()
    answer: dict[str, Any] = host.upload("start", {}, [message], timeout=START_TIMEOUT)
    return answer


def _commit(hosts: Sequence[Host], spools: Mapping[str, str], ready: Mapping[str, Any]) -> None:
    """Let the agents start.

    Raises:
        HostError: a host's supervisor is gone already; says why.
    """
    outcomes = each(hosts, lambda host: host.call("commit", {"spool": spools[host.name], **ready}, timeout=30))
    for host, answer in zip(hosts, values(outcomes), strict=True):
        if not answer["alive"]:
            reason = (answer["exit"] or {}).get("reason") or "it left no record"
            raise HelperError(host.name, f"its supervisor ended before the start: {reason}")


def _undo(hosts: Sequence[Host], run: str) -> None:
    """Stop whatever may have started; on a host out of reach an uncommitted supervisor ends by itself."""

    def stop(host: Host) -> None:
        with contextlib.suppress(ClusterddpError):  # never started there, or out of reach
            host.call("stop", {"run": run, "hosts": [host.name], "grace": 0.0, "reason": CLEANUP_REASON}, timeout=60)

    each([host for host in hosts if not host.lost], stop)
