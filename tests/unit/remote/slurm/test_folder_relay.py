"""A run's folder on two nodes that share none, kept alike by what each side says of its own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.slurm.folder_relay import HUB, Relay, encode_file, relay_step, relay_task
from clusterddp.remote.slurm.job_folder import JobFolder

if TYPE_CHECKING:
    from pathlib import Path

START = "start.7.0"


def folder(path: Path) -> JobFolder:
    (path / "slurm" / "r1" / START).mkdir(parents=True)
    return JobFolder.of(str(path), "r1")


def pass_on(one: Relay, other: Relay) -> int:
    """Give the other what is new to one; how many files that were."""
    new_lines = list(one.new_lines())
    for text in new_lines:
        for line in text.splitlines(keepends=True):
            assert len(line) < 1000  # Slurm keeps such lines whole
            assert other.take(line)
    return len(new_lines)


def test_what_is_new_on_one_side_is_on_the_other_and_told_once(tmp_path: Path) -> None:
    here, there = folder(tmp_path / "a"), folder(tmp_path / "b")
    one, other = Relay(here, START), Relay(there, START)
    here.order_start_to_stop(START, "by Slurm", 1.0)
    large = bytes(range(256)) * 100
    (tmp_path / "a" / "slurm" / "r1" / "job.json").write_bytes(large)
    (tmp_path / "a" / "slurm" / "r1" / START / "facts.1.json.77-ab.tmp").write_bytes(b"half")
    assert pass_on(one, other) == 2
    assert (tmp_path / "b" / "slurm" / "r1" / "job.json").read_bytes() == large
    assert there.stop_order(START) == here.stop_order(START)
    assert pass_on(one, other) == 0
    assert pass_on(other, one) == 0  # what came from there is not said back
    there.write_notice_handled(START, 1)
    assert pass_on(other, one) == 1
    assert here.notice_handled(START)


@pytest.mark.parametrize(
    "line",
    [
        b"step 1 loss 2.31\n",
        b"clusterddp-file 0 1\n",
        encode_file("../r2/stop.json", b"{}"),
        encode_file(f"{START}/../stop.json", b"{}"),
        encode_file("start.8.0/stop.json", b"{}"),
        encode_file("script", b"{}"),
        b"clusterddp-file 3 9 job.json e30=\n",
        b"clusterddp-file 0 1 job.json e\n",
    ],
)
def test_nothing_else_is_written_whatever_the_other_side_says(tmp_path: Path, line: bytes) -> None:
    there = folder(tmp_path)
    before = sorted(path for path in tmp_path.rglob("*"))
    Relay(there, START).take(line)
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_a_step_and_a_task_have_the_same_files_and_the_tasks_exit_code(tmp_path: Path) -> None:
    hub, task = folder(tmp_path / "hub"), tmp_path / "task" / "slurm" / "r1"
    (tmp_path / "hub" / "slurm" / "r1" / "job.json").write_text("{}")
    own = f"open({str(task / START / 'facts.1.json')!r}, 'w').write('[1]'); raise SystemExit(7)"
    program = (
        "from clusterddp.remote.slurm.folder_relay import relay_task\n"
        "from clusterddp.remote.slurm.job_folder import JobFolder\n"
        f"raise SystemExit(relay_task(JobFolder({str(task)!r}), {START!r}, {[sys.executable, '-c', own]!r}))"
    )
    assert relay_step(hub, START, [sys.executable, "-c", program]) == 7
    assert (tmp_path / "hub" / "slurm" / "r1" / START / "facts.1.json").read_text() == "[1]"
    assert not task.exists()  # nothing of it is needed there any more


def test_a_task_on_the_steps_own_host_uses_its_folder(tmp_path: Path) -> None:
    hub = folder(tmp_path)
    (tmp_path / "slurm" / "r1" / START / HUB).touch()
    assert relay_task(hub, START, [sys.executable, "-c", "raise SystemExit(3)"]) == 3
    assert (tmp_path / "slurm" / "r1" / START).is_dir()
