"""Environments made on a host: of a node's agent, and like a worker's for commands that are no worker."""

import os
from typing import TYPE_CHECKING, Dict, Tuple

from ..shared.run.node_env import without_other_launchers
from ..system.bootstrap import Refused
from ..system.interpreter import locate
from ..system.programs import find_program
from ..system.setup_env import setup_environment
from .worker_env import PRIVATE, PRIVATE_PREFIX

if TYPE_CHECKING:
    from ..shared.run.plan import NodePlan
    from ..shared.shell.command_records import WorkerPlace
    from ..spool.layout import Spool


def agent_environment(plan: "NodePlan", spool: "Spool") -> Dict[str, str]:
    """The agent's environment: what the setup lines leave, without other launchers' variables, then the plan's."""
    from ..shared.run.plan import BACKEND, spool_environment  # an environment like a worker's needs no plan

    environment = without_other_launchers(setup_environment(plan.host_settings.setup, dict(os.environ)))
    environment["PWD"] = plan.cwd  # not the login's folder, which is that of who gave the command on a local node
    environment.pop("OLDPWD", None)
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


def environment_of_run(folder: str) -> Tuple[Dict[str, str], str]:
    """Return the environment and folder of a run's workers, without secrets and without per-rank variables."""
    from ..spool.layout import Spool

    spool = Spool(folder)
    try:
        plan = spool.plan()
    except (OSError, ValueError) as error:
        raise Refused("the run's files cannot be read: %s" % error) from None
    environment = agent_environment(plan, spool)
    environment.pop("CLUSTERDDP_RUN_ID")  # a process that has it counts as the run's and is ended with it
    user = environment.pop("CLUSTERDDP_USER_PYTHONPATH", None)
    environment.pop("PYTHONPATH", None)
    environment.update({} if user is None else {"PYTHONPATH": user})
    own = {name for name in environment if name.startswith(PRIVATE_PREFIX) or name in PRIVATE}
    return {name: value for name, value in environment.items() if name not in own}, plan.cwd


def worker_like(place: "WorkerPlace", session: Dict[str, str]) -> Dict[str, str]:
    """Make an environment like a worker's: setup lines, the inventory's variables, the interpreter first on PATH."""
    job = place.job
    environment = without_other_launchers(setup_environment(job.setup, session))
    environment.update(job.env)
    environment["CLUSTERDDP_HOST"] = place.host
    python = locate(job.python, environment, job.workdir) if job.python else None
    if python:
        folder, programs = os.path.dirname(python), (os.path.basename(python), "python")
        own = [find_program(name, {"PATH": folder}) for name in programs]
        if any(path and path != find_program(name, environment) for name, path in zip(programs, own)):
            environment["PATH"] = os.pathsep.join([folder, environment.get("PATH", os.defpath)])
    return environment
