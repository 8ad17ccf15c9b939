"""Try each GPU with the job's own torch: start it, compute, copy to the others; each attempt has its own timeout.

The attempts are processes of the training interpreter (probes/scripts/gpu_trial.py), a few at once: a GPU that hangs or
crashes its process does not affect the others, and nothing of an attempt stays on a GPU.
"""

import json
import os
import pkgutil
from typing import Any, Dict, List, Optional

from ..system.bootstrap import Refused
from ..system.bounded_child import Child, ChildResult
from ..system.interpreter import Interpreter, find_interpreter
from ..system.setup_env import setup_environment

START = 60.0  # seconds for `import torch` and the first use of a GPU
PEERS = 60.0  # seconds for the copies between all pairs
AT_ONCE = 8  # each takes a core and some hundred MiB of memory while it imports torch


def try_gpus(args: Dict[str, Any], session: Dict[str, str]) -> Optional[Dict[str, Any]]:
    """Try the first ``devices`` GPUs of torch; None where that is 0.

    ``args`` are ``setup``, ``python``, ``workdir``, ``env`` as for ``facts``, and ``devices``; ``session`` is the
    environment that the setup lines start from. Returns ``{error, starts: [{index, error, capability, arches}], peers:
    {error, hangs, wrong, tried}}``, with pairs of torch's device numbers. With an ``error`` the rest has no meaning;
    ``peers`` is null unless two GPUs or more, and all of them, start.
    """
    count = int(args["devices"])
    if not count:
        return None
    env = dict(session)
    try:
        env = setup_environment(args.get("setup") or [], session)
        env.update({str(name): str(value) for name, value in (args.get("env") or {}).items()})
        interpreter = find_interpreter(args.get("python"), env, args.get("workdir"))
    except Refused as error:
        return {"error": error.message, "starts": [], "peers": None}
    starts: List[Dict[str, Any]] = []
    width = max(2, min(AT_ONCE, os.cpu_count() or 1))
    for first in range(0, count, width):
        indices = range(first, min(first + width, count))
        asked = [(index, _ask(interpreter, env, "start", index, START)) for index in indices]
        starts += [_start(index, child.answer()) for index, child in asked]
    well = sum(not one["error"] for one in starts)
    peers = _peers(_ask(interpreter, env, "peers", count, PEERS).answer()) if well == count > 1 else None
    return {"error": None, "starts": starts, "peers": peers}


def _ask(interpreter: Interpreter, env: Dict[str, str], what: str, number: int, timeout: float) -> Child:
    source = (pkgutil.get_data(__package__ or "", "scripts/gpu_trial.py") or b"").decode()
    # From the root folder: a torch.py in a user's home must not be taken for torch.
    return Child([interpreter.python, "-c", source, what, str(number)], env=env, timeout=timeout, cwd="/", given=b"")


def _start(index: int, answer: ChildResult) -> Dict[str, Any]:
    report: Dict[str, Any] = {"index": index, "capability": None, "arches": [], "error": None}
    for line in _lines(answer):
        report.update({key: line[key] for key in report if key in line})
    if answer.status != 0 and not report["error"]:
        report["error"] = _why(answer, START)
    elif not report["capability"] and not report["error"]:
        report["error"] = "torch says nothing of it"
    return report


def _peers(answer: ChildResult) -> Dict[str, Any]:
    lines = _lines(answer)
    error = next((str(line["error"]) for line in lines if "error" in line), None)
    ended = [line["pair"] for line in lines if "same" in line]
    begun = [line["pair"] for line in lines if "pair" in line]
    hangs = begun[-1] if answer.status is None and begun and begun[-1] not in ended else None
    if answer.status != 0 and not error and not hangs:
        error = _why(answer, PEERS)
    wrong = [line["pair"] for line in lines if line.get("same") is False]
    return {"error": error, "hangs": hangs, "wrong": wrong, "tried": len(ended)}


def _lines(answer: ChildResult) -> List[Dict[str, Any]]:
    """The JSON lines of an answer, without half a line of a process that was killed."""
    return [json.loads(line) for line in answer.payload.split(b"\n")[:-1]]


def _why(answer: ChildResult, seconds: float) -> str:
    if answer.status is None:
        return "no answer within %d s" % seconds
    last = answer.last_line()
    return "torch ended with status %d%s" % (answer.status, ": " + last if last else "")
