"""Exchange data between the nodes of one start in a shared folder: one file per node and subject.

A network file system's client may not notice new files for half a minute; creating a file of its own in the folder
makes it look.
"""

import os
import time
from typing import List, NamedTuple, Optional, Type, TypeVar

from ..shared.schema.fields import Fields
from ..shared.schema.record import field, read_record, record, written
from ..system.bootstrap import Refused, private_folder, read_json, write_json

T = TypeVar("T")
U = TypeVar("U")

LOOK, LONGEST_LOOK = 0.01, 0.05  # seconds between checks for the others: at first, and after a second
REFRESH, LONGEST_REFRESH = 0.1, 2.0  # seconds between two files of our own while we wait: at first, and at most
PATIENCE = 600.0  # seconds for all nodes: setup lines, and `import torch` on a cold file system


@record
class NodeFailure(NamedTuple):
    """Why a node could not begin, for the others."""

    message: str = field(Fields.text)
    ended: bool = field(Fields.flag, default=False)  # Slurm was ending it, so the cause is elsewhere


class SharedExchange:
    """One node's part in the exchange, in this start's folder.

    ``member`` is the node's index in ``names``, the hosts.
    """

    def __init__(self, folder: str, names: List[str], member: int) -> None:
        self.folder, self.names, self.member = private_folder(folder), names, member

    def exchange(self, subject: str, own: T) -> List[T]:
        """Publish a record on a subject, and wait for and return every node's, by index.

        Raises Refused if a node failed or does not answer, DamagedError if one has published something else.
        """
        write_json(self._file(subject, self.member), written(own))
        answers: List[Optional[T]] = [own if member == self.member else None for member in range(len(self.names))]
        deadline, look, pause = time.monotonic() + PATIENCE, LOOK, REFRESH
        refresh = time.monotonic() + pause
        while True:
            for member, known in enumerate(answers):
                answers[member] = self._read(type(own), subject, member) if known is None else known
                failed = self._read(NodeFailure, "failed", member) if answers[member] is None else None
                if failed:
                    raise Refused(failed.message)
            missing = [name for name, known in zip(self.names, answers) if known is None]
            if not missing:
                return [known for known in answers if known is not None]
            if time.monotonic() > deadline:
                raise Refused("%s: no word for %d s after the job's start" % (", ".join(missing), PATIENCE))
            if time.monotonic() > refresh:
                pause = min(LONGEST_REFRESH, pause * 2)
                refresh += pause
                write_json(self._file("here", self.member), time.time(), durable=False)
            time.sleep(look)
            look = min(LONGEST_LOOK, look * 1.05)

    def fail(self, failure: NodeFailure) -> None:
        """Report to the others that this node failed."""
        write_json(self._file("failed", self.member), written(failure))

    def _read(self, kind: Type[U], subject: str, member: int) -> Optional[U]:
        found = read_json(self._file(subject, member))
        return None if found is None else read_record(kind, found, subject)

    def _file(self, subject: str, member: int) -> str:
        return os.path.join(self.folder, "%s.%d.json" % (subject, member))
