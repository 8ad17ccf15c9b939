"""The display state of one file of one host: its label, and its unfinished line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.logs.lines import LineSplitter
from clusterddp.remote.shared.run.plan import AGENT_LOG

if TYPE_CHECKING:
    from clusterddp.remote.shared.wire.frames import Header


def label_of(host: str, header: Header) -> str:
    """Return ``[RANK HOST:LOCAL_RANK]``, ``[agent HOST]``, or ``[HOST]`` for output that belongs to no run."""
    if header["local_rank"] is None:
        return f"[agent {host}]" if header["file"] == AGENT_LOG else f"[{host}]"
    rank = "?" if header["rank"] is None else header["rank"]
    return f"[{rank} {host}:{header['local_rank']}]"


class FileView:
    """The display state of one file of one host."""

    def __init__(self, host: str, header: Header) -> None:
        self.host = host
        self.header = header  # the latest frame's header
        self.label = label_of(host, header).encode() + b" "
        self.splitter = LineSplitter()
