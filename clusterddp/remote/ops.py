"""The operations a helper offers: name → where the function is. Each runs in a child process of its own."""

import importlib
from typing import Any, Callable

TABLE = {
    "facts": "probe:facts",
    "clock": "probe:clock",
    "health": "health:health",
    "gpu_health": "gpuhealth:gpu_health",
    "mark": "marks:mark",
    "marked": "marks:marked",
    "unmark": "marks:unmark",
    "listen": "netcheck:listen",
    "dial": "netcheck:dial",
    "election": "election:election",
    "drain": "bandwidth:drain",
    "pour": "bandwidth:pour",
    "workdir_state": "workdir:workdir_state",
    "sync_apply": "workdir:sync_apply",
    "start": "launch:start",
    "commit": "launch:commit",
    "renew": "launch:renew",
    "invite": "launch:invite",
    "stop": "stop:stop",
    "runs": "status:runs",
    "stacks": "stacks:stacks",
    "clean": "clean:clean",
    "forget": "clean:forget",
    "orphans": "orphans:orphans",
    "tail": "tail:tail",
}


def find(name: str) -> Callable[[Any], Any]:
    """The function of an operation.

    Raises:
        KeyError: no such operation.
    """
    module, _, function = TABLE[name].partition(":")
    operation: Callable[[Any], Any] = getattr(importlib.import_module("." + module, __package__), function)
    return operation
