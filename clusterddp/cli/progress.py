"""Show the current step as a status line on a terminal's stderr; nothing elsewhere."""

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
    from typing_extensions import Self

    from clusterddp.api.cluster import Run

LOOK = 0.5  # seconds between looks at the rendezvous


class Progress:
    """The status line, as a context; nothing is shown after it ends."""

    def __init__(self) -> None:
        # Not among the lines of -v, which say more; nor where a line cannot be wiped.
        verbose = logging.getLogger("clusterddp").isEnabledFor(logging.DEBUG)
        self._terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not verbose
        self._over = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def show(self, text: str) -> None:
        """Replace the line."""
        with STANDING.lock:
            if self._terminal and not self._over.is_set():
                STANDING.show(text)

    def end(self) -> None:
        """Erase the line and show no other. A second call does nothing: output that is held back stays so."""
        with STANDING.lock:
            if not self._over.is_set():
                self._over.set()
                STANDING.wipe()

    def watch(self, run: Run) -> None:
        """In a thread, show how many nodes have joined the rendezvous, until the first worker starts."""
        if self._terminal:
            threading.Thread(target=self._watch, args=(run,), name="rendezvous", daemon=True).start()

    def _watch(self, run: Run) -> None:
        while not self._over.wait(LOOK):
            try:
                view = run.view(brief=True)
            except ClusterddpError:  # whoever follows the logs reports it
                return
            if view.state() != RunState.STARTING:
                self.show(f"{counted(len(view.nodes), 'node is starting its', 'nodes are starting their')} workers")
                return
            joined = next((node.joined for node in view.nodes if node.joined is not None), 0)
            self.show(f"rendezvous {min(joined, len(view.nodes))}/{counted(len(view.nodes), 'node')}")
