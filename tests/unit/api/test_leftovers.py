"""What runs have left on hosts, as a cluster tells it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from clusterddp.api import find_runs, leftovers
from clusterddp.environments import removal
from clusterddp.errors import HelperError, UnreachableError
from clusterddp.inventory import built_in
from clusterddp.launch import launcher
from clusterddp.runs import named_workdirs
from tests.unit.runs.view.test_run_view import holding, kept, made, seen

if TYPE_CHECKING:
    import pytest


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


def test_a_run_that_is_over_but_goes_on_at_a_host_is_stopped_with_the_live_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A verdict from one host, even a false one, does not keep `down` from stopping the processes on the others."""
    first, cut_off = made("r1", project="p1")
    over = seen(holding(first, kept(first.stopped(9, "by another command"), missing=("gpu01",))), cut_off)
    assert [view.live for view in over] == [False]
    monkeypatch.setattr(leftovers, "orphans", lambda _: [])
    monkeypatch.setattr(find_runs, "list_runs", lambda _: over)
    assert leftovers.unended_runs(SimpleNamespace(project=None)) == over


def test_how_a_run_ended_is_saved_before_its_files_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    proofs: list[Any] = [SimpleNamespace(host="gpu00")]

    class Stopped:
        def stop(self, *, grace: float, reason: str) -> list[Any]:
            done.append(f"{reason}, {grace:g} s")
            return proofs

        def stopped(self, given: list[Any]) -> None:
            done.extend("saved" for _ in given)

    def remove(*_: object) -> dict[str, str]:
        done.append("removed")
        return {}

    monkeypatch.setattr(find_runs, "attach", lambda *_: Stopped())
    monkeypatch.setattr(leftovers, "_hosts_with_files", lambda _: ())
    monkeypatch.setattr(named_workdirs, "remove", remove)
    monkeypatch.setattr(removal, "remove", remove)
    monkeypatch.setattr(launcher, "launchers", lambda _: ())
    monkeypatch.setattr(leftovers, "_stop_keeping", lambda _: None)
    site: Any = SimpleNamespace(project=SimpleNamespace(known_id="p1", workdir=""))
    views: Any = [SimpleNamespace(run="r1")]
    stopped, _ = leftovers.down(site, views, purge=False, workdirs=(), environments=(), grace=1.0)
    assert (stopped, done) == ({"r1": proofs}, ["by `down`, 1 s", "saved", "removed", "removed"])
