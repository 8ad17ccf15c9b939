"""What one host tells of the nodes it has of runs: asked, and checked where it enters."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from clusterddp.errors import HelperError
from clusterddp.hosts.answers import MEMORY, ORDINARY, Limit
from clusterddp.remote.shared.verdict.status_reply import MOST_KEPT, NONE, Answers, read_nodes, split_damaged

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterddp.hosts.client import Host


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Which runs hosts tell of, and how much.

    Attributes:
        reference: Those whose ids begin so, or that have this name.
        project: Those of this project.
        brief: What a list and a verdict need: no processes, no events but of lost output, no words of failed workers.
    """

    reference: str | None = None
    project: str | None = None
    brief: bool = False


ALL, BRIEF = Wanted(), Wanted(brief=True)
# A login host tells of all nodes, and each of 1,000 nodes has the names of all others: a million names, 100 bytes each.
# A host that is asked for no run by its id tells of all those that it keeps: thousands in a month.
_OF_MANY, _MOST_OF_MANY = Limit(memory=4 * MEMORY), 4 * MOST_KEPT


def nodes_of(
    host: Host, run: str, notify: Callable[[str], None], wanted: Wanted = ALL, *, shared: bool = False
) -> list[dict[str, Any]]:
    """The nodes of the runs whose ids begin so. Damaged ones are left out, and said.

    Args:
        host: Who is asked.
        run: What the ids begin with.
        notify: Takes what is left out, a line each.
        wanted: Which, and how much of them.
        shared: Nodes of other hosts too, whose files it sees; else it speaks of nobody but itself.

    Raises:
        HelperError: the answer is damaged, or speaks of another host or run.
        UnreachableError: the connection broke.
    """
    before: Answers = host.memory.get(("runs", run, wanted), NONE)
    known = {"known": before.digests} if run else {}  # a list of all runs is asked for once
    args = {**asdict(wanted), **known, "run": run, "hosts": None if shared else [host.name]}
    limit, most = (_OF_MANY, _MOST_OF_MANY) if shared or not run else (ORDINARY, MOST_KEPT)
    answer = host.call("runs", args, limit=limit)
    try:
        filled, host.memory["runs", run, wanted] = before.whole(answer, most)
        whole, damaged = split_damaged(filled)
        nodes = read_nodes(whole, None if shared else host.name, run)
    except ValueError as error:
        raise HelperError(host.name, f"what it tells of runs is damaged: {error}") from error
    for why in damaged:
        notify(f"{host.name}: {why}")
    return nodes
