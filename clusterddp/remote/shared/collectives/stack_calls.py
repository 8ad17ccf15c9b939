"""What a worker's stack shows of torch.distributed: gloo does not record every call. Pure."""

import re

from ..processes.worker_stacks import WorkerStack

TORCH_DISTRIBUTED = re.compile(r"/torch/distributed/")
SEND = re.compile(r"(?:send|recv|isend|irecv|batch_isend_irecv|(?:send|recv)_object_list|_(?:wait_)?batch_p2p)$")
_MAKES_GROUP = re.compile(r"process_group|new_(?:sub)?group|mesh")  # in the names of functions that make groups
_WRAPPERS = ("wrapper", "_time_logger")  # functions of torch's around those that users call


def waiting_call(stack: WorkerStack) -> str:
    """The function of torch.distributed that a worker's own code has called and is in; empty if in none."""
    call = ""
    for frame in reversed(stack.frames):
        if not frame.installed:
            break
        if TORCH_DISTRIBUTED.search(frame.file):
            name = frame.function.rpartition(".")[2]  # Python 3.11 and newer name a function's class or function too
            call = call if name in _WRAPPERS and call else name
        elif call:
            break
    return call


def in_send_or_receive(stack: WorkerStack) -> bool:
    """Whether a worker is in a call that needs the same of its peer."""
    return any(TORCH_DISTRIBUTED.search(frame.file) and SEND.search(frame.function) for frame in stack.frames)


def first_collective(stack: WorkerStack) -> str:
    """The function of torch.distributed that a worker is in, as ``waiting_call``; empty if that call makes a group."""
    inside = (frame.function for frame in stack.frames if TORCH_DISTRIBUTED.search(frame.file))
    return "" if any(map(_MAKES_GROUP.search, inside)) else waiting_call(stack)
