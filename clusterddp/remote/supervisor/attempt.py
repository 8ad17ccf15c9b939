"""All that one attempt has on a node: its spool, its plan, its processes, what is kept of its output.

Made by the file thread, for it reads and opens files; then the loop's.
"""

from typing import Any, Dict, NamedTuple, Optional, Tuple

from ..logs.limit import LogLimit
from ..logs.time_index import IndexWriter
from ..shared.run.spool_records import Ready
from ..spool.layout import Spool
from .children import Children
from .file_work import FileWork
from .inbox import Inbox


class Making(NamedTuple):
    """What attempts are made of.

    Attributes:
        umask: The user's, for what is started.
        files: How many files the user's processes may have open (soft, hard).
        work: What has file work done.
    """

    umask: int
    files: Tuple[int, int]
    work: FileWork


class Attempt:
    """One node's part.

    Args:
        spool: The node's.
        environment: The agent's.
        store: The store's listening socket, on the rendezvous host.
        making: What all attempts have.
        ready: What every node knows, where an earlier attempt has shown it.
    """

    def __init__(
        self,
        spool: Spool,
        environment: Dict[str, str],
        store: Optional[int],
        making: Making,
        ready: Optional[Ready] = None,
    ) -> None:
        self.spool = spool
        self.plan = spool.plan()

        def event(name: str, **fields: Any) -> None:
            making.work.event(spool, name, **fields)

        self.children = Children(
            spool, self.plan, environment, store, making.umask, making.files, event, making.work.do
        )
        self.inbox = Inbox(spool, leased=bool(self.plan.settings.lease), ready=ready)
        self.index = IndexWriter(spool.logs)
        self.limits = LogLimit(spool)
