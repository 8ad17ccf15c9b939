"""The operation ``election``: whether torchrun on this host would consider an endpoint to be this host.

A torchrun started by hand decides that on every host, and the one for which it is true runs the store. torch's own
function answers (probes/scripts/rdzv_host.py). The answer depends on name resolution, so it is never cached.
"""

import json
import os
import pkgutil
from typing import Any, Dict, List

from ..helper.request import Request
from ..system.bounded_child import Child
from ..system.setup_env import setup_environment
from .health import ask_all
from .scripts.rdzv_host import asked, from_file

PATIENCE = 6.0  # seconds; a dead name server takes ten for each name, and another check reports it
_SILENT: Dict[str, Any] = {"matches": {}, "error": "no answer within %d s" % PATIENCE}


def election(request: Request) -> Dict[str, Any]:
    """Operation: torch's answer for some endpoints.

    Arguments: ``python`` (the training interpreter), ``torch`` (its torch's folder, or null), ``setup``, ``env``,
    ``endpoints`` (names, addresses). Returns ``{matches: {endpoint: true or false}, error}``; with an error the rest
    has no meaning. Raises Refused if the setup lines fail.
    """
    args = request.args
    endpoints = [str(name) for name in args["endpoints"]]
    try:
        function = from_file(str(args.get("torch")))
    except Exception:  # noqa: BLE001 - there is none, it needs torch, or a newer Python than the helper's
        return _in_training_interpreter(args, endpoints)
    answer: Dict[str, Any] = ask_all({"": lambda: asked(lambda: function, endpoints)}, PATIENCE).get("", _SILENT)
    return answer


def _in_training_interpreter(args: Dict[str, Any], endpoints: List[str]) -> Dict[str, Any]:
    env = setup_environment(args.get("setup") or [], dict(os.environ))
    env.update({str(name): str(value) for name, value in (args.get("env") or {}).items()})
    source = pkgutil.get_data(__package__ or "", "scripts/rdzv_host.py") or b""
    argv = [str(args["python"]), "-c", source.decode()]
    # From the root folder: a torch folder in a user's home must not be taken for torch.
    answer = Child(argv, env=env, timeout=PATIENCE, cwd="/", given=json.dumps(endpoints).encode()).answer()
    if answer.payload:
        reply: Dict[str, Any] = json.loads(answer.payload)
        return reply
    if answer.status is None:
        return _SILENT
    return {"matches": {}, "error": answer.last_line() or "its python ended with status %s" % answer.status}
