"""The rendezvous plugin, by which torchrun's agents agree on the nodes of a round, in inventory order.

torchrun (torch 2.6 and newer) finds it as the entry point ``clusterddp`` of the group ``torchrun.handlers``, in the
zipapp on the agent's PYTHONPATH, which workers do not get. With older torch, torchrun's own c10d is used instead.
"""

from typing import Any, Callable


def creator() -> Callable[[Any], Any]:
    """Return the function that torch registers; runs while torch is being imported, so it must not import torch."""

    def create(params: Any) -> Any:
        from .handler import create_handler

        return create_handler(params)

    return create
