"""One line on stderr's terminal that says what is being done now; nothing elsewhere."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import TYPE_CHECKING

from clusterddp.cli.output import STANDING
from clusterddp.errors import ClusterddpError
from clusterddp.remote.shared.run.run_state import RunState
from clusterddp.remote.shared.text.counted import counted

if TYPE_CHECKING:
    from clusterddp.api.cluster import Run

LOOK = 0.5  # seconds between looks at the rendezvous


class Progress:
    """The line; when the context ends, nothing is shown any more."""

    def __init__(self) -> None:
        # Not among the lines of -v, which say more; nor where a line cannot be wiped.
        verbose = logging.getLogger("clusterddp").isEnabledFor(logging.DEBUG)
        self._terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not verbose
        self._over = threading.Event()

    def __enter__(self) -> Progress:  # noqa: PYI034 - typing.Self is Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def show(self, text: str) -> None:
        """Replace the line."""
        with STANDING.lock:
            if self._terminal and not self._over.is_set():
                STANDING.show(text)

    def end(self) -> None:
        """Wipe the line; nothing is shown any more. Again it does nothing: what is held of the output stays held."""
        with STANDING.lock:
            if not self._over.is_set():
                self._over.set()
                STANDING.wipe()

    def watch(self, run: Run) -> None:
        """Until the first worker's start, say how many nodes have come to the rendezvous; beside other work."""
        if self._terminal:
            threading.Thread(target=self._watch, args=(run,), name="rendezvous", daemon=True).start()

    def _watch(self, run: Run) -> None:
        while not self._over.wait(LOOK):
            try:
                view = run.view(brief=True)
            except ClusterddpError:  # whoever follows the logs hears of it, and says it
                return
            if view.state() != RunState.STARTING:
                self.show(f"{counted(len(view.nodes), 'node is starting its', 'nodes are starting their')} workers")
                return
            joined = next((node.joined for node in view.nodes if node.joined is not None), 0)
            self.show(f"rendezvous {min(joined, len(view.nodes))}/{counted(len(view.nodes), 'node')}")
