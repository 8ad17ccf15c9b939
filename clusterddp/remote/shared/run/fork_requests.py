"""The messages to a fork server and to the processes that it forks, as JSON objects with these fields."""

from typing import Dict, List, NamedTuple, Optional, Tuple


class WorkerRequest(NamedTuple):
    """A shim's request for a worker."""

    spool: str
    key: str  # ``<start>.<local_rank>``
    argv: List[str]  # the command line of a plain start
    env: List[Tuple[str, str]]  # the environment that the script is to see, in its order


class AgentRequest(NamedTuple):
    """The supervisor's request for an agent or a store."""

    role: str  # ``agent`` or ``store``
    spool: str


class BeginOrder(NamedTuple):
    """The supervisor's order to an agent or a store to begin."""

    argv: List[str]  # its command line, from the interpreter on
    env: Dict[str, str]
    log: str  # the path of the file for both its output streams
    until: Optional[float]  # the boot clock time from which it is too late; None: never
