"""Exchange data between the nodes of one start in a shared folder: one file per node and subject.

A network file system's client may not notice new files for half a minute; creating a file of its own in the folder
makes it look.
"""

import os
import time
from typing import Any, List

from ..system.bootstrap import Refused, private_folder, read_json, write_json

LOOK, LONGEST_LOOK = 0.01, 0.05  # seconds between checks for the others: at first, and after a second
REFRESH, LONGEST_REFRESH = 0.1, 2.0  # seconds between two files of our own while we wait: at first, and at most
PATIENCE = 600.0  # seconds for all nodes: setup lines, and `import torch` on a cold file system


class SharedExchange:
    """One node's part in the exchange, in this start's folder.

    ``member`` is the node's index in ``names``, the hosts.
    """

    def __init__(self, folder: str, names: List[str], member: int) -> None:
        self.folder, self.names, self.member = private_folder(folder), names, member

    def exchange(self, subject: str, own: Any) -> List[Any]:
        """Publish ``own`` on a subject, and wait for and return every node's data, by index; raises Refused."""
        write_json(self._file(subject, self.member), own)
        answers = [own if member == self.member else None for member in range(len(self.names))]
        deadline, look, pause = time.monotonic() + PATIENCE, LOOK, REFRESH
        refresh = time.monotonic() + pause
        while True:
            for member, known in enumerate(answers):
                answers[member] = read_json(self._file(subject, member)) if known is None else known
                failed = read_json(self._file("failed", member)) if answers[member] is None else None
                if failed:
                    raise Refused(str(failed["message"]))
            missing = [name for name, known in zip(self.names, answers) if known is None]
            if not missing:
                return answers
            if time.monotonic() > deadline:
                raise Refused("%s: no word for %d s after the job's start" % (", ".join(missing), PATIENCE))
            if time.monotonic() > refresh:
                pause = min(LONGEST_REFRESH, pause * 2)
                refresh += pause
                write_json(self._file("here", self.member), time.time(), durable=False)
            time.sleep(look)
            look = min(LONGEST_LOOK, look * 1.05)

    def fail(self, message: str, *, ended: bool) -> None:
        """Report to the others that this node failed; ``ended``: Slurm was ending it, so the cause is elsewhere."""
        write_json(self._file("failed", self.member), {"message": message, "ended": ended})

    def _file(self, subject: str, member: int) -> str:
        return os.path.join(self.folder, "%s.%d.json" % (subject, member))
