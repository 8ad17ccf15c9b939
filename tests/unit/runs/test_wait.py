"""Where `wait` finds its run: by its whole id without the silent hosts, else by all; and what it does meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from clusterddp.errors import RunError, UnreachableError
from clusterddp.remote.shared.verdict.node_report import NodeReport
from clusterddp.runs import wait
from clusterddp.runs.ending import SILENCE_LIMIT
from clusterddp.runs.run_on_hosts import ALL, Wanted
from tests.unit.runs_told import Told

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from clusterddp.runs.run_on_hosts import RunOnHosts, Site
    from clusterddp.runs.view.run_view import RunView

RUN = "abcdefghij"
Answer = tuple[list[NodeReport], list[str]]
NOBODY = UnreachableError("gpu00", "no answer within 1 s")


class Cluster:
    """Hosts that answer by a script, in so many seconds each time; the last answer stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float, *answers: Answer | UnreachableError) -> None:
        self.seconds, self.answers, self.asked, self.now = seconds, list(answers), 0, 0.0
        monkeypatch.setattr(wait.time, "monotonic", lambda: self.now)  # type: ignore[attr-defined]
        monkeypatch.setattr(wait.time, "sleep", self.sleep)  # type: ignore[attr-defined]
        monkeypatch.setattr(wait, "gather", Cluster.gather)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def gather(
        self,
        run: str,
        hosts: Container[str] | None = None,
        wanted: Wanted = ALL,
        *,
        quiet: bool = False,
        patience: float | None = None,
    ) -> Answer:
        assert (run, hosts, wanted.brief, quiet, patience) == (RUN, None, True, True, SILENCE_LIMIT)
        self.asked += 1
        self.now += self.seconds
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, UnreachableError):
            raise answer
        return answer


def find_soon(cluster: Cluster, reference: str) -> RunView | None:
    return wait.find_soon(cast("Site", cluster), reference)


def told(run: str = RUN) -> list[NodeReport]:
    return [Told(run=run, hosts=["gpu00", "gpu01"]).node]


def test_the_run_of_an_id_is_found_where_one_host_tells_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, 1.0, (told(), ["gpu01"]))
    found = find_soon(cluster, RUN)
    assert found
    assert (found.run, found.silent, cluster.asked) == (RUN, ("gpu01",), 1)


def test_hosts_that_are_slow_to_connect_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, 1.0, NOBODY, ([], ["gpu00", "gpu01"]), (told(), ["gpu01"]))
    assert find_soon(cluster, RUN)
    assert cluster.asked == 3


@pytest.mark.parametrize("reference", ["night", "abcde", "ABCDEFGHIJ"])
def test_a_name_or_a_part_of_an_id_may_mean_a_run_of_a_silent_host(
    monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    cluster = Cluster(monkeypatch, 1.0, (told(), ["gpu01"]))
    assert find_soon(cluster, reference) is None
    assert cluster.asked == 0


@pytest.mark.parametrize(
    ("seconds", "answer"), [(0.1, NOBODY), (0.1, ([], [])), (2.0, ([], [])), (2.0, (told(f"{RUN}k"), []))]
)
def test_who_refuses_or_knows_of_no_such_run_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, seconds: float, answer: Answer | UnreachableError
) -> None:
    cluster = Cluster(monkeypatch, seconds, answer)
    assert find_soon(cluster, RUN) is None
    assert cluster.asked == 1


def test_a_run_that_nobody_tells_of_in_time_is_looked_for_on_all_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, 1.0, ([], ["gpu00", "gpu01"]))
    assert find_soon(cluster, RUN) is None
    assert wait.FIND_TIMEOUT <= cluster.now < wait.FIND_TIMEOUT + 2


class Waiting:
    """A fake run with secrets: ``view`` returns one of ``views`` after the other, ``begun`` adds to ``brought``."""

    id, secrets = RUN, {"TOKEN": "s3cret"}
    brought: list[int]  # the attempts whose hosts were brought the secrets

    def __init__(self, *views: SimpleNamespace | Exception) -> None:
        self.views, self.brought, self.attempt = list(views), [], 1

    def view(self, **_: object) -> SimpleNamespace:
        view = self.views.pop(0)
        if isinstance(view, Exception):
            raise view
        return view

    def at(self, view: SimpleNamespace) -> Waiting:
        self.attempt = view.attempt
        return self

    def begun(self, progress: Callable[[str], None]) -> Waiting:
        progress("the job's nodes are starting")
        self.brought.append(self.attempt)
        return self

    def watched(self, view: SimpleNamespace) -> str:
        return str(view.verdict())


def looked(attempt: int, verdict: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(live=not verdict, attempt=attempt, silent=(), verdict=lambda: verdict)


def test_who_waits_brings_every_attempt_the_values_of_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "POLL_INTERVAL", 0.0)
    run = Waiting(*map(looked, (1, 1, 1, 2, 2)), *[looked(2, "succeeded")] * 2)
    assert str(wait.wait_for(cast("RunOnHosts", run), lambda _: None)) == "succeeded"
    assert run.brought == [1, 2]


def test_the_time_to_wait_counts_also_while_a_run_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "POLL_INTERVAL", 0.0)
    with pytest.raises(RunError, match=f"run {RUN} has not ended in 0 s"):
        wait.wait_for(cast("RunOnHosts", Waiting(looked(1))), lambda _: None, 0.0)


def test_who_waits_asks_on_where_slurm_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "POLL_INTERVAL", 0.0)
    away = UnreachableError("login1", "Slurm does not answer: Unable to contact slurm controller")
    run = Waiting(looked(1), away, *[looked(1, "succeeded")] * 2)
    assert str(wait.wait_for(cast("RunOnHosts", run), lambda _: None)) == "succeeded"
