"""The Python stacks of workers as a bundle shows them."""

from typing import List, Sequence

from ..processes.worker_stacks import StackFrame, WorkerStack, group_stacks


def stacks_text(stacks: Sequence[WorkerStack]) -> str:
    """Write, for each group of equal stacks, whose they are, then the calls, the innermost last."""
    lines: List[str] = []
    for group in group_stacks(stacks):
        first = group.workers[0]
        lines += [str(group), *map(_call, first.frames)]
        for number, thread in enumerate(first.threads, 1):
            lines += ["    thread %d" % number, *("  " + _call(frame) for frame in thread)]
        lines.append("")
    return "\n".join(lines)


def _call(frame: StackFrame) -> str:
    return "    %s:%d in %s" % (frame.file, frame.line, frame.function)
