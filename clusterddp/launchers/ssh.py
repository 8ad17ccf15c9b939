"""Carry out a launch plan over the connections: start every node's supervisor, or none.

The rendezvous host comes first, because only its bound port completes the argv; all others follow at once.
If one fails, those that have started are stopped again. Slurm is another rendering of the same plan.
"""

from __future__ import annotations

import contextlib
import json
import secrets as random
from typing import TYPE_CHECKING, Any

from clusterddp.errors import ClusterddpError
from clusterddp.fanout import each, values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterddp.fanout import Host
    from clusterddp.plan import LaunchPlan

START_TIMEOUT = 180.0  # seconds; a setup line on a cold file system may take most of it
CLEANUP_REASON = "the start failed on another host"


def launch(hosts: Sequence[Host], plan: LaunchPlan, secrets: Mapping[str, str]) -> tuple[LaunchPlan, dict[str, str]]:
    """Start the plan's nodes on ``hosts`` (in the plan's order).

    Args:
        hosts: One open host for each of the plan's nodes.
        plan: What to start.
        secrets: Values by name; they travel as data and lie in one file on each host.

    Returns:
        The plan with its port, and each host's spool by host name.

    Raises:
        HostError: a host could not start; nothing is left running on those that answer.
    """
    key = random.token_hex(32)  # of run control; it travels inside SSH only
    ranks = {host.name: rank for rank, host in enumerate(hosts)}

    def start(host: Host) -> dict[str, Any]:
        rank = ranks[host.name]
        node = plan.node_json(rank)
        mine = {name: secrets[name] for name in node["secrets"]}
        message = json.dumps({"plan": node, "secrets": mine, "key": key}).encode()
        answer: dict[str, Any] = host.upload("start", {}, [message], timeout=START_TIMEOUT)
        return answer

    try:
        first = each(hosts[:1], start)
        plan = plan.with_ports(*values(first)[0]["ports"])
        started = first + each(hosts[1:], start)
        values(started)
        spools = {outcome.name: str(outcome.get()["spool"]) for outcome in started}
        values(each(hosts, lambda host: host.call("commit", {"spool": spools[host.name]}, timeout=30)))
    except BaseException:  # Ctrl-C too
        _undo(hosts, plan.run)
        raise
    return plan, spools


def _undo(hosts: Sequence[Host], run: str) -> None:
    """Stop whatever may have started; on a host out of reach an uncommitted supervisor ends by itself."""

    def stop(host: Host) -> None:
        with contextlib.suppress(ClusterddpError):  # never started there, or out of reach
            host.call("stop", {"run": run, "hosts": [host.name], "grace": 0.0, "reason": CLEANUP_REASON}, timeout=60)

    each([host for host in hosts if not host.lost], stop)
