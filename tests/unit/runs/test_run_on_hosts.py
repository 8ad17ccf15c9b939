"""A run that its hosts know no more: the project's verdict counts, or it was removed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterddp.errors import RunError, RunRemovedError, UnreachableError
from clusterddp.hosts.fanout import Outcome
from clusterddp.inventory import HostEntry
from clusterddp.project.project import find
from clusterddp.runs.run_on_hosts import RunOnHosts
from tests.unit.runs_told import Told


def run_of(told: list[Told], *answers: Outcome[Any], monkeypatch: pytest.MonkeyPatch, folder: Any) -> RunOnHosts:
    """A run on two hosts, each of which answers so."""
    monkeypatch.chdir(folder)
    project = find()
    record = told[0].node.record._replace(project=project.known_id)
    entries = tuple(HostEntry(name=one.host, address=one.host) for one in told)
    site: Any = SimpleNamespace(
        inventory=SimpleNamespace(run_hosts=entries),
        project=project,
        describe=lambda *_: list(answers),
        connections=SimpleNamespace(report=print),
    )
    return RunOnHosts(
        cluster=site, id=told[0].node.run, attempt=1, spools=dict.fromkeys(record.hosts, ""), record=record
    )


GONE: list[Outcome[Any]] = [Outcome(name=name, value=[]) for name in ("gpu00", "gpu01")]


def two_nodes() -> list[Told]:
    return [Told(rank, hosts=["gpu00", "gpu01"]).stopped(9, "by `down`") for rank in (0, 1)]


def test_a_run_that_was_stopped_and_removed_ended_as_the_project_has_saved_it(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = two_nodes()
    run = run_of(told, *GONE, monkeypatch=monkeypatch, folder=tmp_path)
    known = [one.node._replace(record=run.record) for one in told]
    run.cluster.describe = lambda *_: [Outcome(name=one.host, value=[one]) for one in known]  # type: ignore[method-assign]
    run.watched(run.view())
    run.cluster.describe = lambda *_: GONE  # type: ignore[method-assign]
    view = run.view()
    verdict = run.watched(view)
    assert verdict
    assert (view.live, verdict.exit_code, verdict.line) == (False, 143, "stopped: by `down`")


def test_a_run_of_which_nothing_is_known_was_removed_unless_a_host_is_silent(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(two_nodes(), *GONE, monkeypatch=monkeypatch, folder=tmp_path)
    with pytest.raises(RunRemovedError, match="was removed from its hosts"):
        run.view()
    silent: Outcome[Any] = Outcome(name="gpu01", error=UnreachableError("gpu01", "no answer"))
    other = run_of(two_nodes(), GONE[0], silent, monkeypatch=monkeypatch, folder=tmp_path)
    with pytest.raises(RunError, match="is on no host that answers") as caught:
        other.view()
    assert not isinstance(caught.value, RunRemovedError)
