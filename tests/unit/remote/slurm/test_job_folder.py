"""The folder of a run that Slurm starts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.slurm.job_folder import JobFolder
from clusterddp.remote.slurm.shared_exchange import NodeFailure, SharedExchange
from clusterddp.remote.system.bootstrap import Refused

if TYPE_CHECKING:
    from pathlib import Path


def test_a_run_that_is_stopped_while_its_job_waits_leaves_no_secrets(tmp_path: Path) -> None:
    folder = JobFolder.of(str(tmp_path), "r1")
    secrets = tmp_path / "slurm" / "r1" / "secrets.json"
    secrets.parent.mkdir(parents=True)
    secrets.write_text(json.dumps({"TOKEN": "value"}))
    folder.order_stop("by another command", 1.0)
    assert not secrets.exists()
    order = folder.stop_order()
    assert order is not None
    assert order.reason == "by another command"
    folder.order_stop("again", 1.0)


def test_a_secret_whose_value_is_not_there_is_named(tmp_path: Path) -> None:
    folder = JobFolder(str(tmp_path))
    assert folder.secrets(()) == {}
    with pytest.raises(Refused, match=f"the value of TOKEN is not in {tmp_path}/secrets.json"):
        folder.secrets(("TOKEN",))
    (tmp_path / "secrets.json").write_text(json.dumps({"TOKEN": "value", "OTHER": "x"}))
    assert folder.secrets(("TOKEN",)) == {"TOKEN": "value"}


def test_the_attempt_is_that_of_the_last_start_or_the_one_it_was_requeued_for(tmp_path: Path) -> None:
    folder = JobFolder.of(str(tmp_path), "r1")

    def begin(start: str) -> None:
        (tmp_path / "slurm" / "r1" / start).mkdir(parents=True)

    def spool_of(attempt: int) -> None:
        (tmp_path / "runs" / "r1" / str(attempt) / "0-gpu01").mkdir(parents=True)

    (tmp_path / "slurm" / "r1").mkdir(parents=True)
    told = [folder.attempt()]  # it waits
    begin("start.7.9")
    told.append(folder.attempt())  # its nodes meet
    folder.write_attempt("start.7.9", 1)
    spool_of(1)
    told.append(folder.attempt())
    folder.write_requeued("start.7.9", requeued=True)
    told.append(folder.attempt())
    begin("start.7.10")
    told.append(folder.attempt())
    folder.write_attempt("start.7.10", 2)
    spool_of(2)
    spool_of(3)  # started again within the job
    told.append(folder.attempt())
    assert told == [0, 1, 1, 2, 2, 3]
    assert folder.starts() == ["start.7.9", "start.7.10"]


def test_relaunches_are_the_starts_of_the_job_and_attempts_within_one_but_not_after_a_preemption(
    tmp_path: Path,
) -> None:
    folder = JobFolder.of(str(tmp_path), "r1")

    def begin(start: str, attempt: int = 0) -> None:
        (tmp_path / "slurm" / "r1" / start).mkdir(parents=True)
        if attempt:
            folder.write_attempt(start, attempt)

    begin("start.7.0", 1)
    assert folder.relaunches("start.7.0", 1) == 0
    begin("start.8.0", 2)  # the same script, submitted again by hand
    assert folder.relaunches("start.8.0", 2) == 0
    assert folder.relaunches("start.8.0", 3) == 1  # by its hosts themselves
    begin("start.8.1")  # its node was lost before one began
    assert folder.relaunches("start.8.1") == 1
    begin("start.8.2", 4)
    assert folder.relaunches("start.8.2", 4) == 2
    folder.write_preempted("start.8.2")
    begin("start.8.3", 5)
    assert folder.relaunches("start.8.3", 5) == 2
    begin("start.8.11", 9)  # of those between nothing is seen: other nodes had them, and share no folder
    assert folder.relaunches("start.8.11", 9) == 10


def test_an_order_to_one_start_is_none_for_the_next(tmp_path: Path) -> None:
    folder = JobFolder.of(str(tmp_path), "r1")
    (tmp_path / "slurm" / "r1" / "start.7.0").mkdir(parents=True)
    folder.order_start_to_stop("start.7.0", "by Slurm (SIGTERM)", 1.0)
    assert folder.stop_order("start.7.0")
    assert folder.stop_order() is None
    assert folder.stop_order("start.7.1") is None


def test_why_a_start_failed_is_told_before_what_slurm_ended_for_it(tmp_path: Path) -> None:
    folder = JobFolder.of(str(tmp_path), "r1")
    (tmp_path / "slurm" / "r1" / "start.7.9").mkdir(parents=True)
    names = ["gpu01", "gpu02", "gpu03"]
    for place, (message, ended) in enumerate([("status -15", True), ("no torch", False), ("status -9", True)]):
        failure = NodeFailure(f"{names[place]}: {message}", ended)
        SharedExchange(folder.file("start.7.9"), names, place).fail(failure)
    assert list(folder.failures()) == ["gpu02: no torch", "gpu01: status -15", "gpu03: status -9"]
