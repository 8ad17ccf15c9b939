"""The records of the operations by which a node starts or joins a run.

``start``, ``commit``, ``renew`` and ``warm_ahead``; to join, ``invite`` and ``claim``.
"""

from typing import Mapping, NamedTuple, Optional, Tuple

from ..run.plan import NodePlan, read_plan
from ..run.spool_records import ExitRecord, Ready, read_ready
from ..schema.fields import Fields
from ..schema.record import by_key, field, maybe, nested, record

# Seconds for one node's start; a setup line on a cold file system may take most of it.
START_TIMEOUT = 180.0
# Seconds within which the operator must say that all nodes are ready, which a node counts from its own start: more than
# the slowest may take. A supervisor that waits in vain for a lost operator has no agent: it takes no GPU.
COMMIT_TIMEOUT = START_TIMEOUT + 30.0


def plan_in(fields: Fields, name: str) -> NodePlan:
    """The reader of a field that holds a node's plan."""
    return read_plan(fields.raw(name))


def ready_in(fields: Fields, name: str) -> Ready:
    """The reader of a field that holds what is known once every node is ready."""
    return read_ready(fields.raw(name))


@record
class WebhookOrder(NamedTuple):
    """The URL that the hosts notify of the run."""

    url: str = field(Fields.text)
    silence: float = field(Fields.real)  # seconds without output after which that is reported; 0: never


@record
class StartRequest(NamedTuple):
    """What comes before a ``StartOrder`` in the operator's data."""

    # bytes of compressed JSON: what the plans of all nodes have in common, which the order's plan leaves out
    shared: int = field(Fields.number, default=0)


@record
class StartOrder(NamedTuple):
    """What a node is started with; it is sent as data, since it may be large and holds secrets."""

    plan: NodePlan = field(plan_in)
    secrets: Mapping[str, str] = field(by_key(Fields.text))
    key: str = field(Fields.text)  # of run control
    webhook: Optional[WebhookOrder] = field(maybe(nested(WebhookOrder)), default=None)


@record
class StartedNode(NamedTuple):
    """A node whose supervisor is up; its agent starts only when all nodes are ready."""

    started: bool = field(Fields.flag)  # by this order; else an earlier one had done so
    spool: str = field(Fields.text)
    store: int = field(Fields.number)  # the port that was bound for the rendezvous store; 0: none
    control: int = field(Fields.number)  # the same for run control
    unreachable: str = field(Fields.text, default="")  # why the webhook cannot be reached from here; else empty
    not_warm: str = field(Fields.text, default="")  # why the host's warm server did not start it; else empty


@record
class CommitRequest(NamedTuple):
    """The message to a node's supervisor that every node is ready."""

    spool: str = field(Fields.text)
    ready: Ready = field(ready_in, default=Ready())


@record
class CommittedNode(NamedTuple):
    """Whether the supervisor lives, and how its node ended where it does not."""

    alive: bool = field(Fields.flag)
    exit: Optional[ExitRecord] = field(maybe(nested(ExitRecord)))


@record
class RenewRequest(NamedTuple):
    """The message to a host of a run that the attached operator is there."""

    run: str = field(Fields.text)
    host: str = field(Fields.text)


@record
class Renewed(NamedTuple):
    """The host's answer to a ``RenewRequest``: whether the run has a live supervisor there."""

    renewed: bool = field(Fields.flag)


@record
class WarmAheadRequest(NamedTuple):
    """The plan of the node for which a warm server is started."""

    plan: NodePlan = field(plan_in)


@record
class WarmAhead(NamedTuple):
    """Whether there is a warm server now."""

    begun: bool = field(Fields.flag)


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
    lost: Tuple[str, ...] = field(Fields.texts, default=())  # hosts of the run that take no part any more
    leader: Optional[str] = field(Fields.maybe_text, default=None)  # the host that leads the run; None: none does


@record
class ClaimRequest(NamedTuple):
    """The member index that a host about to join wants to have reserved, for ``COMMIT_TIMEOUT`` seconds."""

    spool: str = field(Fields.text)
    member: int = field(Fields.number)
    release: bool = field(Fields.flag, default=False)  # it was reserved for a host that could not start


@record
class Claimed(NamedTuple):
    """Whether the member index is reserved."""

    claimed: bool = field(Fields.flag)
