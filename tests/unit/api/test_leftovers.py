"""What runs have left on hosts, as a cluster tells it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from clusterddp.api import leftovers
from clusterddp.errors import HelperError, UnreachableError
from clusterddp.inventory import built_in


def opened(entry: Any) -> Any:
    """The first host is out of reach, the other one fails."""
    if entry.name == "local0":
        raise UnreachableError(entry.name, "no answer")

    def fail(*_: object, **__: object) -> None:
        raise HelperError(entry.name, "no process is left")

    return SimpleNamespace(name=entry.name, call=fail)


def test_a_host_that_cannot_tell_what_is_left_there_is_not_taken_for_an_empty_one() -> None:
    told: list[str] = []
    project, connections = SimpleNamespace(launchers=set()), SimpleNamespace(open=opened)
    site: Any = SimpleNamespace(inventory=built_in(), project=project, connections=connections, notify=told.append)
    assert leftovers.orphans(site) == []
    assert told == ["processes of lost runs are not known: local1: no process is left"]
