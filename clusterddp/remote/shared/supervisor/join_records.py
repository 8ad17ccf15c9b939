"""The records of the operations by which a host joins a run: ``invite`` and ``claim``."""

from typing import Mapping, NamedTuple

from ..run.plan import NodePlan
from ..run.spool_records import Ready
from ..schema.fields import Fields
from ..schema.record import by_key, field, record
from .start_records import plan_in, ready_in


@record
class InviteRequest(NamedTuple):
    """The run that a host is to join, by its spool on the host that is asked."""

    spool: str = field(Fields.text)


@record
class Invitation(NamedTuple):
    """A run as one of its hosts describes it to hosts that join."""

    plan: NodePlan = field(plan_in)  # the plan of the host that answers
    ready: Ready = field(ready_in)  # the store's port, and each node's run control address
    key: str = field(Fields.text)  # the key of run control
    secrets: Mapping[str, str] = field(by_key(Fields.text))  # values by name


@record
class ClaimRequest(NamedTuple):
    """The member index that a host about to join wants to have reserved."""

    spool: str = field(Fields.text)
    member: int = field(Fields.number)


@record
class Claimed(NamedTuple):
    """Whether the member index is reserved."""

    claimed: bool = field(Fields.flag)
