"""Whether ranks agreed is asked once more when a run has ended well: of all hosts at once, and of none for long."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.cli.run_end import print_awaited_end, print_followed_end, print_own_end
from clusterddp.errors import HelperError, UnreachableError
from clusterddp.hosts.inquiry import Inquiry
from clusterddp.remote.shared.run.run_state import RunState
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.runs import wrong_results
from clusterddp.runs.wrong_results import WrongResult, find_wrong_result
from tests.unit.remote.shared.collectives.traces_made import worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterddp.remote.shared.collectives.trace_records import WorkerTrace

    Answer = Callable[[str], list[WorkerTrace]]

MANY = 300


class EndedRun:
    """A run of one worker on each host; ``answer`` says what a host's worker wrote down, by the number of its rank."""

    id = "night"

    def __init__(self, hosts: int, answer: Answer, login: str = "") -> None:
        self.spools = {f"gpu{number:03}": f"/runs/{number}" for number in range(hosts)}
        self.record = SimpleNamespace(world_size=hosts, workdirs={}, hosts=[])
        self.cluster = SimpleNamespace(connections=SimpleNamespace(inquiry=Inquiry(lambda _name: None)))
        self.answer, self.login = answer, login
        self.asked: list[str] = []

    def reader(self, name: str) -> Any:
        self.asked.append(name)

        def call(operation: str, request: dict[str, Any], **_limits: object) -> list[dict[str, Any]]:
            assert operation == "ended_traces"
            return [to_fields(trace) for trace in self.answer(request["spool"].rpartition("/")[2])]

        return SimpleNamespace(name=self.login or name, call=call)


def agreed_but(rank: int) -> Answer:
    """All ranks called the same but one, which gave a tensor of another size."""
    return lambda number: [worker(int(number), "ar4 ar5 ar4" if int(number) == rank else "ar4 ar4 ar4")]


def found_in(run: Any) -> WrongResult | None:
    return find_wrong_result(run)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrong_results, "PATIENCE", 60.0)  # other tests run beside this one


def test_all_hosts_are_asked_at_once() -> None:
    all_there = threading.Barrier(MANY)

    def answer(number: str) -> list[WorkerTrace]:
        all_there.wait(60)  # breaks unless all are asked before one has answered
        return agreed_but(7)(number)

    found = found_in(EndedRun(MANY, answer))
    assert found
    assert (found.finding.ranks, found.finding.sequence, found.hosts) == ((7,), 2, ("gpu007",))
    assert found.sentence.startswith(
        "run night ended well, but with a wrong result: rank 7 (gpu007:0) called all_reduce"
    )


def test_ranks_that_agreed_have_no_wrong_result() -> None:
    assert found_in(EndedRun(3, lambda number: [worker(int(number), "ar4 ar4")])) is None


def test_a_host_that_is_gone_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrong_results, "PATIENCE", 0.2)
    over, others = threading.Event(), threading.Semaphore(0)

    def answer(number: str) -> list[WorkerTrace]:
        if number == "2":
            over.wait(60)
        else:
            others.release()
        return agreed_but(1)(number)

    run = EndedRun(4, answer)
    found = found_in(run)
    assert not over.is_set()
    over.set()
    assert found is None or found.finding.ranks == (1,)  # none where this machine is too busy for the others
    assert all(others.acquire(timeout=60) for _ in range(3))
    assert run.asked.count("gpu002") == 1


@pytest.mark.parametrize(
    "error", [UnreachableError("gpu002", "it is off"), HelperError("gpu002", "its answer is damaged")]
)
def test_hosts_that_cannot_tell_take_nothing_from_the_others(error: Exception) -> None:
    def answer(number: str) -> list[WorkerTrace]:
        if number == "2":
            raise error
        return agreed_but(1)(number)

    found = found_in(EndedRun(4, answer))
    assert found
    assert found.hosts == ("gpu001",)


def test_the_login_host_of_slurm_is_asked_for_each_nodes_part() -> None:
    found = found_in(EndedRun(4, agreed_but(1), login="login"))
    assert found
    assert found.hosts == ("gpu001",)


def test_a_run_of_one_rank_or_without_parts_asks_nobody() -> None:
    for hosts in (1, 0):
        run = EndedRun(hosts, agreed_but(0))
        assert found_in(run) is None
        assert not run.asked


def test_workers_that_wrote_nothing_down_have_agreed() -> None:
    assert found_in(EndedRun(3, lambda _number: [])) is None


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.STOPPED, RunState.UNKNOWN])
@pytest.mark.parametrize("end", [print_own_end, print_followed_end, print_awaited_end])
def test_a_run_that_failed_or_was_stopped_asks_nobody(state: str, end: Any, capsys: Any) -> None:
    run = EndedRun(3, agreed_but(1))
    verdict = SimpleNamespace(
        state=state, line="it is over", notices=(), failures=(), remedy="", preface=(), exit_code=3, slow_imports=None
    )
    assert end(run, verdict) == 3
    assert not run.asked
    assert "it is over" in capsys.readouterr().err


def test_a_host_that_did_not_answer_just_now_is_not_asked() -> None:
    run: Any = EndedRun(3, agreed_but(7))
    assert find_wrong_result(run, silent=("gpu001",)) is None
    assert sorted(run.asked) == ["gpu000", "gpu002"]
