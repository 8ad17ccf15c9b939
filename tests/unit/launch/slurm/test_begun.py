"""Waiting for a job to begin: Slurm may be away meanwhile, and may take the nodes away again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import ClusterddpError, HelperError, UnreachableError, UsageError
from clusterddp.launch.options import RunOptions
from clusterddp.launch.slurm import over_slurm
from clusterddp.launch.slurm.allocation import current_allocation
from clusterddp.launch.slurm.client.answers import QueuedJob
from clusterddp.remote.shared.run.run_state import RunState
from clusterddp.runs.view.managed_job import JobStatus

if TYPE_CHECKING:
    from collections.abc import Callable

AWAY = UnreachableError("login1", "Slurm does not answer: Unable to contact slurm controller (connect failure)")


def view(state: str, attempt: int = 1, *, complete: bool = False, reason: str = "", start: str = "") -> SimpleNamespace:
    job = JobStatus(number="4711", manager_state="", state=state, ended=False, reason=reason, start=start)
    current = {"gpu01": ""} if complete else {}
    record = SimpleNamespace(hosts=("gpu01",))
    return SimpleNamespace(
        nodes=(1,) * complete, live=True, attempt=attempt, current=current, state=lambda: state, record=record, job=job
    )


class Queued:
    """A submitted run, which shows one view after the other."""

    id, attempt = "abcdefghij", 1

    def __init__(self, *views: SimpleNamespace | Exception, secrets: dict[str, str] | None = None) -> None:
        self.views, self.secrets = list(views), secrets or {}

    def view(self, **_: object) -> SimpleNamespace:
        shown = self.views.pop(0)
        if isinstance(shown, Exception):
            raise shown
        return shown

    def at(self, shown: SimpleNamespace) -> int:
        return int(shown.attempt)


def begun(
    monkeypatch: pytest.MonkeyPatch, run: Any, login: object = None, notify: Callable[[str], None] = lambda _: None
) -> object:
    monkeypatch.setattr(over_slurm, "QUERY_INTERVAL", 0.0)
    monkeypatch.setattr(over_slurm, "_login", lambda _: login)
    site: Any = SimpleNamespace(notify=notify)
    return over_slurm.LAUNCHER.begun(site, run, lambda _: None)


def test_who_waits_in_the_queue_asks_on_while_slurm_or_the_login_host_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    queued = view(RunState.QUEUED)
    assert begun(monkeypatch, Queued(queued, AWAY, AWAY, queued, view(RunState.RUNNING, complete=True))) == 1


def test_each_reason_why_a_job_waits_is_told_once_though_slurm_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """With several partitions the reason is now that of one, now that of another."""
    told: list[str] = []
    waits = [view(RunState.QUEUED, reason=why) for why in ("Resources", "PartitionTimeLimit")]
    expected = [view(RunState.QUEUED, reason="Resources", start=f"2026-11-28T12:15:0{second}") for second in (1, 2)]
    looks = [*waits, *waits, *expected, *waits, view(RunState.RUNNING, complete=True)]
    assert begun(monkeypatch, Queued(*looks), notify=told.append) == 1
    assert told == [
        "run abcdefghij: job 4711 is queued (Resources)",
        "run abcdefghij: job 4711 is queued (PartitionTimeLimit)",
        "run abcdefghij: job 4711 is queued (Resources, expected to start 2026-11-28 12:15:01)",
    ]


class Silent:
    """A login host where Slurm does not answer."""

    state, host = "/s", SimpleNamespace(name="login1")

    def __init__(self, *, unshared: bool) -> None:
        self.unshared, self.asked = unshared, 0

    def run(self, _run: str) -> SimpleNamespace:
        return SimpleNamespace(job="4711", unshared=self.unshared, starts=0, inside=False)

    def jobs(self, _numbers: object) -> None:
        self.asked += 1
        raise AWAY


@pytest.mark.parametrize("secrets", [{"TOKEN": "s3cret"}, {}])  # who brings them asks Slurm; so does who checks folders
def test_slurm_may_be_away_at_any_moment_while_a_job_begins(
    monkeypatch: pytest.MonkeyPatch, secrets: dict[str, str]
) -> None:
    monkeypatch.setattr(over_slurm, "SILENCE_TIMEOUT", -1.0)
    login = Silent(unshared=bool(secrets))
    run = Queued(view(RunState.RUNNING), view(RunState.RUNNING, complete=True), secrets=secrets)
    assert begun(monkeypatch, run, login) == 1
    assert login.asked == 1


def test_another_error_ends_the_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterddpError, match="damaged"):
        begun(monkeypatch, Queued(HelperError("login1", "its answer is damaged")))


def test_a_job_that_is_requeued_while_it_begins_gets_its_secrets_again(monkeypatch: pytest.MonkeyPatch) -> None:
    brought: list[int] = []

    def bring(*_: object) -> bool:
        brought.append(1)
        return True

    monkeypatch.setattr(over_slurm, "bring_secrets", bring)
    running, queued = view(RunState.RUNNING), view(RunState.QUEUED, 2)
    again = (view(RunState.RUNNING, 2), view(RunState.RUNNING, 2, complete=True))
    assert begun(monkeypatch, Queued(running, running, queued, *again, secrets={"TOKEN": "s3cret"})) == 2
    assert len(brought) == 2


def test_a_job_that_slurm_has_is_submitted_though_slurm_does_not_answer_then() -> None:
    def away(*_: object) -> None:
        raise AWAY

    submission: Any = SimpleNamespace(runs={}, job=SimpleNamespace(plan=SimpleNamespace(run="abcdefghij")))
    waiting = QueuedJob(job="4711", state="PENDING", reason="AssocGrpNodeLimit")
    for jobs in (away, lambda _: {"4711": waiting}):
        login: Any = SimpleNamespace(jobs=jobs, command=away)
        over_slurm.LAUNCHER._refuse_never_starting(login, submission, "4711")


def test_a_task_of_an_array_holds_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4713")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "4711")
    site: Any = SimpleNamespace(notify=print)
    with pytest.raises(UsageError, match="in a task of Slurm's array 4711"):
        current_allocation(lambda: pytest.fail("Slurm was asked"), site, RunOptions(script="train.py"))
