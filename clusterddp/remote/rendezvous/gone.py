"""Whom an attempt's agents need not wait for, by run control: lost hosts, and those whose agent has failed.

The supervisor of this node keeps it in ``peers.json`` of its spool, as the run's lead tells it
(control/membership.py). Where that cannot be read, what was read last stands, and beats tell the rest.

Not here: how a lead comes to know it (control/), what the agents do then (rendezvous/rounds.py).
"""

import json
import os
from typing import FrozenSet, Optional, Sequence, Set, Tuple


def gone_hosts(path: str) -> Optional[FrozenSet[str]]:
    """The names in the ``peers.json`` at ``path``; None where it is not there, or damaged."""
    try:
        with open(path, encoding="utf-8") as stream:
            return frozenset(json.load(stream)["gone"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


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
        except OSError:  # not there yet
            return self.nodes
        if self._seen != (info.st_ino, info.st_mtime_ns):
            names = gone_hosts(self.path)
            if names is not None:
                self.nodes = {number for name, number in self.numbers.items() if name in names}
                self._seen = (info.st_ino, info.st_mtime_ns)
        return self.nodes
