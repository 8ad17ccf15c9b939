"""The operation ``election``: would this host take itself for the one that an endpoint names?

A torchrun started by hand asks itself just that on every host, and the one that says yes holds the store. torch's own
function answers, in the training interpreter (electask.py). The answer hangs on names, so it is never kept.

Not here: which endpoints are asked about (clusterddp/probe.py), judging (clusterddp/checks).
"""

import json
import os
import pkgutil
from typing import Any, Dict

from .child import Child
from .request import Request
from .setupenv import setup_environment

PATIENCE = 6.0  # seconds; a dead name server takes ten for each name, and another check tells of it


def election(request: Request) -> Dict[str, Any]:
    """Args of the request: ``python`` (the training interpreter), ``setup``, ``env``, ``endpoints`` (names, addresses).

    Returns:
        ``{matches: {endpoint: true or false}, error}``; with an error nothing else is meant.

    Raises:
        Refused: the setup lines fail.
    """
    args = request.args
    env = setup_environment(args.get("setup") or [], dict(os.environ))
    env.update({str(name): str(value) for name, value in (args.get("env") or {}).items()})
    source = pkgutil.get_data(__package__ or "", "electask.py") or b""
    given = json.dumps([str(name) for name in args["endpoints"]]).encode()
    # From the root folder: a torch folder in a user's home must not be taken for torch.
    child = Child([str(args["python"]), "-c", source.decode()], env=env, timeout=PATIENCE, cwd="/", given=given)
    answer = child.answer()
    if answer.payload:
        told: Dict[str, Any] = json.loads(answer.payload)
        return told
    if answer.status is None:
        return {"matches": {}, "error": "no answer within %d s" % PATIENCE}
    return {"matches": {}, "error": answer.last_line() or "its python ended with status %s" % answer.status}
