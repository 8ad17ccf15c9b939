"""What all nodes of a run report alike, so that not every node has to send it: of a run's many nodes a few do.

A run's record and its verdict name every node, so a thousand nodes would send a million names. The operator keeps those
that it has read, by the digest of their JSON, and tells the hosts that it asks next which it has.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from clusterddp.remote.shared.schema.fields import Fields
from clusterddp.remote.shared.verdict.status_reply import COMMON_FIELDS, common_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterddp.remote.shared.verdict.node_report import NodeReport

MAX_KEPT = 64  # values


class CommonFields:
    """The values read so far, the newest ones. Thread-safe.

    A value is kept by the digest that is computed here, so no host can give another host's node a value.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, Any] = {}  # records, by digest

    def snapshot(self) -> dict[str, Any]:
        """Return the values by digest: a host that is told the digests need not send them."""
        with self._lock:
            return dict(self._values)

    def learn(self, sent: Sequence[Mapping[str, Any]], reports: Iterable[NodeReport]) -> None:
        """Keep what a host has sent: the nodes of its answer, and the same as they were read."""
        by_spool = {report.spool: report for report in reports}
        for node in sent:
            report = by_spool.get(str(node.get("spool")))
            for name in COMMON_FIELDS if report else ():
                value = getattr(report, name)
                digest = common_digest(node[name]) if value and node.get(name) else None
                if digest:
                    self._keep(digest, value)

    def _keep(self, digest: str, value: Any) -> None:
        with self._lock:
            self._values.setdefault(digest, value)
            while len(self._values) > MAX_KEPT:
                del self._values[next(iter(self._values))]


def restored(nodes: Iterable[Any], known: Mapping[str, Any]) -> list[Any]:
    """Return the nodes of an answer with the values that it leaves out, as records.

    ``known``: the values whose digests the host was sent. Raises ValueError if it leaves out another value.
    """
    return [_restored(node, known) if type(node) is dict and "common" in node else node for node in nodes]


def _restored(node: dict[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    left_out = Fields(node).mapping("common", Fields.text)
    for name, digest in left_out.items():
        if name not in COMMON_FIELDS or digest not in known:
            raise ValueError(f"it leaves out {name}")
    found = {name: value for name, value in node.items() if name != "common"}
    return {**found, **{name: known[digest] for name, digest in left_out.items()}}
