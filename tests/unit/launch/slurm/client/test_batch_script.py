"""A run as a script for sbatch: the whole text, and what must never be in it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from clusterddp.errors import UsageError
from clusterddp.launch.slurm.client.batch_script import (
    END_OF_JSON,
    JobRequest,
    extra_line,
    nodelist,
    script,
    slurm_time,
)
from clusterddp.launch.slurm.shared_folder import holding_job_options
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.remote.shared.schema.record import parse_record
from clusterddp.remote.shared.slurm.job_record import (
    NOT_WRITTEN,
    SentCode,
    SlurmJob,
    in_array,
    index_of,
    read_slurm_job,
)
from clusterddp.remote.shared.workdir.sync_records import SyncRequest
from tests.unit.plan_made import PLAN, changed

GOLDEN = Path(__file__).parents[4] / "data" / "slurm" / "script.sh"


def job(**changes: Any) -> SlurmJob:
    plan = PLAN._replace(
        run="k3xa8w2mnp",
        env={},
        peers=(),
        members=(),
        store=None,
        host="node",
        node="0-node",
        record=RunRecord(hosts=(), run="k3xa8w2mnp", script="train.py", argv=("--lr", "3e-4"), name="night run"),
    )
    return SlurmJob(state="/home/u/.clusterddp", plan=plan, python="python3")._replace(**changes)


OPTIONS = {"partition": "a100", "time": "90", "no-requeue": ""}
ASKED = JobRequest(nodes=(2, 2), options=OPTIONS, lines=("--exclusive",))


SENT = SentCode(SyncRequest(workdir="~/work", digest="ab12", manifest=10, chunk_lists=2))


def text(request: JobRequest | None = None) -> str:
    return script(job(), request or ASKED, code="/home/u/.clusterddp/helper/0123.pyz", python="/usr/bin/python3")


def test_the_whole_script() -> None:
    assert text() == GOLDEN.read_text(encoding="utf-8")


def test_the_whole_script_where_no_folder_is_shared() -> None:
    said = script(job(sent_code=SENT), ASKED, python="python3", packed="aGVsbG8=\n")
    assert said == GOLDEN.with_name("unshared.sh").read_text(encoding="utf-8")
    assert subprocess.run(["bash", "-n"], input=said, text=True, check=False).returncode == 0


def test_a_shell_takes_it_and_the_job_in_it_is_the_one_that_was_written() -> None:
    assert subprocess.run(["bash", "-n"], input=text(), text=True, check=False).returncode == 0
    _, _, after = text().partition(f"<<'{END_OF_JSON}'\n")
    body = after.partition(f"\n{END_OF_JSON}\n")[0]
    assert parse_record(body.encode(), read_slurm_job) == job()


def test_what_the_login_host_reads_meanwhile_is_never_half_written() -> None:
    """A job that starts writes its JSON anew; a reader that met half of it took the run for one that is not there."""
    assert '>"$folder/job.json"' not in text()
    assert 'mv "$folder/job.json.new" "$folder/job.json"' in text()


@pytest.mark.parametrize("unable", ["ulimit -f 0", "mkdir() { false; }"])
def test_a_job_that_starts_on_a_full_disk_ends_and_keeps_its_json(tmp_path: Path, unable: str) -> None:
    """An empty file could still be written, and took the place of the good one: the run was gone."""
    (tmp_path / "job.json").write_text("submitted")
    begins = text().partition("a start of its own.\n")[2].partition("# `--export=NONE`")[0]
    shell = f"trap '' XFSZ\n{unable}\nfolder={tmp_path}\n{begins}\necho goes on"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (NOT_WRITTEN, "")
    assert (tmp_path / "job.json").read_text() == "submitted"


def test_a_job_of_a_range_of_nodes_has_as_many_as_there_are() -> None:
    elastic = script(job(plan=changed(job().plan, elastic=True)), ASKED, code="/c.pyz", python="python3")
    assert "--ntasks-per-node" not in elastic.partition("\n\n")[2].partition("\nstate=")[0]  # else it had the least
    assert "srun --kill-on-bad-exit=1 --ntasks-per-node=1 " in elastic


def test_a_job_with_whole_nodes_gives_its_step_all_their_gpus_unless_it_says_how_many() -> None:
    assert "${gpus:+--gpus=$gpus} " in text()
    one_line = ("--reservation=night --exclusive",)
    assert "${gpus:+--gpus=$gpus} " in text(JobRequest(nodes=(2, 2), options={}, lines=one_line))
    for more in (
        JobRequest(nodes=(2, 2), options={"gpus-per-node": "4"}, lines=("--exclusive",)),
        JobRequest(nodes=(2, 2), options={}, lines=("--exclusive", "--gres=gpu:2")),
        JobRequest(nodes=(2, 2), options={}, lines=("--exclusive", "--reservation=night --gres gpu:2")),
        JobRequest(nodes=(2, 2), options={}),
    ):
        assert "$gpus" not in text(more)


def test_a_job_of_an_array_counts_its_own_gpus_and_not_those_of_the_whole_array(tmp_path: Path) -> None:
    """The array's last task has the array's own number as its SLURM_JOB_ID."""
    counted = text().partition("those that it asks for.\n")[2].partition("\n\n")[0]
    (tmp_path / "scontrol").write_text('#!/bin/sh\n[ "$5" = 7_3 ] && echo "JOB_GRES=gpu:4" || echo "JOB_GRES=gpu:16"\n')
    (tmp_path / "scontrol").chmod(0o700)
    for array, gpus in (("SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=3", "4\n"), ("", "16\n")):
        shell = f"PATH={tmp_path}:$PATH SLURM_JOB_ID=7 {array}\n{counted}\necho $gpus"
        assert subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout == gpus


def test_a_python_below_the_home_is_found_on_the_node() -> None:
    """``ansible_python_interpreter: ~/…`` served the login host, and no job."""
    said = script(job(), ASKED, code="/c.pyz", python="~/my env/bin/python3")
    line = next(line for line in said.splitlines() if line.startswith("python="))
    shell = ["bash", "-c", f'HOME=/home/u\n{line}\necho "$python"']
    assert subprocess.run(shell, capture_output=True, text=True, check=True).stdout == "/home/u/my env/bin/python3\n"


def test_nodes_may_be_a_range_and_named() -> None:
    said = text(JobRequest(nodes=(2, 4), nodelist=nodelist(["gpu01", "gpu02"]), options={}))
    assert "#SBATCH --nodes=2-4\n#SBATCH --nodelist=gpu01,gpu02\n" in said
    with pytest.raises(UsageError, match="'gpu 01' is no name of a node"):
        nodelist(["gpu 01"])


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("--exclusive", "--exclusive"),
        ("#SBATCH --reservation=night", "--reservation=night"),
        ("--exclusive --gres gpu:4", "--exclusive --gres gpu:4"),
        ("--ntasks=4", "--ntasks=4"),  # an option of its own, though it begins another
        ("--cluster-constraint=gpu", "--cluster-constraint=gpu"),
    ],
)
def test_a_line_of_the_inventory_is_an_option_of_sbatch(line: str, option: str) -> None:
    assert extra_line(line) == option


@pytest.mark.parametrize(
    "line",
    [
        "rm -rf ~",
        "-N 3",
        "--export=ALL",
        "#SBATCH --chdir=/tmp",
        "--x\n#SBATCH -N9",
        "--clusters=gpu",
        "--cluster gpu",
        "--exp=ALL",
        "--reservation=night --clusters=gpu",
        "--reservation=night --export=ALL",
        "--reservation=night -N3",
        '--constraint="a',
    ],
)
def test_any_other_line_is_refused(line: str) -> None:
    with pytest.raises(UsageError, match=r"^clusterddp_slurm_lines: "):
        extra_line(line)


def test_a_job_that_only_holds_nodes_has_the_lines_words_as_sbatch_reads_them() -> None:
    lines = ("--gres gpu:4", '--constraint="a100&ib"', "--reservation=night")
    words = holding_job_options(JobRequest(nodes=(1, 2), options={}, lines=tuple(map(extra_line, lines))))
    assert words[:4] == ["--gres", "gpu:4", "--constraint=a100&ib", "--reservation=night"]


def test_a_time_limit_is_whole_minutes_and_no_less_than_asked_for() -> None:
    assert [slurm_time(seconds) for seconds in (1, 60, 61, 5400)] == ["1", "1", "2", "90"]


def test_a_job_too_short_for_a_notice_before_its_end_asks_for_none() -> None:
    def told(time: str, *lines: str) -> bool:
        return "--signal=" in text(JobRequest(nodes=(1, 1), options={"time": time} if time else {}, lines=lines))

    assert all(told(time) for time in ("", "90", "1:30:00", "5", "4:01", "0-1", "0", "UNLIMITED"))
    assert not any(told(time) for time in ("4", "1", "4:00", "00:02:00", "0-00:02"))
    assert not told("90", "--exclusive", "--time=00:02:00")
    assert not told("90", '--time="00:02:00"')
    assert told("2", "--time 00:20:00")


def test_an_arrays_script_gives_each_run_its_own_id_and_folder() -> None:
    base = job()
    array = job(plan=base.plan._replace(record=base.plan.record._replace(name=f"night run.{index_of('k3xa8w2mnp')}")))
    request = JobRequest(nodes=(2, 2), options={}, array="0-1%1", runs={0: "aaaaaaaaaa", 1: "bbbbbbbbbb"})
    said = script(array, request, code="/c.pyz", python="python3")
    assert "#SBATCH --job-name='night run'\n" in said
    assert "#SBATCH --array=0-1%1\n" in said
    assert "--output=/home/u/.clusterddp/slurm/%A_%a.out\n" in said
    shown = said.partition("# Code is run from")[0].partition("\n\nstate=")[2]
    chosen = subprocess.run(
        ["bash"],
        input=f"SLURM_ARRAY_TASK_ID=1\nstate={shown}\necho $folder",
        text=True,
        capture_output=True,
        check=True,
    )
    assert chosen.stdout == "/home/u/.clusterddp/slurm/bbbbbbbbbb\n"
    _, _, after = said.partition(f"<<'{END_OF_JSON}'\n")
    one = in_array(after.partition(f"\n{END_OF_JSON}\n")[0], "k3xa8w2mnp", "1", "bbbbbbbbbb")
    record = parse_record(one.encode(), read_slurm_job).plan.record
    assert (record.run, record.name) == ("bbbbbbbbbb", "night run.1")


def test_each_start_by_hand_in_one_job_is_a_start_of_its_own(tmp_path: Path) -> None:
    """The second one's nodes met the addresses and ports that the first one's had left, and waited for ever."""
    said = text(JobRequest(nodes=(2, 2), options={}, inside="77"))
    begins = said.partition("a start of its own.\n")[2].partition("# `--export=NONE`")[0]
    shell = ["bash", "-c", f"folder={tmp_path} SLURM_JOB_ID=77\n{begins}\nprintenv SLURM_RESTART_COUNT"]
    counted = [subprocess.run(shell, capture_output=True, text=True, check=True).stdout for _ in range(3)]
    assert counted == ["0\n", "1\n", "2\n"]
    assert sorted(path.name for path in tmp_path.glob("start.*")) == ["start.77.0", "start.77.1", "start.77.2"]


def test_a_script_for_a_job_that_is_there_asks_slurm_for_nothing() -> None:
    said = text(JobRequest(nodes=(2, 2), options={"partition": "a100"}, inside="77"))
    assert "#SBATCH" not in said
    assert "--overlap --nodes=2 --ntasks=2 --ntasks-per-node=1 " in said
