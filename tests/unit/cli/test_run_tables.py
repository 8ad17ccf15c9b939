"""The list of runs: its columns, what is chosen of it, what is said when nothing is to be shown."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.cli.actions.runs_action import empty_message, filter_runs
from clusterddp.cli.run_tables import folders_line, print_runs, print_status, recovered_lines
from clusterddp.remote.shared.verdict.failures import LOST_PEER, OWN, worker_failures
from clusterddp.remote.shared.verdict.judge import Failure
from clusterddp.runs.view.run_view import RunView, run_views
from tests.unit.runs_told import BEGAN, SECOND, Told

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DAY = 86_400 * SECOND


def view(run: str, *, seconds: float | None = None, began: int = BEGAN, name: str = "", **record: Any) -> RunView:
    """A run of three hosts that ended ``seconds`` after its start, or lives."""
    hosts = ["gpu00", "gpu01", "gpu02"]
    known: dict[str, Any] = {
        "script": "train.py",
        "argv": ["--lr", "3e-4"],
        "operator": "alice@desk",
        "label": "my project",
    }
    told = [
        Told(rank, run=run, name=name or None, hosts=hosts, world_size=3, started=began, **{**known, **record})
        for rank in range(3)
    ]
    if seconds is not None:
        told = [node.succeeded(seconds + (began - BEGAN) / SECOND) for node in told]
    return run_views([node.node for node in told])[0]


def rows(capsys: pytest.CaptureFixture[str], found: Sequence[RunView], **options: bool) -> list[list[str]]:
    print_runs(found, **options)
    header, *lines = capsys.readouterr().out.splitlines()
    return [line.split(None, len(header.split()) - 1) for line in (header, *lines)]


def test_a_run_is_shown_with_its_hosts_its_duration_and_its_whole_command(capsys: pytest.CaptureFixture[str]) -> None:
    header, ended, live = rows(capsys, [view("aaa", seconds=184, name="night 1", code="3f9a2c77"), view("bbb")])
    assert header == ["run", "name", "state", "hosts", "ranks", "started", "duration", "exit", "code", "script"]
    began = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(BEGAN / SECOND))
    assert ended == [
        "aaa", "night_1", "succeeded", "gpu[00:02]", "3", began, "3m04s", "0", "3f9a2c", "train.py --lr 3e-4",
    ]  # fmt: skip
    assert (live[:3], live[7:9]) == (["bbb", "-", "running"], ["-", "-"])


def test_runs_of_an_environment_have_a_column_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    header, row, other = rows(capsys, [view("aaa", environment="4be1aa"), view("bbb")])
    assert (header[9], row[9], other[9]) == ("environment", "4be1", "-")


def test_with_all_its_project_and_operator_stand_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    header, row = rows(capsys, [view("aaa", seconds=1)], everything=True)
    assert (header[9:11], row[9:11]) == (["project", "operator"], ["my_project", "alice@desk"])


def test_people_are_told_a_time_no_longer_than_needed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: Callable[[int], None]
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal(140)
    now = time.mktime((2026, 11, 22, 12, 0, 0, 0, 0, -1))
    monkeypatch.setattr(time, "time", lambda: now)
    today = int(now) * SECOND - 60 * SECOND
    found = [
        view(run, seconds=1, began=began) for run, began in (("a", today), ("b", today - DAY), ("c", today - 400 * DAY))
    ]
    print_runs(found)
    text = capsys.readouterr().out
    assert [text.count(word) for word in (" 11:59:00 ", " 11-21 11:59 ", " 2025-10-18 ")] == [1, 1, 1]


def test_one_line_names_the_folder_of_the_runs_and_says_what_is_marked() -> None:
    own = view("a", seconds=1, workdirs={"gpu00": "/home/u/toy"})
    marked = view("b", seconds=1, workdir="x", workdirs={"gpu00": "/home/u/toy@x"})
    other = view("c", seconds=1, workdirs={"gpu00": "/home/u/else"})
    assert folders_line([own]) == "folder: /home/u/toy"
    assert folders_line([own, marked]) == "folder: /home/u/toy; what is marked stands beside it"
    assert [folders_line(found) for found in ([marked], [own, other], [view("d")])] == ["", "", ""]


def test_runs_are_chosen_by_state_and_name_and_the_newest_of_them() -> None:
    found = [view("a", seconds=1, name="x"), view("b", name="x"), view("c", seconds=1), view("d", seconds=1, name="x")]
    runs = {
        "everything": filter_runs(found),
        "state": filter_runs(found, states=["running", "failed"]),
        "name": filter_runs(found, name="x"),
        "last": filter_runs(found, last=2),
        "all three": filter_runs(found, states=["succeeded"], name="x", last=1),
    }
    assert {what: "".join(one.run for one in some) for what, some in runs.items()} == {
        "everything": "abcd", "state": "b", "name": "abd", "last": "cd", "all three": "d",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("own", "known", "everything", "line"),
    [
        (0, 0, False, "no run on these hosts"),
        (0, 0, True, "no run on these hosts"),
        (0, 2, False, "no run of this project on these hosts; --all shows 2 runs of others"),
        (1, 2, False, "no run of this project matches; 1 run without --state and --name"),
        (2, 2, True, "no run matches; 2 runs without --state and --name"),
    ],
)
def test_nothing_to_show_says_why_and_what_would_be_shown(own: int, known: int, everything: bool, line: str) -> None:  # noqa: FBT001
    found = [view(letter) for letter in "ab"]
    assert empty_message(found[:own], found[:known], everything=everything) == line


def failure(rank: int, number: int, kind: int = OWN, *, recovered: bool = True) -> Failure:
    (worker,) = worker_failures(Told(rank).died(1, raised=f"ValueError: {rank}", start=0).evidence)
    worker = worker._replace(kind=kind, start=number, text=f"ValueError: {rank}")
    return Failure(f"gpu{rank:02}", 1, 0, worker, recovered)


def test_of_each_round_that_was_made_good_the_first_cause_is_told_and_the_others_counted() -> None:
    failures = [
        failure(3, 0, LOST_PEER), failure(1, 0), failure(2, 0), failure(0, 1), failure(0, 2, recovered=False),
    ]  # fmt: skip
    assert recovered_lines(failures) == [
        "recovered (attempt 1, round 0): rank 1 (gpu01:0): ValueError: 1; 2 others",
        "recovered (attempt 1, round 1): rank 0 (gpu00:0): ValueError: 0",
    ]
    assert recovered_lines([]) == []


def test_of_many_rounds_the_last_are_told_and_the_others_counted() -> None:
    lines = recovered_lines([failure(0, number) for number in range(8)])
    assert lines[0] == "recovered: 3 rounds before (--json has all of them)"
    assert [line.partition(":")[0] for line in lines[1:]] == [f"recovered (attempt 1, round {n})" for n in range(3, 8)]


def test_a_status_ends_with_what_helps_and_then_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    known: dict[str, Any] = {"code": "3f9a2c77", "environment": "4be1aa", "operator": "alice@desk"}
    told = Told(0, hosts=["gpu00"], world_size=1, started=BEGAN, script="train.py", argv=["a b"], **known)
    told.died(5, raised="torch.OutOfMemoryError: CUDA out of memory.").failed(6)
    print_status(run_views([told.node])[0])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith(" by alice@desk: train.py 'a b'")
    assert lines[2] == "code 3f9a2c, environment 4be1"
    assert lines[3].split() == ["host", "state", "ranks", "processes", "last_output"]
    assert [line.partition(":")[0] for line in lines[-2:]] == ["remedy", "verdict"]


def live_status(capsys: pytest.CaptureFixture[str], *, printed: float) -> list[str]:
    """The lines of a live run of one rank that has printed so many seconds ago."""
    told = Told(0, hosts=["gpu00"], world_size=1, started=BEGAN, operator="alice@desk", script="train.py", argv=[])
    told.fields["last_output"] = int((time.time() - printed) * SECOND)
    print_status(run_views([told.node])[0])
    return capsys.readouterr().out.splitlines()


def test_one_rank_is_no_ranks_and_output_of_this_moment_is_no_silence(capsys: pytest.CaptureFixture[str]) -> None:
    lines = live_status(capsys, printed=0.2)
    assert lines[0].endswith(": running, 1 rank")
    assert not [line for line in lines if "no rank has printed" in line]
    assert lines[-1].split()[-1] == "now"


def test_a_silence_is_said_with_its_length(capsys: pytest.CaptureFixture[str]) -> None:
    lines = live_status(capsys, printed=210)
    assert "no rank has printed for 3 min" in lines
    assert lines[-1].endswith("  3 min ago")
