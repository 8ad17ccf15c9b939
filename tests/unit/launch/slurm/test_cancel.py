"""What `stop` says of a Slurm job: nothing is proved of nodes that have not reported."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterddp.launch.slurm import over_slurm
from clusterddp.launch.slurm.client.answers import QueuedJob
from clusterddp.launch.slurm.client.states import MANAGER, NO_ANSWER
from clusterddp.launch.slurm.job_report import job_report
from clusterddp.remote.shared.run.spool_records import LeftProcess
from clusterddp.remote.shared.slurm.job_record import BY_SCRIPT, SubmittedRun
from clusterddp.remote.shared.verdict.failures import ended_by_manager
from tests.unit.plan_made import PLAN

EMPTY = "0 processes ended, proved empty"
UNKNOWN = "0 processes ended, not proved: no node has reported; Slurm says CANCELLED"


class Login:
    """A login host on which Slurm says one thing after the other of the job."""

    def __init__(self, *said: QueuedJob | None, end: Any = None, away: bool = False) -> None:
        self.said, self.cancelled, self.end, self.away = list(said), list[str](), end, away
        self.told: list[str] = []

    def order_stop(self, *_: object) -> int:
        return 0

    def command(self, *words: str) -> tuple[int, str, str]:
        self.cancelled.append(words[-1])
        return (1, "", "scancel: error: Unable to contact slurm controller\n") if self.away else (0, "", "")

    def run(self, _run: str) -> Any:
        return SimpleNamespace(end=self.end, attempt=1)

    def jobs(self, numbers: list[str]) -> dict[str, QueuedJob]:
        job = self.said.pop(0)
        return {numbers[0]: job} if job else {}


def job(state: str, *nodes: str) -> QueuedJob:
    return QueuedJob(job="4711", state=state, nodes=nodes)


def ended(*survivors: LeftProcess) -> Any:
    return SimpleNamespace(killed=0, survivors=survivors, unseen=())


def node(host: str, attempt: int, end: object) -> Any:
    return SimpleNamespace(host=host, attempt=attempt, exit=end, events=())


def stopped(
    monkeypatch: pytest.MonkeyPatch, login: Login, nodes: tuple[Any, ...] = (), earlier: tuple[Any, ...] = ()
) -> list[tuple[str, bool, str]]:
    """Each proof of a stop: its host, whether nothing is left there, and its line."""
    said = NO_ANSWER if login.away else "RUNNING"
    status = SimpleNamespace(ended=False, ends_with_run=True, number="4711", manager_state=said, state="running")
    site: Any = SimpleNamespace(notify=login.told.append)
    view = SimpleNamespace(job=status, nodes=nodes, earlier=earlier)
    monkeypatch.setattr(over_slurm, "_login", lambda _: login)
    monkeypatch.setattr(over_slurm, "nodes_of_run", lambda *_: None)
    monkeypatch.setattr(over_slurm, "_wait_for_end", lambda *_, **__: view)
    monkeypatch.setattr(over_slurm, "QUERY_INTERVAL", 0.0)
    proofs = over_slurm.LAUNCHER.cancel(site, "k3xa8w2mnp", [], grace=5.0, reason="by another command")
    assert login.cancelled == ["4711"]
    return [(proof.host, proof.proved_empty, proof.summary) for proof in proofs]


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ((job("PENDING"), job("CANCELLED")), EMPTY),  # it waited in the queue
        ((None,), EMPTY),
        ((job("CANCELLED", "gpu01"),), UNKNOWN),
        ((job("COMPLETING", "gpu01"), job("CANCELLED", "gpu01")), UNKNOWN),
    ],
)
def test_a_job_whose_nodes_report_nothing_is_proved_empty_only_if_it_never_began(
    monkeypatch: pytest.MonkeyPatch, said: tuple[QueuedJob | None, ...], line: str
) -> None:
    assert stopped(monkeypatch, Login(*said)) == [("job 4711", line == EMPTY, line)]


def test_a_job_whose_script_met_the_stop_before_it_started_any_node_is_proved_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = SimpleNamespace(attempt=1, line="stopped: by another command", writer=BY_SCRIPT)
    for said in (job("COMPLETING", "gpu01"), job("COMPLETED", "gpu01")):
        assert stopped(monkeypatch, Login(said, end=end)) == [("job 4711", True, EMPTY)]
    by_slurm = SimpleNamespace(attempt=1, line=f"stopped: {ended_by_manager(MANAGER)}", writer=BY_SCRIPT)
    assert stopped(monkeypatch, Login(job("CANCELLED", "gpu01"), end=by_slurm)) == [("job 4711", False, UNKNOWN)]


def test_a_verdict_from_slurms_state_proves_nothing_of_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = job("CANCELLED", "gpu01")
    submitted = SubmittedRun(run=PLAN.run, plan=PLAN, job="4711", starts=1, attempt=1, stopped="by another command")
    report, _ = job_report(submitted, [], cancelled, "login1", "")
    assert report.verdict
    assert report.verdict.line == "stopped: by another command"
    assert stopped(monkeypatch, Login(cancelled, end=report.verdict)) == [("job 4711", False, UNKNOWN)]


def test_nodes_prove_their_end_though_slurm_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    login = Login(away=True)
    proofs = stopped(monkeypatch, login, (node("gpu01", 1, ended()), node("gpu02", 1, None)))
    assert [proved for _, proved, _ in proofs] == [True, False]
    assert proofs[1][2].endswith("not proved: Slurm says nothing: it does not answer")
    assert login.told == [
        "job 4711 is not cancelled (Unable to contact slurm controller): it ends when its nodes have ended"
    ]


def test_the_last_attempt_of_a_host_counts_and_what_an_earlier_one_left_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = LeftProcess(42, 7, "train.py", "D")
    attempts = [
        (ended(), ended(left), "still there: 42 (train.py; in a sleep that no signal ends)"),
        (ended(), None, "not proved: Slurm says CANCELLED"),
        (
            ended(left),
            ended(),
            "not proved: an earlier attempt left 42 (train.py; in a sleep that no signal ends)",
        ),
    ]
    for earlier, last, said in attempts:
        ((host, proved, line),) = stopped(monkeypatch, Login(), (node("gpu01", 2, last),), (node("gpu01", 1, earlier),))
        assert (host, proved) == ("gpu01", False)
        assert said in line
    ((_, proved, _),) = stopped(monkeypatch, Login(), (node("gpu01", 2, ended()),), (node("gpu01", 1, ended()),))
    assert proved
