"""What a run's hosts report of it: those that know it no more, and those that have joined it since."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterddp.errors import ClusterddpError, RunError, RunRemovedError, UnreachableError
from clusterddp.hosts.fanout import Outcome
from clusterddp.inventory import HostEntry
from clusterddp.project.project import find
from clusterddp.runs import run as running
from clusterddp.runs import why
from clusterddp.runs.run import Run
from clusterddp.runs.run_on_hosts import BRIEF
from tests.unit.runs_told import Told


def run_of(told: list[Told], *answers: Outcome[Any], monkeypatch: pytest.MonkeyPatch, folder: Any) -> Run:
    """A run on two hosts, each of which answers so."""
    monkeypatch.chdir(folder)
    project = find()
    record = told[0].node.record._replace(project=project.known_id)
    entries = tuple(HostEntry(name=one.host, address=one.host) for one in told)
    site: Any = SimpleNamespace(
        inventory=SimpleNamespace(hosts=entries, run_hosts=entries),
        project=project,
        describe=lambda *_: list(answers),
        connections=SimpleNamespace(report=print),
    )
    return Run(cluster=site, id=told[0].node.run, attempt=1, spools=dict.fromkeys(record.hosts, ""), record=record)


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


def joined_by_another(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, list[list[str]]]:
    """A run that was looked up on two hosts before a third joined it, and which hosts are asked at a time."""
    asked: list[list[str]] = []
    names = ["gpu00", "gpu01", "gpu02"]
    told = [Told(rank, hosts=names) for rank in range(3)]
    run = run_of(told, monkeypatch=monkeypatch, folder=tmp_path)
    run.record, run.spools = run.record._replace(hosts=("gpu00", "gpu01")), {"gpu00": "/s", "gpu01": "/s"}
    nodes = {one.host: one.node for one in told}

    def describe(_: str, entries: Any, *_more: object) -> list[Outcome[Any]]:
        asked.append([entry.name for entry in entries])
        return [Outcome(name=entry.name, value=[nodes[entry.name]]) for entry in entries]

    site: Any = run.cluster
    site.describe = describe
    return run, asked


def test_a_host_that_has_joined_since_the_run_was_looked_up_is_asked_too(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, asked = joined_by_another(tmp_path, monkeypatch)
    view = run.view()
    assert asked == [["gpu00", "gpu01"], ["gpu02"]]
    assert [(host.name, host.state) for host in view.hosts()] == [(f"gpu0{rank}", "running") for rank in range(3)]
    newest, (*_, last) = run.at(view), asked
    assert (newest.spools["gpu02"], last) == ("/s/runs/r1/1/2-gpu02", ["gpu02"])
    newest.view()
    assert asked[2:] == [["gpu00", "gpu01", "gpu02"]]  # then one question is enough


def test_a_joined_host_without_an_answer_is_silent_and_one_that_is_not_to_be_asked_is_not(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, asked = joined_by_another(tmp_path, monkeypatch)
    answers = run.cluster.describe

    def describe(name: str, entries: Any, *more: Any) -> list[Outcome[Any]]:
        error = UnreachableError("gpu02", "no answer")
        return [
            Outcome(name=outcome.name, error=error) if outcome.name == "gpu02" else outcome
            for outcome in answers(name, entries, *more)
        ]

    site: Any = run.cluster
    site.describe = describe
    assert run.view(quiet=True).silent == ("gpu02",)
    asked.clear()
    run.view(without={"gpu01", "gpu02"})
    run.view({"gpu00"})
    assert asked == [["gpu00"], ["gpu00"]]


@pytest.mark.parametrize(("attempts", "attempt"), [({}, 1), ({1: {"gpu00": "/s"}}, 1), ({2: {"gpu00": "/s"}}, 2)])
def test_the_lines_of_a_live_run_are_also_those_of_a_host_that_joined_its_attempt(
    attempts: dict[int, dict[str, str]], attempt: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, asked = joined_by_another(tmp_path, monkeypatch)
    run.attempts, run.attempt = attempts, attempt
    read: list[set[str]] = []

    class Follower:
        def __init__(self, followed: Run, *_: object) -> None:
            read.append({*followed.spools})

        def batches(self) -> Any:
            return iter(())

    monkeypatch.setattr(running, "Follower", Follower)
    assert list(run.logs()) == []
    assert read == [{"gpu00", "gpu01"} if attempt == 2 else {"gpu00", "gpu01", "gpu02"}]
    run.live = False
    asked.clear()
    list(run.logs())
    assert asked == []


class Asked:
    """The hosts of a run as they are asked about its workers: which, and for which folder."""

    def __init__(self) -> None:
        self.spools: list[tuple[str, str]] = []

    def host(self, _site: object, _run: str, name: str) -> Any:
        def call(_operation: str, request: dict[str, Any], **_: object) -> list[Any]:
            self.spools.append((name, request["spool"]))
            return []

        return SimpleNamespace(name=name, call=call)


def relaunched_since(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, Asked]:
    """A run that was looked up in its first attempt, and is in its second on two hosts; whom it asks is noted."""
    told = [Told(rank, hosts=["gpu00", "gpu01"]) for rank in range(2)]
    for one in told:
        one.fields.update(attempt=2, spool=f"/second/{one.host}")
    outcomes: list[Outcome[Any]] = [Outcome(name=one.host, value=[one.node]) for one in told]
    run, asked = run_of(told, *outcomes, monkeypatch=monkeypatch, folder=tmp_path), Asked()
    run.spools = {"gpu00": "/first/gpu00", "gpu01": "/first/gpu01"}
    site: Any = run.cluster
    site.launcher_of = lambda _: asked
    return run, asked


@pytest.mark.parametrize(
    "ask",
    [
        lambda run: run.signal("USR1"),
        lambda run: run.stacks(),
        lambda run: run.breakpoints(),
        lambda run: run.stop_rank(0) or [],
    ],
)
def test_the_workers_of_the_newest_attempt_are_asked(ask: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = relaunched_since(tmp_path, monkeypatch)
    assert ask(run) == []
    assert sorted(asked.spools) == [("gpu00", "/second/gpu00"), ("gpu01", "/second/gpu01")]


def test_why_is_asked_of_the_newest_attempt(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = relaunched_since(tmp_path, monkeypatch)
    monkeypatch.setattr(why, "PAUSE", 0.0)
    run.why()
    assert {spool for _, spool in asked.spools} == {"/second/gpu00", "/second/gpu01"}


def test_a_host_without_a_quick_answer_keeps_its_part_in_the_attempt_and_a_later_attempt_stays(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = relaunched_since(tmp_path, monkeypatch)
    known = run.latest()
    first, _ = run.cluster.describe("", (), BRIEF)
    site: Any = run.cluster
    site.describe = lambda *_: [first, Outcome(name="gpu01", error=UnreachableError("gpu01", "no answer"))]
    assert known.latest().spools == known.spools
    assert run.latest().spools == {"gpu00": "/second/gpu00", "gpu01": ""}
    known.attempt = 3
    assert known.latest() is known


def test_a_host_that_was_not_heard_has_an_error_of_its_own_and_one_that_has_not_begun_has_none(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, asked = relaunched_since(tmp_path, monkeypatch)
    first, _ = run.cluster.describe("", (), BRIEF)
    second: list[Outcome[Any]] = [Outcome(name="gpu01", value=[])]
    site: Any = run.cluster

    def describe(_run: str, entries: Any, *_: object) -> list[Outcome[Any]]:
        return [first if entry.name == "gpu00" else second[0] for entry in entries]

    site.describe, site.notify = describe, lambda _line: None
    assert run.signal("USR1") == []
    assert run.stop_rank(1) is None
    second[0] = Outcome(name="gpu01", error=UnreachableError("gpu01", "no route"))
    for ask, said in (
        (lambda: run.signal("USR1"), "gpu01: no route"),
        (lambda: run.stop_rank(1), "no route"),
    ):
        with pytest.raises(ClusterddpError, match=said):
            ask()
    assert {name for name, _ in asked.spools} == {"gpu00"}
