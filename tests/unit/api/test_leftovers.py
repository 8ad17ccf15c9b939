"""What runs have left on hosts, as a cluster tells it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from clusterddp.api.leftovers import LeftOnHosts
from clusterddp.errors import HelperError, UnreachableError
from clusterddp.inventory import built_in


class Cluster(LeftOnHosts):
    """Two hosts, one of which is out of reach, and one that fails."""

    _keeping = built_in().hosts

    def __init__(self) -> None:
        self.told: list[str] = []
        self.notify = self.told.append

    def _open(self, entry: Any) -> Any:
        if entry.name == "local0":
            raise UnreachableError(entry.name, "no answer")

        def fail(*_: object) -> None:
            raise HelperError(entry.name, "no process is left")

        return SimpleNamespace(call=fail)


def test_a_host_that_cannot_tell_what_is_left_there_is_not_taken_for_an_empty_one() -> None:
    cluster = Cluster()
    assert cluster.orphans() == []
    assert cluster.told == ["processes of lost runs are not known: local1: no process is left"]
