"""Slurm where the login host and the nodes share no folder."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from clusterddp import Cluster
from clusterddp.project.project import find
from tests.integration.cli import WAIT
from tests.lab.system import wait_until
from tests.slurm.seen import nothing_is_left, thorough, user_of
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.cli import User
    from tests.lab.slurm import Slurm

need_torch()
pytestmark = pytest.mark.torch

STAY = (
    WAIT
    + """
import signal
signal.signal(signal.SIGUSR1, lambda *_: print("noticed", flush=True))
print("begun", os.environ["RANK"], os.environ.get("TOKEN", "")[::-1], flush=True)
wait_for(sys.argv[1])
print("done", flush=True)
sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 and os.environ["RANK"] == "1" else 0)
"""
)
SAVE = """
import os, signal, sys, threading
saved = os.environ["CLUSTERDDP_RUN_DIR"] + "/saved." + os.environ["RANK"]
attempt = 2 if os.path.exists(saved) else 1
def save(*_):
    open(saved, "w").close()
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGUSR1, save)
print("begun", attempt, flush=True)
if attempt == 1:
    threading.Event().wait(600)
"""
SPEAK = """
import os, sys
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], *sys.argv[1:], flush=True)
"""


@thorough
def test_nodes_that_share_no_folder_are_told_in_one_line(unshared_slurm: Slurm, tmp_path: Path) -> None:
    user = user_of(unshared_slurm, tmp_path, {"speak.py": SPEAK})
    done = user.run("run", "--nnodes", "2", "speak.py")
    assert done.code == 125, done.err
    why = "gpu01 and gpu00 share no folder: clusterddp_state has to be in one that all nodes see"
    assert done.notes[-1].startswith(why)
    nothing_is_left(unshared_slurm)
    unshared_slurm.compute[0].run(
        ["install", "-d", "-m", "700", ".clusterddp", ".clusterddp/slurm"]
    )  # where the job's output goes
    assert user.run("run", "--nnodes", "2", "speak.py").notes[-1].startswith(why)


@pytest.fixture
def unshared_user(unshared_slurm: Slurm, tmp_path: Path) -> User:
    return user_of(
        unshared_slurm, tmp_path, {"speak.py": SPEAK, "stay.py": STAY, "save.py": SAVE}, clusterddp_slurm_shared=False
    )


def test_a_run_without_a_shared_folder_is_followed_looked_at_signalled_and_stopped(
    unshared_user: User, unshared_slurm: Slurm
) -> None:
    user = unshared_user
    done = user.run("run", "--nnodes", "2", "--name", "night", "--detach", "stay.py", "/never")
    assert (done.code, len(done.lines)) == (0, 1), done.err
    run = done.lines[0]
    with user.start("logs", "--follow", "night") as live:
        live.wait_for("[0 gpu01:0] begun 0")
        live.wait_for("[1 gpu02:0] begun 1")
        status = user.status(run)
        assert (status["state"], status["world_size"], status["launcher"]) == ("running", 2, "slurm")
        assert "stay.py" in user.run("status", status["job"], "--stacks").out
        assert user.run("signal", "night", "USR1").code == 0
        live.wait_for("noticed", times=2)
        stopped = user.run("stop", "night", "--grace", "5")
        assert stopped.code == 0, stopped.err
        assert [line.split(": ")[1] for line in stopped.notes[1:]] == ["gpu01", "gpu02"]
        assert all(line.endswith("proved empty") for line in stopped.notes[1:])
        ended = live.end()
    assert (ended.code, ended.notes[-1]) == (143, f"run {run}: stopped: by another command")
    nothing_is_left(unshared_slurm)
    assert sorted(user.run("logs", run).lines) == sorted(ended.lines)  # the nodes cannot be reached any more
    assert [host["name"] for host in user.status(run)["hosts"]] == ["gpu01", "gpu02"]


@thorough
def test_secrets_reach_nodes_without_a_shared_folder_by_who_follows_the_run(
    unshared_user: User, unshared_slurm: Slurm
) -> None:
    user = unshared_user
    user.env.update(TOKEN="s3cret")
    refused = user.run("run", "--nnodes", "2", "--secret", "TOKEN", "--detach", "stay.py", "/tmp")
    assert refused.code == 125
    assert "--detach: nobody could bring TOKEN to nodes that share no folder" in refused.notes[-1]
    done = user.run("run", "--nnodes", "2", "--secret", "TOKEN", "stay.py", "/tmp")
    assert done.code == 0, done.err
    assert sorted(line.text for line in done.workers) == ["begun 0 terc3s", "begun 1 terc3s", "done", "done"]
    for host in unshared_slurm.lab.hosts:
        assert not host.run(["grep", "-rl", "s3cret", ".clusterddp"], check=False).stdout
    nothing_is_left(unshared_slurm)


@thorough
def test_secrets_reach_nodes_without_a_shared_folder_by_who_waits_in_python(
    unshared_slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = user_of(unshared_slurm, tmp_path, {"stay.py": STAY}, clusterddp_slurm_shared=False)
    monkeypatch.setenv("TOKEN", "s3cret")
    project = find(user.folder)
    with Cluster.from_inventory(user.folder / "inventory.yaml", project=project) as cluster:
        run = cluster.run("stay.py", ["/tmp"], nnodes=2, secret="TOKEN")
        assert run.wait("5m").state == "succeeded"
        said = sorted(line.text for line in run.logs() if line.rank is not None)
    assert said == ["begun 0 terc3s", "begun 1 terc3s", "done", "done"]
    nothing_is_left(unshared_slurm)


@thorough
def test_a_secret_that_a_job_raises_is_struck_on_nodes_and_on_the_login_host(
    unshared_user: User, unshared_slurm: Slurm
) -> None:
    user = unshared_user
    user.env.update(TOKEN="hunter2-token")
    user.write("shout.py", "import os\nraise ValueError('401 for ' + os.environ['TOKEN'])\n")
    done = user.run("run", "--nnodes", "2", "--secret", "TOKEN", "--show", "5", "shout.py")
    assert "failed first" in done.notes[-1]
    assert "ValueError: 401 for ********" in done.notes[-1]
    asked = [user.run(*words) for words in (("status", done.run), ("status", "--json", done.run), ("runs", "--json"))]
    assert "hunter2" not in "".join(one.out + one.err for one in (done, *asked))
    for host in unshared_slurm.lab.hosts:
        found = host.run(["grep", "-rlF", "hunter2", ".clusterddp"], check=False).stdout.splitlines()
        assert [path for path in found if not path.endswith(".err")] == []
    nothing_is_left(unshared_slurm)


@thorough
def test_code_that_is_more_than_a_script_holds_is_sent_by_who_follows_the_run_and_again_after_a_requeue(
    unshared_user: User, unshared_slurm: Slurm
) -> None:
    user = unshared_user
    (user.folder / "weights.bin").write_bytes(random.Random(1).randbytes(30 << 20))
    user.write("sized.py", SAVE.replace('"begun", attempt', '"begun", attempt, os.path.getsize("weights.bin")'))
    refused = user.run("run", "--nnodes", "2", "--detach", "sized.py")
    assert refused.code == 125
    assert "--detach: nobody could bring the code, more than a job's script holds, to nodes" in refused.notes[-1]
    with user.start("run", "--nnodes", "2", "--relaunch", "1", "--name", "large", "sized.py") as live:
        live.wait_for(f"begun 1 {30 << 20}", times=2)
        unshared_slurm.run("scancel", "--batch", "--signal=USR1", user.status("large")["job"])
        live.wait_for(f"begun 2 {30 << 20}", times=2)
        done = live.end()
    assert done.code == 0, done.err
    nothing_is_left(unshared_slurm)
    for host in unshared_slurm.lab.hosts:
        kept = host.run(["sh", "-c", "ls .clusterddp/slurm/*/code"], check=False).stdout
        assert not kept, (host.name, kept)


@thorough
def test_a_run_that_nobody_follows_has_its_jobs_exit_code_and_says_where_its_lines_and_files_are(
    unshared_user: User, unshared_slurm: Slurm, tmp_path: Path
) -> None:
    unshared_user.write(
        "late.py", STAY.replace("wait_for(sys.argv[1])", "open('kept.' + os.environ['RANK'], 'w').close()")
    )
    run = unshared_user.run("run", "--nnodes", "2", "--detach", "late.py", "/tmp", "7").lines[0]
    wait_until("no job is left", lambda: not unshared_slurm.run("squeue", "--noheader"), timeout=60)
    done = unshared_user.run("wait", run)
    said = "its job ended with 7; its lines are on gpu01, gpu02 alone, for nobody followed its end"
    assert (done.code, done.notes[-1]) == (7, f"run {run}: {said}")
    pulled = unshared_user.run("pull", run, f"{tmp_path}/late")  # its files are told by the nodes alone
    assert pulled.code == 0, pulled.err
    assert sorted(told(tmp_path / "late")) == ["kept.0", "kept.1"]
    change = ["scontrol", "update", "nodename=gpu02", "reason=test"]
    unshared_slurm.controller.run([*change, "state=drain"], user="root")
    lacking = unshared_user.run("pull", run, f"{tmp_path}/less")
    unshared_slurm.controller.run([*change, "state=resume"], user="root")
    assert lacking.code == 1
    assert "gpu02: Slurm says that it is IDLE+DRAIN" in lacking.notes
    assert sorted(told(tmp_path / "less")) == ["kept.0"]
    nothing_is_left(unshared_slurm)


@thorough
def test_a_job_without_a_shared_folder_that_is_requeued_is_the_next_attempt_and_all_lines_are_kept(
    unshared_user: User, unshared_slurm: Slurm
) -> None:
    user = unshared_user
    words = ("run", "--nnodes", "2", "--relaunch", "1", "--name", "twice", "save.py")
    with user.start(*words) as live:
        live.wait_for("begun", times=2)
        unshared_slurm.run("scancel", "--batch", "--signal=USR1", user.status("twice")["job"])
        live.wait_for("begun", times=4)
        done = live.end()
    assert done.code == 0, done.err
    assert "attempt 2 on gpu01, gpu02" in done.notes
    nothing_is_left(unshared_slurm)
    said = [line.split("] ")[1] for line in user.run("logs", "twice", "--attempt", "all").lines if "]" in line]
    assert sorted(said) == ["begun 1"] * 2 + ["begun 2"] * 2 + ["saved"] * 2


@thorough
def test_a_run_without_a_shared_folder_shows_its_lines_and_ends_with_its_code(
    unshared_user: User, unshared_slurm: Slurm
) -> None:
    user = unshared_user
    done = user.run("run", "--nnodes", "2", "speak.py", "--lr", "3e-4")
    assert done.code == 0, done.err + done.out
    said = sorted((line.rank, line.host, line.text) for line in done.workers)
    assert said == [(rank, f"gpu0{rank + 1}", f"rank {rank} of 2 --lr 3e-4") for rank in range(2)]
    nothing_is_left(unshared_slurm)
    assert sorted(user.run("logs", done.run).lines) == sorted(done.lines)
    failed = user.run("run", "--nnodes", "2", "--name", "seven", "stay.py", "/tmp", "7")
    assert (failed.code, failed.notes[-1]) == (7, "rank 1 (gpu02:0) failed first: exit code 7")
    assert user.run("wait", "seven").code == 7
    nothing_is_left(unshared_slurm)


WRITE = (
    WAIT
    + """
