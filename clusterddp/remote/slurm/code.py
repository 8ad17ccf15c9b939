"""The project's code where a job's nodes share no folder: it came with the job's script, and each node places it.

Not here: what is in the stream and how it is placed (sync/apply.py), how it came here (the script).
"""

from typing import Any, BinaryIO, Dict

from ..helper.request import Request
from ..shared.records import written
from ..shared.slurm_job import SentCode, SlurmJob
from ..sync.apply import sync_apply, workdir_state
from ..system.bootstrap import Refused

_PIECE = 1 << 20
_NO_OPERATION = -1


class _FromFile(Request):
    """A request whose data is a file's."""

    def __init__(self, args: Dict[str, Any], stream: BinaryIO) -> None:
        super().__init__(0, args, _NO_OPERATION, _NO_OPERATION)
        self._stream = stream

    def read(self) -> bytes:
        """The next piece; empty at the end."""
        return self._stream.read(_PIECE)


def place_code(job: SlurmJob, sent: SentCode, path: str) -> str:
    """The folder on this node that holds the code of a job whose nodes share none.

    Args:
        job: The job.
        sent: What is known of the code.
        path: Of the stream.

    Raises:
        Refused: it cannot be placed, or none has come.
    """
    args = dict(written(sent), state=job.state, home=True)
    if not sent.digest:
        return str(workdir_state(Request(0, args, _NO_OPERATION, _NO_OPERATION))["workdir"])
    try:
        with open(path, "rb") as stream:
            answer = sync_apply(_FromFile(args, stream))
    except FileNotFoundError:
        raise Refused("the code that the job's script brings is not there", "submit it again") from None
    if "missing" in answer:
        raise Refused("%s changed while the code was placed" % sent.workdir, "start the run again")
    return str(answer["workdir"])
