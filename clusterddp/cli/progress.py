"""Show the current step as a status line on a terminal's stderr; nothing elsewhere."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import TYPE_CHECKING

from clusterddp.cli.output import STATUS_LINE
from clusterddp.errors import ClusterddpError
from clusterddp.remote.shared.run.run_state import RunState
from clusterddp.remote.shared.text.counted import counted

if TYPE_CHECKING:
    from typing_extensions import Self

    from clusterddp.runs.run import Run

WATCH_INTERVAL = 0.5  # seconds between two queries of the rendezvous' state


class Progress:
    """The status line of one command, shown inside a ``with`` block; nothing is shown after it ends."""

    def __init__(self) -> None:
        # Not with -v, whose lines say more; nor where a line cannot be erased.
        verbose = logging.getLogger("clusterddp").isEnabledFor(logging.DEBUG)
        self._terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not verbose
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def show(self, text: str) -> None:
        """Replace the line."""
        with STATUS_LINE.lock:
            if self._terminal and not self._ended.is_set():
                STATUS_LINE.show(text)

    def end(self) -> None:
        """Erase the line and show no other. A second call does nothing: it would clear a partial line of output."""
        with STATUS_LINE.lock:
            if not self._ended.is_set():
                self._ended.set()
                STATUS_LINE.erase()

    def watch(self, run: Run) -> None:
        """In a thread, show how many nodes have joined the rendezvous, until the first worker starts."""
        if self._terminal:
            threading.Thread(target=self._watch, args=(run,), name="rendezvous", daemon=True).start()

    def _watch(self, run: Run) -> None:
        while not self._ended.wait(WATCH_INTERVAL):
            try:
                view = run.view(brief=True)
            except ClusterddpError:  # whoever follows the logs reports it
                return
            if view.state() != RunState.STARTING:
                self.show(f"{counted(len(view.nodes), 'node is starting its', 'nodes are starting their')} workers")
                return
            joined = next((node.joined for node in view.nodes if node.joined is not None), 0)
            self.show(f"rendezvous {min(joined, len(view.nodes))}/{counted(len(view.nodes), 'node')}")
