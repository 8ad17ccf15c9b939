"""The operation ``facts``: everything that the operator has to know of a host before it plans a run.

The slow parts run side by side: ``nvidia-smi`` while the setup lines run. Only torch's answer is cached.
"""

import os
import time
from typing import Any, Dict, List

from ..helper.request import Request
from ..shared.names import interfaces
from ..system import nvidia_smi
from ..system.bootstrap import Refused, home_folder
from ..system.interpreter import find_interpreter
from ..system.setup_env import environment_digest, setup_environment
from .host import host_facts
from .nccl_settings import places, settings
from .packages import installed
from .torch import torch_facts, torch_folder

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def facts(request: Request) -> Dict[str, Any]:
    """Operation: this host's facts.

    Arguments: ``setup`` (lines), ``python``, ``workdir``, ``env`` (clusterddp_env), ``state``, ``fresh``, ``packages``
    (whether they are reported), ``alike`` (whether torch's cached answer for as many GPUs of the same models is good
    enough). Raises Refused if the setup lines fail, or the network interfaces cannot be listed.
    """
    args = request.args
    session = dict(os.environ)
    nvidia = nvidia_smi.start_query(session)
    env = setup_environment(args.get("setup") or [], session)
    given = {str(name): str(value) for name, value in (args.get("env") or {}).items()}
    env.update(given)
    found: Dict[str, Any] = {
        **host_facts(),
        "ssh_address": interfaces.ssh_address(session),
        "addresses": _addresses(),
        "ephemeral_range": interfaces.ephemeral_range(),
        **nvidia_smi.read_query(nvidia),
        "pci_gpus": nvidia_smi.pci_gpus(),
        "visible_devices": next((env[name] for name in _VISIBLE if name in env), None),
        "omp_num_threads": env.get("OMP_NUM_THREADS"),
        "env_digest": environment_digest(env),
        "environment": _telling(env),
        "settings": settings(env, home_folder()),
        "places": places(env),
    }
    found.update(_python_facts(args, env, found))
    found["time_ns"] = time.time_ns()
    return found


def _telling(env: Dict[str, str]) -> Dict[str, str]:
    """The variables that torchrun, NCCL and gloo read; none of them holds a secret."""
    from ..shared.run.node_env import STALE, STALE_PREFIXES

    names = [name for name in env if name in STALE or name.startswith((*STALE_PREFIXES, "NCCL_", "GLOO_", "TP_"))]
    return {name: env[name][:1000] for name in sorted(names)}


def _addresses() -> Any:
    try:
        return interfaces.addresses()
    except OSError as error:
        raise Refused("the network interfaces cannot be listed: %s" % error) from error


def _depends(args: Dict[str, Any], env: Dict[str, str], found: Dict[str, Any]) -> List[str]:
    """What torch's answer depends on besides its installation; for ``alike`` GPUs, only their number and models."""
    given = ["%s=%s" % item for item in sorted((args.get("env") or {}).items())]
    lines, devices, bus = list(args.get("setup") or []), found["visible_devices"], str(found["pci_gpus"])
    if not args.get("alike"):
        visible = [gpu["uuid"] for gpu in found["gpus"]] + [str(devices)]
        return [found["env_digest"], *lines, *given, *visible, bus]
    others = {name: value for name, value in env.items() if name not in _VISIBLE}
    models = sorted("%s %s %s" % (gpu["name"], gpu["driver"], gpu["mig"]) for gpu in found["gpus"])
    chosen = "all" if devices is None else str(len([one for one in devices.split(",") if one]))
    return [environment_digest(others), *lines, *given, *models, chosen, bus]


def _python_facts(args: Dict[str, Any], env: Dict[str, str], found: Dict[str, Any]) -> Dict[str, Any]:
    """The facts that need the training interpreter; a host without one still reports all others."""
    try:
        interpreter = find_interpreter(args.get("python"), env, args.get("workdir"))
    except Refused as error:
        nothing = dict.fromkeys(("python", "python_version", "torch", "torch_folder", "packages"))
        return {**nothing, "python_error": error.message}
    torch = torch_facts(
        interpreter, env, state=args["state"], depends=_depends(args, env, found), fresh=bool(args.get("fresh"))
    )
    return {
        "python": interpreter.python,
        "python_version": interpreter.version,
        "python_error": None,
        "torch": torch,
        "torch_folder": torch_folder(interpreter.path),
        "packages": installed(interpreter.path) if args.get("packages") else None,
    }
