"""The operation ``warm_ahead``: start a warm server before a project's first run (supervisor/preload_client.py)."""

from typing import Any, Dict

from ..helper.request import Request
from ..preload.server_folder import find
from ..shared.schema.fields import DamagedError
from ..shared.schema.record import to_fields
from ..shared.supervisor.start_records import WarmAhead, WarmAheadRequest
from ..spool.layout import Spool
from ..system.bootstrap import Refused
from ..worker.agent_environment import agent_environment
from .preload_client import PreloadedStart, may_preload


def warm_ahead(request: Request) -> Dict[str, Any]:
    """Operation: start a warm server for runs whose node has a plan, in place of any that is there.

    Takes a ``WarmAheadRequest``, returns ``WarmAhead`` (shared/supervisor/start_records.py).
    """
    state = request.state
    try:
        plan = request.read_args(WarmAheadRequest).plan
    except DamagedError as error:
        raise Refused("the node's plan is damaged: %s" % error) from None
    if not may_preload(plan):
        return to_fields(WarmAhead(begun=False))
    spool = Spool.of(state, plan.run, plan.attempt, plan.node)  # only its path is used; it is never made
    PreloadedStart(state, spool, plan, agent_environment(plan, spool)).start_for_next_run(0, replace=True)
    return to_fields(WarmAhead(begun=find(state) is not None))
