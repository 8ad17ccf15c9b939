"""Two jobs at once; the controller, the login host and a node that go away while a run is followed; no SSH at all."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import CLUSTERDDP, WAIT
from tests.lab.system import wait_until
from tests.slurm.seen import HOME, STEPS, nothing_is_left, thorough, user_of
from tests.slurm.test_requeue import notice
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab.slurm import Slurm

need_torch()
pytestmark = [pytest.mark.torch, thorough]

SCRIPT = STEPS + 'print("done", flush=True)\n'
# Leaves at the notice, once the test lets it; is done at its second start.
LEAVE = (
    WAIT
    + """
import signal
def leave(*_):
    print("noticed", flush=True)
    wait_for(sys.argv[1])
    sys.exit(0)
signal.signal(signal.SIGUSR1, leave)
print("begun", flush=True)
wait_for(sys.argv[1])
print("done", flush=True)
"""
)


def test_two_jobs_on_the_same_nodes_keep_apart(slurm: Slurm, tmp_path: Path) -> None:
    user = user_of(slurm, tmp_path, {"steps.py": SCRIPT})
    words = ("run", "--nnodes", "2", "steps.py", f"{HOME}/both")
    with user.start(*words) as one, user.start(*words) as other:
        for live in (one, other):
            live.wait_for("step 0", times=2)
        slurm.run("touch", f"{HOME}/both")
        ends = [one.end(), other.end()]
    assert [done.code for done in ends] == [0, 0]
    for done in ends:
        said = sorted((line.rank, line.text) for line in done.workers)
        assert said == [(rank, text) for rank in (0, 1) for text in ("done", f"step 0 {done.run}")]
    nothing_is_left(slurm)


def test_who_follows_a_run_goes_on_after_the_controller_and_the_login_host_were_away(
    own_slurm: Slurm, tmp_path: Path
) -> None:
    user = user_of(own_slurm, tmp_path, {"steps.py": SCRIPT})
    with user.start("run", "--nnodes", "2", "steps.py", f"{HOME}/first", f"{HOME}/second") as live:
        live.wait_for("step 0", times=2)
        own_slurm.stop_controller()
        own_slurm.compute[0].run(["touch", f"{HOME}/first"])
        live.wait_for("step 1", times=2)
        own_slurm.start_controller()
        own_slurm.controller.power_off()
        own_slurm.compute[0].run(["touch", f"{HOME}/second"])
        own_slurm.boot(own_slurm.controller)
        done = live.end()
    assert done.code == 0, done.err
    said = sorted(line.text.rsplit(" ", 1)[0] if "step" in line.text else line.text for line in done.workers)
    assert said == ["done"] * 2 + ["step 0"] * 2 + ["step 1"] * 2
    nothing_is_left(own_slurm)


def test_what_the_nodes_tell_is_shown_and_stop_is_proved_while_the_controller_is_away(
    own_slurm: Slurm, tmp_path: Path
) -> None:
    user = user_of(own_slurm, tmp_path, {"steps.py": SCRIPT})
    run = user.run("run", "--nnodes", "2", "--detach", "steps.py", f"{HOME}/never").lines[0]
    user.hear(run, "step 0", times=2)
    own_slurm.stop_controller()
    assert user.status(run)["state"] == "running"
    assert sorted(line.text for line in user.run("logs", run).workers) == [f"step 0 {run}"] * 2
    stopped = user.run("stop", run)
    assert stopped.code == 0, stopped.err
    assert all(f"gpu0{node}: " in stopped.err for node in (1, 2))
    assert "does not answer" not in stopped.err
    own_slurm.start_controller()
    assert user.run("wait", run).code == 143
    nothing_is_left(own_slurm)


def test_a_job_is_requeued_though_the_controller_is_away_when_its_workers_have_left(
    own_slurm: Slurm, tmp_path: Path
) -> None:
    user, controller = user_of(own_slurm, tmp_path, {"leave.py": LEAVE}), own_slurm.controller
    with user.start("run", "--nnodes", "2", "--relaunch", "1", "leave.py", f"{HOME}/leave") as live:
        live.wait_for("begun", times=2)
        job = user.status(live.run)["job"]
        notice(own_slurm, job)
        live.wait_for("noticed", times=2)
        own_slurm.stop_controller()
        controller.run(["touch", f"{HOME}/leave"])
        output = ["cat", f"{HOME}/.clusterddp/slurm/{job}.out"]
        wait_until("its script asks for a requeue", lambda: "attempt 2 comes" in controller.run(output).stdout)
        own_slurm.start_controller()
        live.wait_for("done", times=2)
        done = live.end()
    assert done.code == 0, done.err
    assert "attempt 2 on gpu01, gpu02" in done.notes
    nothing_is_left(own_slurm)


def test_a_node_that_loses_its_power_is_another_attempt_once_it_is_back(own_slurm: Slurm, tmp_path: Path) -> None:
    user = user_of(own_slurm, tmp_path, {"steps.py": SCRIPT})
    with user.start("run", "--nnodes", "2", "--relaunch", "1", "steps.py", f"{HOME}/back") as live:
        live.wait_for("step 0", times=2)
        own_slurm.compute[1].power_off()
        live.wait_for("is queued", stream="err")
        own_slurm.boot(own_slurm.compute[1])
        live.wait_for("step 0", times=4)
        own_slurm.run("touch", f"{HOME}/back")
        done = live.end()
    assert done.code == 0, done.err
    assert "attempt 2 on gpu01, gpu02" in done.notes
    nothing_is_left(own_slurm)


def test_a_run_whose_first_node_is_lost_again_and_again_ends_when_its_relaunches_are_used(
    own_slurm: Slurm, tmp_path: Path
) -> None:
    user, node = user_of(own_slurm, tmp_path, {"steps.py": SCRIPT}), own_slurm.compute[0]
    queued = ("squeue", "--noheader", "--states=PENDING", "--format=%i")
    with user.start("run", "--nnodes", "2", "--relaunch", "1", "steps.py", f"{HOME}/back") as live:
        for attempt in (1, 2):
            live.wait_for("step 0", times=2 * attempt)
            node.power_off()
            wait_until("Slurm queues the job again", lambda: own_slurm.run(*queued).strip(), timeout=60)
            own_slurm.boot(node)
        done = live.end()
    line = "gpu01: Slurm has started the job again, as after a lost node; all 1 relaunches are used"
    assert (done.code, done.notes[-1]) == (125, line), done.err
    nothing_is_left(own_slurm)


def test_a_stop_that_a_node_does_not_answer_says_what_slurm_says_of_its_job(own_slurm: Slurm, tmp_path: Path) -> None:
    user = user_of(own_slurm, tmp_path, {"steps.py": SCRIPT})
    run = user.run("run", "--nnodes", "2", "--detach", "steps.py", f"{HOME}/never").lines[0]
    user.hear(run, "step 0", times=2)
    own_slurm.compute[1].power_off()
    stopped = user.run("stop", run)
    assert stopped.code != 0, stopped.err
    assert "gpu02: 0 processes ended, not proved: Slurm says " in stopped.err
    assert "gpu01: " in stopped.err


def test_a_user_on_the_login_host_itself_needs_no_inventory(slurm: Slurm) -> None:
    host = slurm.controller
    host.write("own project/speak.py", "import os\nprint('rank', os.environ['RANK'])\n")
    there = f"cd '{HOME}/own project' && CLUSTERDDP_NO_COLOR=1 "
    command = f"{CLUSTERDDP} run --launcher slurm --nnodes 2 --name here speak.py"
    done = host.run(["sh", "-c", there + command], check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0 gpu01:0] rank 0", "[1 gpu02:0] rank 1"]
    told = host.run(["sh", "-c", f"{there}{CLUSTERDDP} logs here"]).stdout
    assert sorted(told.splitlines()) == ["[0 gpu01:0] rank 0", "[1 gpu02:0] rank 1"]
    wait_until("no job is left", lambda: not slurm.run("squeue", "--noheader"), timeout=60)


def test_what_workers_write_in_the_shared_folder_is_pulled_from_the_login_host(slurm: Slurm, tmp_path: Path) -> None:
    user = user_of(
        slurm, tmp_path, {"write.py": "import os\nopen('model.' + os.environ['RANK'], 'w').write('weights')\n"}
    )
    assert user.run("run", "--nnodes", "2", "--name", "saving", "write.py").code == 0
    done = user.run("pull", "saving", f"{tmp_path}/all")
    assert (done.code, done.out) == (0, f"{tmp_path}/all: 2 files, 7 bytes from gpu00\n"), done.err
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["model.0", "model.1"]
    assert user.run("pull", "model.1", f"{tmp_path}/one").code == 0
    assert (tmp_path / "one").read_text() == "weights"
    assert user.run("pull", "saving", f"{tmp_path}/none", "--host", "gpu07").notes[-1] == (
        "--host gpu07: none of gpu01, gpu02"
    )
    nothing_is_left(slurm)


def test_down_ends_a_run_and_removes_all_of_a_project(slurm: Slurm, tmp_path: Path) -> None:
    user = user_of(slurm, tmp_path, {"steps.py": SCRIPT})
    assert user.run("run", "--nnodes", "1", "steps.py").code == 0
    run = user.run("run", "--nnodes", "2", "--detach", "steps.py", f"{HOME}/never").lines[0]
    user.hear(run, "step 0", times=2)
    down = user.run("down", "--purge", "--yes")
    assert down.code == 0, down.err
    assert f"will be stopped: run {run} on 0 hosts" not in down.err
    assert sum("proved empty" in note for note in down.notes) == 2
    assert user.run("runs", "--json").json == []
    kept = slurm.controller.run(["sh", "-c", f"ls -d {HOME}/.clusterddp/*/*{run}*"], check=False).stdout
    assert kept == ""
    nothing_is_left(slurm)


def test_a_job_whose_submission_was_cut_short_never_runs(own_slurm: Slurm, tmp_path: Path) -> None:
    user = user_of(own_slurm, tmp_path, {"steps.py": SCRIPT})
    assert user.run("runs").code == 0  # connected once: our code is there
    own_slurm.controller.run(["pkill", "-STOP", "-x", "slurmctld"], user="root")
    done = user.run("run", "--nnodes", "2", "steps.py")
    own_slurm.controller.run(["pkill", "-CONT", "-x", "slurmctld"], user="root")
    assert done.code == 125, done.err
    assert "timed out" in done.notes[-1] or "did not end in time" in done.notes[-1]
    nothing_is_left(own_slurm)
    assert own_slurm.controller.run(["sh", "-c", f"ls {HOME}/.clusterddp/runs"], check=False).stdout == ""


@pytest.fixture
def allocated(slurm: Slurm) -> Iterator[str]:
    """The number of a job with both nodes that is there for whoever uses it."""
    said = slurm.controller.run(["salloc", "--no-shell", "--nodes=2", "--gpus-per-node=1"]).stderr
    job = said.split("Granted job allocation ")[1].split()[0]
    yield job
    slurm.run("scancel", job)


def test_a_run_in_an_allocation_takes_its_nodes_and_leaves_it_as_it_was(
    slurm: Slurm, tmp_path: Path, allocated: str
) -> None:
    user = user_of(slurm, tmp_path, {"steps.py": SCRIPT})
    user.env["SLURM_JOB_ID"] = allocated
    done = user.run("run", "--nproc-per-node", "1", "--name", "within", "steps.py")
    assert done.code == 0, done.err
    assert f"in Slurm's job {allocated}: 2 of its 2 nodes" in done.notes
    said = [(f"gpu0{rank + 1}", text) for rank in (0, 1) for text in ("done",)]
    assert sorted((line.host, line.text) for line in done.workers) == said
    with user.start(
        "run", "--nnodes", "1", "--nproc-per-node", "1", "--name", "again", "steps.py", f"{HOME}/never"
    ) as live:
        live.wait_for("step 0")
        assert user.status("again")["job"] == allocated
        assert user.run("stop", "again").code == 0
        ended = live.end()
    assert (ended.code, ended.notes[-1]) == (143, "stopped: by another command")
    assert user.status("within")["state"] == "succeeded"
    assert slurm.run("squeue", "--noheader", "--format=%i %T").split("\n") == [f"{allocated} RUNNING", ""]
    many = user.run("run", "--nnodes", "3", "steps.py")
    assert many.notes[-1].startswith(f"--nnodes 3: Slurm's job {allocated}, which this shell is in, has 2")


def test_the_script_of_a_dry_run_in_an_allocation_works_by_hand_again_and_again(
    slurm: Slurm, tmp_path: Path, allocated: str
) -> None:
    user = user_of(slurm, tmp_path, {"steps.py": SCRIPT})
    user.env["SLURM_JOB_ID"] = allocated
    run = ("run", "--nproc-per-node", "1", "steps.py")
    assert user.run(*run).code == 0  # the code is in its place
    slurm.controller.write("by-hand.sh", user.run(*run[:-1], "--dry-run", "steps.py").out)
    for _ in range(2):
        by_hand = ("env", f"SLURM_JOB_ID={allocated}", "bash", f"{HOME}/by-hand.sh")
        assert ": succeeded" in slurm.controller.run(by_hand).stdout


def test_a_run_on_a_node_of_an_interactive_step_needs_neither_inventory_nor_option(slurm: Slurm) -> None:
    host = slurm.controller
    host.write("own project/speak.py", "import os\nprint('rank', os.environ['RANK'])\n")
    within = f"cd '{HOME}/own project' && {CLUSTERDDP} run speak.py"
    step = ("srun", "--nodes=1", "--ntasks=1")
    done = host.run(["salloc", "--nodes=2", *step, "sh", "-c", within], check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0 gpu01:0] rank 0", "[1 gpu02:0] rank 1"]
    wait_until("no job is left", lambda: not slurm.run("squeue", "--noheader"), timeout=60)
    first = f'[ "$SLURM_PROCID" != 0 ] || {{ {within} >said 2>&1; }}'  # a shell on the second node has nothing to read
    terminal = shlex.join(["srun", "--pty", "--nodes=2", "--ntasks-per-node=1", "sh", "-c", first])
    done = host.run(["script", "--quiet", "--return", "--command", terminal, "/dev/null"], check=False)
    said = host.run(["cat", f"{HOME}/own project/said"]).stdout
    assert done.returncode == 0, said
    assert [line for line in sorted(said.splitlines()) if line.startswith("[")] == [
        "[0 gpu01:0] rank 0",
        "[1 gpu02:0] rank 1",
    ]
    wait_until("no job is left", lambda: not slurm.run("squeue", "--noheader"), timeout=60)
