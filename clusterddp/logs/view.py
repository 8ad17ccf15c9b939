"""The display state of one file of one host: its label, and its unfinished line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.logs.lines import LineSplitter
from clusterddp.remote.shared.run.plan import AGENT_LOG

if TYPE_CHECKING:
    from clusterddp.logs.checked_frames import FilePart


def label_of(host: str, part: FilePart) -> str:
    """Return ``[RANK HOST:LOCAL_RANK]``, ``[agent HOST]``, or ``[HOST]`` for output that belongs to no run."""
    if part.local_rank is None:
        return f"[agent {host}]" if part.file == AGENT_LOG else f"[{host}]"
    rank = "?" if part.rank is None else part.rank
    return f"[{rank} {host}:{part.local_rank}]"


class FileView:
    """The display state of one file of one host."""

    def __init__(self, host: str, part: FilePart) -> None:
        self.host = host
        self.part = part  # the latest that arrived
        self.label = label_of(host, part).encode() + b" "
        self.splitter = LineSplitter()
