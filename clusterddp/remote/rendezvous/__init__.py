"""The rendezvous plugin: torchrun's agents agree by it on who takes part in a round, in inventory order.

torchrun (torch 2.6 and newer) finds it as the entry point ``clusterddp`` of the group ``torchrun.handlers``, in the
zipapp that the agent has on its PYTHONPATH; workers never do. Older torch: torchrun's own c10d.
"""

from typing import Any, Callable


def creator() -> Callable[[Any], Any]:
    """What torch registers: called while torch is still being imported, so it imports nothing of torch's yet."""

    def create(params: Any) -> Any:
        from .handler import create_handler

        return create_handler(params)

    return create
