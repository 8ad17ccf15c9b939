"""`status --watch`: it looks again until the run has ended, whatever hosts answer meanwhile."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.cli.actions import status_action as status
from clusterddp.errors import HostsError, RunRemovedError, UnreachableError
from clusterddp.runs.view.run_view import RunView, run_views
from tests.unit.runs_told import Told

if TYPE_CHECKING:
    from clusterddp.errors import ClusterddpError

HOSTS = ["gpu00", "gpu01"]


def view_of(*nodes: Told) -> RunView:
    silent = [name for name in HOSTS if name not in {node.host for node in nodes}]
    record = Told(hosts=HOSTS).node.record._replace(run="r1")
    (view,) = run_views([node.node for node in nodes], silent, started=[record])
    return view


class Cluster:
    """A cluster whose looks at a run give these views and errors in turn; each error line is reported once."""

    def __init__(self, *told: RunView | ClusterddpError) -> None:
        self._told, self.reported = list(told), dict[str, None]()
        self.connections = SimpleNamespace(report=self.reported.setdefault)

    def find_view(self, _: str | None) -> RunView:
        answer = self._told.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(status, "open_cluster", lambda *_: contextlib.nullcontext(self))
        monkeypatch.setattr("time.sleep", lambda _: None)
        asked: dict[str, Any] = {"stacks": False, "watch": True, "as_json": False}
        assert status.act(None, None, "r1", **asked) == 0
        assert not self._told


def running(rank: int) -> Told:
    return Told(rank, hosts=HOSTS)


def states(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.split()[2].rstrip(",") for line in capsys.readouterr().out.splitlines() if line.startswith("run r1")]


def test_a_run_is_watched_on_while_no_host_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The project that started the run sees the state `unknown`; another one gets an error, reported once."""
    live = view_of(running(0), running(1))
    gone = HostsError([UnreachableError(name, "no answer") for name in HOSTS])
    ended = view_of(running(0).succeeded(5), running(1).succeeded(5))
    cluster = Cluster(live, view_of(), gone, gone, live, ended)
    cluster.watch(monkeypatch)
    assert states(capsys) == ["running", "unknown", "running", "succeeded"]
    assert list(cluster.reported) == ["gpu00: no answer", "gpu01: no answer"]


def test_a_run_whose_end_one_host_keeps_to_itself_is_not_watched_for_ever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Cluster(view_of(running(0), running(1)), view_of(running(0).succeeded(5))).watch(monkeypatch)
    assert states(capsys) == ["running", "unknown"]


def test_a_run_that_is_not_there_any_more_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunRemovedError):
        Cluster(view_of(running(0), running(1)), RunRemovedError("run r1 was removed")).watch(monkeypatch)
