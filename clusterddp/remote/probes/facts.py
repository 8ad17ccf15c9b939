"""The operation ``facts``: everything that the operator has to know of a host before it plans a run."""

import os
import time
from typing import Any, Dict, List, Optional

from ..helper.request import Request
from ..shared.names import interfaces
from ..shared.probes.facts_records import FactsRequest
from ..shared.schema.record import to_plain
from ..system import nvidia_smi
from ..system.bootstrap import Refused, home_folder
from ..system.interpreter import find_interpreter
from ..system.setup_env import environment_digest
from .host import host_facts
from .job_environment import job_environment
from .nccl_settings import folder_variables, settings
from .packages import installed
from .torch import torch_facts, torch_folder

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_NO_DEVICES = ("", "-1", "NoDevFiles")  # values of these that hide all GPUs; the last is Slurm's


def facts(request: Request) -> Dict[str, Any]:
    """Operation: this host's facts.

    Takes a ``FactsRequest`` (shared/probes/facts_records.py); the operator reads its ``Facts`` (facts/host.py).
    Raises Refused if the setup lines fail, or the network interfaces cannot be listed.
    """
    found: Dict[str, Any] = to_plain(gather_facts(request.read_args(FactsRequest), request.state))
    return found


def gather_facts(asked: FactsRequest, state: str) -> Dict[str, Any]:
    """This host's facts; torch's are cached in the state folder; raises Refused."""
    session = dict(os.environ)
    nvidia = nvidia_smi.start_query(session)
    env = job_environment(asked.job, session)
    gpus, nvidia_error = nvidia_smi.read_query(nvidia)
    visible = next((env[name] for name in _VISIBLE if name in env), None)
    pci = nvidia_smi.pci_gpus()
    found: Dict[str, Any] = {
        **host_facts(),
        "ssh_address": interfaces.ssh_address(session),
        "addresses": _addresses(),
        "ephemeral_range": interfaces.ephemeral_range(),
        "gpus": gpus,
        "nvidia_error": nvidia_error,
        "pci_gpus": pci,
        "visible_devices": visible,
        "omp_num_threads": env.get("OMP_NUM_THREADS"),
        "environment": _communication_variables(env),
        "settings": settings(env, home_folder()),
        "folder_variables": folder_variables(env),
    }
    depends = _cache_dependencies(asked, env, gpus, visible, str(pci))
    has_gpus = visible not in _NO_DEVICES and bool(gpus or any(pci.values()))
    found.update(_python_facts(asked, state, env, depends, has_gpus=has_gpus))
    return dict(found, time_ns=time.time_ns())


def _communication_variables(env: Dict[str, str]) -> Dict[str, str]:
    """The variables that torchrun, NCCL and gloo read; none of them holds a secret."""
    from ..shared.run.node_env import STALE_PREFIXES, STALE_VARIABLES

    names = [
        name for name in env if name in STALE_VARIABLES or name.startswith((*STALE_PREFIXES, "NCCL_", "GLOO_", "TP_"))
    ]
    return {name: env[name][:1000] for name in sorted(names)}


def _addresses() -> List[interfaces.InterfaceAddress]:
    try:
        return interfaces.addresses()
    except OSError as error:
        raise Refused("the network interfaces cannot be listed: %s" % error) from error


def _cache_dependencies(
    asked: FactsRequest, env: Dict[str, str], gpus: List[nvidia_smi.ListedGpu], devices: Optional[str], bus: str
) -> List[str]:
    """What torch's answer depends on besides its installation; for ``alike`` GPUs, only their number and models.

    ``devices`` are those that the environment makes visible; None: all.
    """
    given = ["%s=%s" % item for item in sorted(asked.job.env.items())]
    if not asked.alike:
        visible = [gpu.uuid for gpu in gpus] + [str(devices)]
        return [environment_digest(env), *asked.job.setup, *given, *visible, bus]
    others = {name: value for name, value in env.items() if name not in _VISIBLE}
    models = sorted("%s %s %s" % (gpu.name, gpu.driver, gpu.mig) for gpu in gpus)
    chosen = "all" if devices is None else str(len([device for device in devices.split(",") if device]))
    return [environment_digest(others), *asked.job.setup, *given, *models, chosen, bus]


def _python_facts(
    asked: FactsRequest, state: str, env: Dict[str, str], depends: List[str], *, has_gpus: bool
) -> Dict[str, Any]:
    """The facts that need the training interpreter; a host without one still reports all others."""
    try:
        interpreter = find_interpreter(asked.job.python, env, asked.job.workdir)
    except Refused as error:
        nothing = dict.fromkeys(("python", "python_version", "torch", "torch_folder", "packages"))
        return {**nothing, "python_error": error.message}
    torch = torch_facts(interpreter, env, state=state, depends=depends, gpus=has_gpus, fresh=asked.fresh)
    return {
        "python": interpreter.python,
        "python_version": interpreter.version,
        "python_error": None,
        "torch": torch,
        "torch_folder": torch_folder(interpreter.path),
        "packages": installed(interpreter.path) if asked.packages else None,
    }
