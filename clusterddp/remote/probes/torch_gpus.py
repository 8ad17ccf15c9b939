"""Try each GPU with the job's own torch: start it, compute, copy to the others; each attempt has its own timeout.

The attempts are processes of the training interpreter (probes/scripts/use_gpu.py), a few at once: a GPU that hangs or
crashes its process does not affect the others, and nothing of an attempt stays on a GPU.
"""

import json
import os
import pkgutil
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ..shared.probes.gpu_records import GpuCopies, GpuHealthRequest, GpuSmokeTest, GpuStart
from ..shared.schema.fields import Fields
from ..shared.schema.record import field, maybe, read_record, record
from ..system.bootstrap import Refused
from ..system.bounded_child import Child, ChildResult
from ..system.interpreter import Interpreter, find_interpreter
from .job_environment import job_environment

START_TIMEOUT = 60.0  # seconds for `import torch` and the first use of a GPU
COPY_TIMEOUT = 60.0  # seconds for the copies between all pairs
MAX_AT_ONCE = 8  # each takes a core and some hundred MiB of memory while it imports torch


@record
class CopyLine(NamedTuple):
    """A line of the script: a copy between two GPUs begins, or has ended (``same`` is set), or why there is none."""

    pair: Optional[Tuple[int, int]] = field(maybe(Fields.pair), default=None)
    same: Optional[bool] = field(maybe(Fields.flag), default=None)  # whether what arrived is what was sent
    error: Optional[str] = field(Fields.maybe_text, default=None)


def try_gpus(asked: GpuHealthRequest, session: Dict[str, str]) -> Optional[GpuSmokeTest]:
    """Try the first ``devices`` GPUs of torch; None where that is 0.

    ``session`` is the environment that the setup lines start from. Copies are tried only if two GPUs or more, and all
    of them, start.
    """
    count = asked.devices
    if not count:
        return None
    try:
        env = job_environment(asked.job, session)
        interpreter = find_interpreter(asked.job.python, env, asked.job.workdir)
    except Refused as error:
        return GpuSmokeTest(error=error.message)
    starts: List[GpuStart] = []
    width = max(2, min(MAX_AT_ONCE, os.cpu_count() or 1))
    for first in range(0, count, width):
        indices = range(first, min(first + width, count))
        children = [(index, _start_script(interpreter, env, "start", index, START_TIMEOUT)) for index in indices]
        starts += [_read_start(index, child.answer()) for index, child in children]
    working = sum(not start.error for start in starts)
    peers = None
    if working == count > 1:
        peers = _read_copies(_start_script(interpreter, env, "peers", count, COPY_TIMEOUT).answer())
    return GpuSmokeTest(starts=tuple(starts), peers=peers)


def _start_script(interpreter: Interpreter, env: Dict[str, str], what: str, number: int, timeout: float) -> Child:
    source = (pkgutil.get_data(__package__ or "", "scripts/use_gpu.py") or b"").decode()
    # From the root folder: a torch.py in a user's home must not be taken for torch.
    return Child(
        [interpreter.python, "-c", source, what, str(number)], env=env, timeout=timeout, cwd="/", input_data=b""
    )


def _read_start(number: int, answer: ChildResult) -> GpuStart:
    """The result of starting one GPU, from the script's lines and its end."""
    report: Dict[str, Any] = {}
    for line in _lines(answer):
        report.update(line)
    start = read_record(GpuStart, dict(report, number=number), "its start")
    if answer.status != 0 and not start.error:
        return start._replace(error=_failure_reason(answer, START_TIMEOUT))
    return start if start.capability or start.error else start._replace(error="torch says nothing of it")


def _read_copies(answer: ChildResult) -> GpuCopies:
    """The result of the copies between GPUs; a pair that began and did not end hangs."""
    lines = [read_record(CopyLine, line, "its copies") for line in _lines(answer)]
    error = next((line.error for line in lines if line.error), None)
    ended = [line.pair for line in lines if line.pair and line.same is not None]
    begun = [line.pair for line in lines if line.pair]
    hangs = begun[-1] if answer.status is None and begun and begun[-1] not in ended else None
    if answer.status != 0 and not error and not hangs:
        error = _failure_reason(answer, COPY_TIMEOUT)
    wrong = tuple(line.pair for line in lines if line.pair and line.same is False)
    return GpuCopies(error=error, hangs=hangs, wrong=wrong, tried=len(ended))


def _lines(answer: ChildResult) -> List[Dict[str, Any]]:
    """The JSON lines of an answer, without half a line of a process that was killed."""
    return [json.loads(line) for line in answer.payload.split(b"\n")[:-1]]


def _failure_reason(answer: ChildResult, seconds: float) -> str:
    """Why the script failed: it timed out after ``seconds``, or its status and last line."""
    if answer.status is None:
        return "no answer within %d s" % seconds
    last = answer.last_line()
    return "torch ended with status %d%s" % (answer.status, ": " + last if last else "")
