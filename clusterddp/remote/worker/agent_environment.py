"""The environment of a node's agent, which its workers' is made of."""

import os
from typing import Dict

from ..shared.run.node_env import without_other_launchers
from ..shared.run.plan import BACKEND, NodePlan, spool_environment
from ..spool.layout import Spool
from ..system.setup_env import setup_environment


def agent_environment(plan: NodePlan, spool: Spool) -> Dict[str, str]:
    """The agent's environment: what the setup lines leave, without other launchers' variables, then the plan's."""
    environment = without_other_launchers(setup_environment(plan.host_settings.setup, dict(os.environ)))
    values = dict(plan.env)
    for name in plan.yielding:  # probed values; the host's user or a setup line may override them
        if name in environment:
            values.pop(name, None)
    environment.update(values)
    environment.update(spool_environment(spool.folder, plan))
    user = environment.get("PYTHONPATH")
    if user is not None:
        environment["CLUSTERDDP_USER_PYTHONPATH"] = user  # the shim restores it for the worker
    if plan.settings.rdzv_backend == BACKEND:  # torch finds the plugin there
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (spool.code, user)))
    return environment
