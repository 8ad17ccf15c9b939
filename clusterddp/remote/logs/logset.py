"""The log files of one spool that a reader wants, found as they appear; and whose each one is.

Not here: reading them (logs/files.py), in which order (logs/tail.py).
"""

import os
import re
from typing import Any, Dict, List

from ..spool.events import read_events
from ..spool.layout import AGENT_LOG, Spool
from .files import LogFile

_LOG = re.compile(r"\d+\.\d+\.(?:out|err)$|agent\.out$")


class LogSet:
    """The files by name, opened once and kept: a reader may come back to any of them."""

    def __init__(self, spool: Spool, args: Dict[str, Any], *, timed: bool) -> None:
        self.folder = spool.path("logs")
        self.files: Dict[str, LogFile] = {}
        self._events = spool.path("events.jsonl")
        self._args = args
        self._from: Dict[str, int] = args.get("from") or {}
        self._timed = timed

    def wanted(self) -> List[LogFile]:
        """The files that hold something and that the filters let through."""
        self._discover()
        unknown = [file for file in self.files.values() if file.local_rank is not None and not file.identified]
        unknown = [file for file in unknown if file.size]
        if unknown:
            self._identify(unknown)
        return [file for file in self.files.values() if self._wants(file)]

    def offsets(self) -> Dict[str, int]:
        """How far each file was read."""
        return {name: file.pos for name, file in self.files.items()}

    def begun(self, file: LogFile) -> bool:
        """Whether the reader goes on in this file."""
        return file.name in self._from

    def _discover(self) -> None:
        try:
            names = sorted(os.listdir(self.folder))
        except FileNotFoundError:  # a start has just made the spool
            return
        for name in [name for name in names if name not in self.files and _LOG.match(name)]:
            file = self.files[name] = LogFile(self.folder, name)
            file.timed = self._timed
            file.pos = int(self._from.get(name, 0))

    def _identify(self, files: List[LogFile]) -> None:
        """A worker's start is on record before its first byte is written, so one look is enough."""
        ranks = {}
        for event in read_events(self._events):
            if event["event"] == "worker_started":
                ranks[(event["start"], event["local_rank"])] = event["rank"]
        for file in files:
            file.rank = ranks.get((file.start, file.local_rank))
            file.identified = True

    def _wants(self, file: LogFile) -> bool:
        args = self._args
        if file.name == AGENT_LOG:
            return bool(args.get("agent"))
        if not file.identified or args.get("stream", "both") not in ("both", file.stream):
            return False
        local_ranks, ranks = args.get("local_ranks"), args.get("ranks")
        return (local_ranks is None or file.local_rank in local_ranks) and (ranks is None or file.rank in ranks)
