"""From which hosts and folders `pull` brings a run's files."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterddp.errors import RunError
from clusterddp.hosts.fanout import Outcome
from clusterddp.inventory import HostEntry
from clusterddp.launch.launcher import FileQuery
from clusterddp.launch.ssh.origins import origins
from clusterddp.remote.shared.run.run_record import RunRecord

RECORD = RunRecord(hosts=("gpu00", "gpu02"), workdirs={"gpu00": "/w/0"})
JOINED = RECORD._replace(workdirs={"gpu00": "/w/0", "gpu02": "/w/2"})


def folders(*entries: str, answered: bool = True) -> list[tuple[str, str]]:
    """Host and folder of each origin of the run's files on these hosts of the inventory; gpu02 has joined it."""
    records = (RECORD, JOINED) if answered else (RECORD,)
    nodes = tuple(SimpleNamespace(record=record) for record in records)
    view: Any = SimpleNamespace(run="abc", record=RECORD, nodes=nodes, earlier=(), spares=())
    query = FileQuery(
        path=None,
        view=view,
        entries=[HostEntry(name=name, address=name) for name in entries],
        pattern=None,
        names=None,
        last_run=lambda: view,
    )

    def connect(chosen: list[HostEntry]) -> list[Outcome[Any]]:
        return [Outcome(name=entry.name, value=SimpleNamespace(name=entry.name, entry=entry)) for entry in chosen]

    site: Any = SimpleNamespace(connect=connect, project=SimpleNamespace(workdir="/default"))
    found, errors = origins(site, query)
    assert not errors
    return [(origin.host.name, origin.workdir) for origin in found]


def test_a_host_that_joined_the_run_has_files_in_the_folder_of_its_own_record() -> None:
    assert folders("gpu00", "gpu01", "gpu02") == [("gpu00", "/w/0"), ("gpu02", "/w/2")]
    assert folders("gpu02") == [("gpu02", "/w/2")]


def test_a_host_that_joined_the_run_is_asked_for_files_though_it_did_not_report_itself() -> None:
    assert [host for host, _ in folders("gpu00", "gpu01", "gpu02", answered=False)] == ["gpu00", "gpu02"]


def test_a_host_that_never_was_in_the_run_has_no_files_of_it() -> None:
    with pytest.raises(RunError, match="run abc has no host among these"):
        folders("gpu01")
