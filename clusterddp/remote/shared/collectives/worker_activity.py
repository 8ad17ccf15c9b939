"""What a worker does, in a few words: by its trace, its kernel state, its stack, and its waits outside groups. Pure."""

import re
from typing import Optional

from ..processes.worker_stacks import WorkerStack
from .stack_calls import SEND, TORCH_DISTRIBUTED, waiting_call
from .trace_records import DONE, Operation, WorkerTrace

FOR_LOADER = "waiting for its data loader"
_DATA_LOADER = re.compile(r"/(torch/utils/data|torchdata)/")
_ACTIVITIES = (  # (a frame's file, its function) → what the worker does; the innermost frame that matches counts
    (TORCH_DISTRIBUTED, SEND, "waiting in a send or receive"),
    (_DATA_LOADER, re.compile(""), FOR_LOADER),
    (
        re.compile(r"/(subprocess|popen_fork|popen_\w+)\.py$"),
        re.compile("wait|poll|communicate"),
        "waiting for a child",
    ),
    (
        re.compile(r"/threading\.py$"),
        re.compile("^_shutdown$"),
        "at the end of its script, which waits for its threads",
    ),
    (re.compile(r"/threading\.py$"), re.compile("wait|acquire|join"), "waiting for a lock or a thread"),
    (re.compile(r"/(queue|concurrent/futures/\w+)\.py$"), re.compile(""), "waiting for a thread"),
    (re.compile(r"/multiprocessing/"), re.compile("recv|poll|wait|acquire|get|join"), "waiting for another process"),
    (re.compile(r"/(socket|ssl|http/client|urllib3/[\w/]+)\.py$"), re.compile(""), "waiting for the network"),
)


def activity(trace: WorkerTrace, stack: Optional[WorkerStack], *, busy: bool) -> str:
    """What a worker does; ``busy``: it counts as at work where nothing shows that it waits."""
    if trace.state == "T":
        return "stopped (SIGSTOP)"
    if trace.state == "D":
        return f"in uninterruptible sleep ({trace.wchan.strip('0') or 'a disk or a file server'})"
    if stack and stack.holds_gil and trace.state == "S":
        return "holding Python's lock (GIL) in a C call"
    if stack and stack.at_breakpoint:
        return "at a breakpoint()"
    waits = _library_wait(stack) if stack else ""
    if waits:
        return f"{waits} ({', '.join(trace.children)})" if waits.endswith("child") and trace.children else waits
    call = waiting_call(stack) if stack else ""
    if call and not trace.waits:
        return f"in {call}"
    if trace.waits:
        return f"waiting in {trace.waits[0].replace('__', '.')}"
    return "at work" if busy or trace.state == "R" else "waiting"


def _library_wait(stack: WorkerStack) -> str:
    """For what a worker waits in a library's call, by the innermost frame that tells; empty if none does.

    A data loader waits for its processes and threads as any code does: its frames around such a wait tell more.
    """
    found = ""
    for frame in reversed(stack.frames):
        if found and not frame.installed:
            break
        for file, function, words in _ACTIVITIES:
            if file.search(frame.file) and function.search(frame.function) and (not found or words == FOR_LOADER):
                found = words
                break
    return found


def pending(trace: WorkerTrace) -> str:
    """Say in which operation of which group a rank waits; empty if in none."""
    for group in trace.groups:
        for number, operation, progress, _ in group.entries:
            if progress != DONE:
                return operation_in_words(group.operations[operation], number, group.title)
    return ""


def operation_in_words(operation: Operation, number: Optional[int], group: str) -> str:
    """Name one operation: ``all_reduce #4 of group default (float32 [4])``."""
    sequence = "" if number is None else f" #{number}"
    where = f" of group {group}" if group else ""
    shape = f" ({operation.shape})" if operation.shape else ""
    return f"{operation.name}{sequence}{where}{shape}"
