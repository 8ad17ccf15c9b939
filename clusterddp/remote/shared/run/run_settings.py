"""The part of a run's options that its hosts need: it travels whole, inside the plan of each node. Pure."""

from typing import Any, Mapping, NamedTuple, Optional

from ..schema.fields import Fields
from ..schema.record import by_key, field, record

MIN_STALL = 10.0  # seconds that a stall has to last at least
GRACE = 30.0  # seconds between SIGTERM and SIGKILL when a run is stopped, by default


@record
class RunSettings(NamedTuple):
    """The settings that all nodes of a run share."""

    # Options of a run.
    env: Mapping[str, str] = field(by_key(Fields.text), default={})  # the user's, for all hosts
    debug_comm: bool = field(Fields.flag, default=False)
    no_comm_trace: bool = field(Fields.flag, default=False)
    pdb: bool = field(Fields.flag, default=False)  # an uncaught exception stops as breakpoint() does
    # seconds that a stop waits for an operator; None: as the process groups' timeouts allow
    breakpoint_timeout: Optional[float] = field(Fields.maybe_real, default=None)
    # seconds between SIGTERM and SIGKILL when torchrun ends its workers
    grace: float = field(Fields.real, default=GRACE)
    time_limit: Optional[float] = field(Fields.maybe_real, default=None)
    # seconds for which a run hangs until its hosts do what ``on_stall`` says; None: they do not look
    stall: Optional[float] = field(Fields.maybe_real, default=None)
    on_stall: str = field(Fields.text, default="report")
    log_limit: Optional[int] = field(Fields.maybe_number, default=None)  # bytes
    relaunch: int = field(Fields.number, default=0)  # attempts that may follow the first
    rdzv_backend: str = field(Fields.text, default="c10d")  # the chosen one
    # What follows from others.
    elastic: bool = field(Fields.flag, default=False)
    min_nodes: int = field(Fields.number, default=1)
    max_nodes: int = field(Fields.number, default=1)
    # seconds without an operator after which the run ends; None: it outlives him
    lease: Optional[float] = field(Fields.maybe_real, default=None)
    program: str = field(Fields.text, default="")  # one of remote/builtin in place of a script
    # the hosts' clocks agree so well that a shorter heartbeat timeout is safe
    tight: bool = field(Fields.flag, default=False)
    more: Mapping[str, Any] = {}
