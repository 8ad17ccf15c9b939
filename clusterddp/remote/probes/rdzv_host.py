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
from ..shared.schema.record import read_record, to_fields
from ..system.bounded_child import Child
from .health import ask_all
from .job_environment import job_environment
from .scripts.rdzv_host import from_file, match_endpoints

ANSWER_TIMEOUT = 6.0  # seconds; a dead name server takes ten for each name, and another check reports it
_NO_ANSWER = Election({}, "no answer within %d s" % ANSWER_TIMEOUT)


def election(request: Request) -> Dict[str, Any]:
    """Operation: torch's answer for some endpoints.

    Takes an ``ElectionRequest``, returns an ``Election`` (shared/probes/torchrun_records.py).
    Raises Refused if the setup lines fail.
    """
    asked = request.read_args(ElectionRequest)
    try:
        function = from_file(str(asked.torch))
    except Exception:  # noqa: BLE001 - there is none, it needs torch, or a newer Python than the helper's
        return to_fields(_in_training_interpreter(asked))
    answer = ask_all({"": lambda: match_endpoints(lambda: function, [*asked.endpoints])}, ANSWER_TIMEOUT).get("")
    return to_fields(_election(answer) if answer else _NO_ANSWER)


def _election(answer: Any) -> Election:
    """The answer of probes/scripts/rdzv_host.py."""
    return read_record(Election, answer, "election")


def _in_training_interpreter(asked: ElectionRequest) -> Election:
    env = job_environment(asked.job, dict(os.environ))
    source = pkgutil.get_data(__package__ or "", "scripts/rdzv_host.py") or b""
    argv = [asked.python, "-c", source.decode()]
    # From the root folder: a torch folder in a user's home must not be taken for torch.
    endpoints = json.dumps(asked.endpoints).encode()
    answer = Child(argv, env=env, timeout=ANSWER_TIMEOUT, cwd="/", input_data=endpoints).answer()
    if answer.payload:
        return _election(json.loads(answer.payload))
    if answer.status is None:
        return _NO_ANSWER
    return Election({}, answer.last_line() or "its python ended with status %s" % answer.status)
