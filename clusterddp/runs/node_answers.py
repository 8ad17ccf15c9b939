"""Ask one host for the nodes of runs it knows, and validate the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.errors import HelperError
from clusterddp.hosts.answers import DEFAULT_LIMIT, MAX_MEMORY, Limit
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.verdict.status_reply import (
    MAX_CACHED,
    NO_ANSWERS,
    Answers,
    StatusRequest,
    read_nodes,
    split_damaged,
)
from clusterddp.runs.common_fields import CommonFields, restored
from clusterddp.runs.run_on_hosts import ALL, Wanted

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterddp.hosts.client import Host
    from clusterddp.remote.shared.verdict.node_report import NodeReport


COMMON = CommonFields()  # of all hosts: values are found by their digests alone
# A login host reports all nodes, and each of 1,000 nodes lists all others: a million names of 100 bytes each.
# A host that is not asked for a certain run reports all runs that it keeps: thousands in a month.
_MANY_RUNS_LIMIT, _MAX_NODES_OF_MANY = Limit(memory=4 * MAX_MEMORY), 4 * MAX_CACHED


def query_nodes(
    host: Host, run: str, notify: Callable[[str], None], wanted: Wanted = ALL, *, shared: bool = False
) -> list[NodeReport]:
    """Return the nodes of the runs whose ids start with ``run``; damaged ones are left out, with a line to ``notify``.

    With ``shared``, the host also reports nodes of other hosts whose files it sees; otherwise only its own. Raises
    HelperError if the answer is damaged, or is about another host or run; UnreachableError if the connection broke.
    """
    common = COMMON.snapshot()
    previous: Answers = host.memory.get(("runs", run, wanted), NO_ANSWERS)  # what the host need not send again
    request = StatusRequest(
        hosts=None if shared else (host.name,),
        run=run,
        reference=wanted.reference,
        project=wanted.project,
        brief=wanted.brief,
        known=previous.digests if run else None,  # a list of all runs is requested only once
        common=tuple(common),
    )
    limit, most = (_MANY_RUNS_LIMIT, _MAX_NODES_OF_MANY) if shared or not run else (DEFAULT_LIMIT, MAX_CACHED)
    answer = host.call("runs", to_fields(request), limit=limit)
    try:
        reports, host.memory["runs", run, wanted] = previous.whole(answer, most)
        valid, damaged = split_damaged(restored(reports, common))
        nodes = read_nodes(valid, None if shared else host.name, run)
        COMMON.learn(answer, nodes)
    except ValueError as error:
        raise HelperError(host.name, f"what it tells of runs is damaged: {error}") from error
    for reason in damaged:
        notify(f"{host.name}: {reason}")
    return nodes
