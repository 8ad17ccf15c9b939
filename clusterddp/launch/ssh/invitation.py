"""What a joining host needs to know of a run, as a host of the run reports it, validated on receipt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterddp.hosts.fanout import reading_answer
from clusterddp.remote.shared.run.plan import NodePlan, read_plan
from clusterddp.remote.shared.run.spool_records import Ready, read_ready
from clusterddp.remote.shared.schema.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterddp.hosts.client import Host

_MOST_SECRETS = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Invitation:
    """A run as one of its hosts describes it to hosts that join."""

    plan: NodePlan  # the plan of the host that answers
    ready: Ready  # the store's port, and each node's run control address
    key: str  # the key of run control
    secrets: Mapping[str, str]  # values by name


def invitation(guide: Host, spool: str) -> Invitation:
    """Ask a host of the run, whose ``spool`` is there, for what a joining host needs."""
    answer = guide.call("invite", {"spool": spool})
    with reading_answer(guide.name):
        return read_invitation(answer)


def read_invitation(answer: Any) -> Invitation:
    """Decode an invitation; ``ValueError`` if it is damaged."""
    fields = Fields(answer, most=_MOST_SECRETS)
    return Invitation(
        plan=read_plan(fields.raw("plan")),
        ready=read_ready(fields.raw("ready")),
        key=fields.text("key"),
        secrets=fields.mapping("secrets", lambda inner, name: inner.text(name)),
    )