rank = os.environ["RANK"]
os.makedirs("out", exist_ok=True)
with open(f"out/model.{rank}", "w") as file:
    file.write(f"weights {rank}")
with open("out/log", "w") as file:
    file.write(f"of {rank}")
print("written", flush=True)
wait_for(sys.argv[1])
"""
)


def told(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@thorough
def test_what_workers_write_is_pulled_while_the_run_goes_on_and_after_its_end(
    unshared_user: User, unshared_slurm: Slurm, tmp_path: Path
) -> None:
    user = unshared_user
    user.write("write.py", WRITE)
    run = user.run("run", "--nnodes", "2", "--name", "night", "--detach", "write.py", "/never").lines[0]
    all_of_it = {
        "out/model.0": "weights 0",
        "out/model.1": "weights 1",
        "gpu01/out/log": "of 0",
        "gpu02/out/log": "of 1",
    }
    with user.start("logs", "--follow", "night") as live:
        live.wait_for("written", times=2)
        during = user.run("pull", "night", f"{tmp_path}/live/")
        assert (during.code, during.out) == (1, f"{tmp_path}/live/night: 4 files, 26 bytes from gpu01, gpu02\n"), (
            during.err
        )
        assert told(tmp_path / "live" / "night") == all_of_it
        assert user.run("pull", "out/model.1", f"{tmp_path}/one", "--rank", "1").code == 0
        assert (tmp_path / "one").read_text() == "weights 1"
        assert user.run("stop", "night").code == 0
        live.end()
    nothing_is_left(unshared_slurm)
    after = user.run("pull", run, f"{tmp_path}/ended/")
    assert (after.code, after.out) == (1, f"{tmp_path}/ended/night: 4 files, 26 bytes from gpu01, gpu02\n"), after.err
    assert "no job of the run holds gpu01, gpu02: a short one on each node brings its files" in after.notes
    assert told(tmp_path / "ended" / "night") == all_of_it
    path = user.run("pull", "out", f"{tmp_path}/of-one", "--host", "gpu02")
    assert path.code == 0, path.err
    assert told(tmp_path / "of-one") == {"model.1": "weights 1", "log": "of 1"}
    nothing_is_left(unshared_slurm)
