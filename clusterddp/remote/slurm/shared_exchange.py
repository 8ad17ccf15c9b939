"""Exchange data between the nodes of one start in a shared folder: one file per node and subject.

A network file system's client may not notice new files for half a minute; creating a file of its own in the folder
makes it look.
"""

import os
import time
from typing import List, NamedTuple, Optional, Type, TypeVar

from ..shared.schema.fields import Fields
from ..shared.schema.json_text import read_json
from ..shared.schema.record import field, read_record, record, to_fields
from ..system.bootstrap import Refused, private_folder, write_json

T = TypeVar("T")
U = TypeVar("U")

CHECK_INTERVAL, MAX_CHECK_INTERVAL = 0.01, 0.05  # seconds between checks for the others: at first, and after a second
REFRESH_INTERVAL, MAX_REFRESH_INTERVAL = (
    0.1,
    2.0,
)  # seconds between two files of our own while we wait: at first, and at most
EXCHANGE_TIMEOUT = 600.0  # seconds for all nodes: setup lines, and `import torch` on a cold file system


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

    def exchange(self, subject: str, record: T) -> List[T]:
        """Publish a record on a subject, and wait for and return every node's, by index.

        Raises Refused if a node failed or does not answer, DamagedError if one has published something else.
        """
        write_json(self._file(subject, self.member), to_fields(record))
        answers: List[Optional[T]] = [record if member == self.member else None for member in range(len(self.names))]
        deadline, check_interval, refresh_interval = (
            time.monotonic() + EXCHANGE_TIMEOUT,
            CHECK_INTERVAL,
            REFRESH_INTERVAL,
        )
        next_refresh = time.monotonic() + refresh_interval
        while True:
            for member, answer in enumerate(answers):
                answers[member] = self._read(type(record), subject, member) if answer is None else answer
                failed = self._read(NodeFailure, "failed", member) if answers[member] is None else None
                if failed:
                    raise Refused(failed.message)
            missing = [name for name, answer in zip(self.names, answers) if answer is None]
            if not missing:
                return [answer for answer in answers if answer is not None]
            if time.monotonic() > deadline:
                raise Refused("%s: no word for %d s after the job's start" % (", ".join(missing), EXCHANGE_TIMEOUT))
            if time.monotonic() > next_refresh:
                refresh_interval = min(MAX_REFRESH_INTERVAL, refresh_interval * 2)
                next_refresh += refresh_interval
                write_json(self._file("here", self.member), time.time(), durable=False)
            time.sleep(check_interval)
            check_interval = min(MAX_CHECK_INTERVAL, check_interval * 1.05)

    def fail(self, failure: NodeFailure) -> None:
        """Report to the others that this node failed."""
        write_json(self._file("failed", self.member), to_fields(failure))

    def _read(self, kind: Type[U], subject: str, member: int) -> Optional[U]:
        found = read_json(self._file(subject, member))
        return None if found is None else read_record(kind, found, subject)

    def _file(self, subject: str, member: int) -> str:
        return os.path.join(self.folder, "%s.%d.json" % (subject, member))
