"""Whom an attempt's agents need not wait for, by run control: lost hosts, and those whose agent has failed.

The supervisor of this node keeps it in ``peers.json`` of its spool, as the run's lead tells it
(control/membership.py). Where that cannot be read, what was read last stands, and beats tell the rest.

Not here: how a lead comes to know it (control/), what the agents do then (rendezvous/rounds.py).
"""

import json
import os
from typing import Sequence, Set, Tuple


class Gone:
    """Called, it gives the numbers of the nodes that are gone.

    Args:
        path: Of ``peers.json``.
        names: The hosts of the attempt's plan, by number. A host that joined later is judged by its beats alone.
    """

    def __init__(self, path: str, names: Sequence[str]) -> None:
        self.path, self.numbers = path, {name: number for number, name in enumerate(names)}
        self.nodes: Set[int] = set()
        self._seen: Tuple[int, int] = (0, 0)

    def __call__(self) -> Set[int]:
        """The nodes that are gone, as of now."""
        try:
            info = os.stat(self.path)
            if self._seen != (info.st_ino, info.st_mtime_ns):
                with open(self.path, encoding="utf-8") as stream:
                    names = json.load(stream)["gone"]
                self.nodes = {self.numbers[name] for name in names if name in self.numbers}
                self._seen = (info.st_ino, info.st_mtime_ns)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass  # not there yet, or damaged
        return self.nodes
