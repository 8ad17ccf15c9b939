"""The operation ``election``: whether torchrun on this host would consider an endpoint to be this host.

A torchrun started by hand decides that on every host, and the one for which it is true runs the store. torch's own
function answers (probes/scripts/rdzv_host.py). The answer depends on name resolution, so it is never cached.
"""

import json
import os
import pkgutil
from typing import Any, Dict

from ..helper.request import Request
from ..shared.probes.torchrun_records import Election, ElectionRequest
from ..shared.schema.record import read_record, written
from ..system.bounded_child import Child
from .health import ask_all
from .job_environment import job_environment
from .scripts.rdzv_host import asked, from_file

PATIENCE = 6.0  # seconds; a dead name server takes ten for each name, and another check reports it
_SILENT = Election({}, "no answer within %d s" % PATIENCE)


def election(request: Request) -> Dict[str, Any]:
    """Operation: torch's answer for some endpoints.

    Takes an ``ElectionRequest``, returns an ``Election`` (shared/probes/torchrun_records.py).
    Raises Refused if the setup lines fail.
    """
    wanted = request.read_args(ElectionRequest)
    try:
        function = from_file(str(wanted.torch))
    except Exception:  # noqa: BLE001 - there is none, it needs torch, or a newer Python than the helper's
        return written(_in_training_interpreter(wanted))
    answer = ask_all({"": lambda: asked(lambda: function, [*wanted.endpoints])}, PATIENCE).get("")
    return written(_election(answer) if answer else _SILENT)


def _election(answer: Any) -> Election:
    """The answer of probes/scripts/rdzv_host.py."""
    return read_record(Election, answer, "election")


def _in_training_interpreter(wanted: ElectionRequest) -> Election:
    env = job_environment(wanted.job, dict(os.environ))
    source = pkgutil.get_data(__package__ or "", "scripts/rdzv_host.py") or b""
    argv = [wanted.python, "-c", source.decode()]
    # From the root folder: a torch folder in a user's home must not be taken for torch.
    answer = Child(argv, env=env, timeout=PATIENCE, cwd="/", input_data=json.dumps(wanted.endpoints).encode()).answer()
    if answer.payload:
        return _election(json.loads(answer.payload))
    if answer.status is None:
        return _SILENT
    return Election({}, answer.last_line() or "its python ended with status %s" % answer.status)
