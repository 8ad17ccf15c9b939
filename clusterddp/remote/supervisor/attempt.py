"""Everything that one attempt has on a node: its spool, its plan, its processes, the limits of its output."""

from typing import Any, Dict, NamedTuple, Optional, Tuple

from ..logs.limit import LogLimit
from ..logs.time_index import IndexWriter
from ..shared.run.spool_records import Ready
from ..spool.layout import Spool
from .children import Children
from .file_work import FileWork
from .inbox import Inbox


class AttemptContext(NamedTuple):
    """What all attempts of a supervisor have in common."""

    umask: int  # the user's, for the processes that are started
    file_limits: Tuple[int, int]  # of open files, for the user's processes (soft, hard)
    work: FileWork


class Attempt:
    """One node's part in an attempt.

    ``environment`` is the agent's. ``store`` is the store's listening socket, on the rendezvous host. ``ready`` is the
    commit record (all nodes are ready) where an earlier attempt has it; else the inbox waits for it.
    """

    def __init__(
        self,
        spool: Spool,
        environment: Dict[str, str],
        store: Optional[int],
        context: AttemptContext,
        ready: Optional[Ready] = None,
    ) -> None:
        self.spool = spool
        self.plan = spool.plan()

        def event(name: str, **fields: Any) -> None:
            context.work.event(spool, name, **fields)

        self.children = Children(
            spool, self.plan, environment, store, context.umask, context.file_limits, event, context.work.do
        )
        self.inbox = Inbox(spool, leased=bool(self.plan.settings.lease), ready=ready)
        self.index = IndexWriter(spool.logs)
        self.limits = LogLimit(spool)
