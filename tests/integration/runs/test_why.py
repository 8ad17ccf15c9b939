"""`clusterddp why` of jobs made to hang by one line: over two nodes on this machine, and on the lab."""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User, local_processes, used_before, user_of
from tests.lab.system import wait_until
from tests.lean import lean_python, training_python
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.lab import Lab

need_torch()
pytestmark = pytest.mark.torch

FIELDS = {
    "run", "state", "class", "ranks", "hosts", "where", "group", "sequence", "operation", "sentence", "evidence",
    "remedy", "asked_ms",
}  # fmt: skip
# Rank 1, or another, leaves the loop by one line of a module in a folder of the project.
HANGS = """
import os, torch
import torch.distributed as dist
from steps import validate

def step():
    dist.all_reduce(torch.ones(4))

dist.init_process_group("gloo")
for number in range(3):
    step()
print("together", flush=True)
validate.now() if dist.get_rank() == int(os.environ.get("LEAVES", "1")) else step()
"""
VALIDATE = """
import threading

def now():
    threading.Event().wait(600)
"""
# A child keeps gloo's connections open, so that the others wait as on NCCL. Without destroy_process_group, which would
# end them, torch may abort as the interpreter is taken down: the rank ends before that.
ENDS_WELL = """
import atexit, os, signal

def now():
    if not os.fork():
        signal.pause()
    atexit._run_exitfuncs()
    os._exit(0)
"""
FAILS = """
import sys
print("no space for the checkpoint", file=sys.stderr)
raise ValueError("loss is NaN")
"""
IN_STEP, IN_VALIDATE = "hangs.py:7", "steps/validate.py:5"
SENTENCE = (
    "rank {} ({}) did not join all_reduce #4 of group default (float32 [4]): it is in now, " + IN_VALIDATE + ", waiting"
    " for a lock or a thread; rank{} at " + IN_STEP + " since "
)  # fmt: skip
ONE = ("--limit", "local0", "--nproc-per-node", "2")  # both ranks on one of the nodes
FILES = {"hangs.py": HANGS, "steps/validate.py": VALIDATE, "fails.py": FAILS, "ends.py": "print('done')\n"}


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """Somebody without an inventory, who trains over two nodes on this machine."""
    user = used_before(User(tmp_path))
    user.env["CLUSTERDDP_PYTHON"] = training_python()
    for name, text in FILES.items():
        user.write(name, text)
    yield user
    user.run("stop", "--all", "--grace", "0")
    wait_until("nothing is left", _nothing_of(user))


def _nothing_of(user: User) -> Callable[[], bool]:
    return lambda: not local_processes(str(user.home))


def start_detached(user: User, script: str = "hangs.py", *words: str) -> str:
    """A run that has come to where it hangs; its id."""
    run = user.run("run", "--detach", *ONE, *words, script).out.strip()
    user.hear(run, "together", times=2)
    return run


def test_a_hang_is_told_in_a_sentence_while_it_is_followed_and_in_another_clone_by_its_id(user: User) -> None:
    with user.start("run", "hangs.py") as live:
        live.wait_for("together", times=2)
        wait_until("it hangs", lambda: user.run("why", "--json").json["state"] == "hung")
        told = user.run("why")
        value = user.run("why", "--json").json
        clone = user.folder.parent / "clone"
        shutil.copytree(user.folder, clone, ignore=shutil.ignore_patterns(".clusterddp"))
        elsewhere = user.run("why", live.run, "--json", cwd="../clone").json
        user.run("stop", "--grace", "0")
        live.end()
    assert (told.code, told.out) == (0, "")
    sentence, *evidence, remedy = told.notes[1:]  # the first line is the cluster's
    assert sentence.startswith(SENTENCE.format(1, "local1:0", " 0 waits"))
    assert [line.partition(":")[0] for line in evidence] == ["  rank 0 (local0", "  rank 1 (local1"]
    assert evidence[0].startswith("  rank 0 (local0:0): in all_reduce #4 of group default (float32 [4]), at ")
    assert remedy == f"remedy: {value['remedy']}"

    assert set(value) == FIELDS
    assert {name: value[name] for name in ("state", "class", "ranks", "hosts", "where")} == {
        "state": "hung", "class": "missing", "ranks": [1], "hosts": ["local1"], "where": f"{IN_VALIDATE} in now",
    }  # fmt: skip
    assert (value["group"], value["sequence"], value["operation"]) == ("default", 4, "all_reduce (float32 [4])")
    assert value["sentence"].startswith(SENTENCE.format(1, "local1:0", " 0 waits"))
    assert 0 < value["asked_ms"] < 30_000
    assert (elsewhere["run"], elsewhere["state"], elsewhere["where"]) == (value["run"], "hung", f"{IN_VALIDATE} in now")


def test_a_stopped_rank_is_named_as_stopped(user: User) -> None:
    user.write("steps/validate.py", "import os, signal\n\ndef now():\n    os.kill(os.getpid(), signal.SIGSTOP)\n")
    start_detached(user)
    value = user.run("why", "--json").json
    for pid in local_processes("hangs.py"):
        os.kill(pid, signal.SIGCONT)
    assert (value["state"], value["class"], value["ranks"]) == ("hung", "missing", [1])
    assert "stopped (SIGSTOP)" in value["sentence"]


def test_a_rank_that_has_ended_well_while_others_wait_for_it_is_named_as_ended(user: User) -> None:
    user.write("steps/validate.py", ENDS_WELL)
    start_detached(user)
    wait_until("it hangs", lambda: user.run("why", "--json").json["state"] == "hung")
    value = user.run("why", "--json").json
    assert (value["class"], value["ranks"], value["hosts"], value["where"]) == ("missing", [1], ["local0"], None)
    assert "did not join all_reduce #4 of group default (float32 [4]): it has ended; rank 0 waits" in value["sentence"]
    assert "rank 1 (local0:1): has ended" in value["evidence"]
    assert "same number of steps" in value["remedy"]


def test_without_the_server_for_traces_stacks_are_what_is_left(user: User) -> None:
    start_detached(user, "hangs.py", "--no-comm-trace")
    value = user.run("why", "--json").json
    assert (value["state"], value["class"], value["where"]) == ("undecided", "undecided", None)
    assert "do not say which operations they are in" in value["sentence"]
    assert any(f"at {IN_VALIDATE} in now" in line for line in value["evidence"])
    assert any(f"at {IN_STEP} in step" in line for line in value["evidence"])


def test_a_failed_run_is_explained_by_its_verdict_and_last_lines(user: User) -> None:
    user.env["CLUSTERDDP_PYTHON"] = lean_python()
    assert user.run("run", "fails.py").code == 1
    told, value = user.run("why"), user.run("why", "--json").json
    assert told.code == 0
    assert set(value) == FIELDS
    assert (value["state"], value["class"], value["where"]) == ("failed", None, "fails.py:4")
    assert len(value["ranks"]) == len(value["hosts"]) == 1
    assert "failed first: ValueError: loss is NaN (fails.py:4)" in value["sentence"]
    assert any("Traceback (most recent call last)" in line for line in value["evidence"])
    assert told.notes[1] == value["sentence"]


def test_a_run_that_ended_well_and_none_at_all(user: User) -> None:
    none = user.run("why")
    assert none.code == 1
    assert "no run" in none.err
    user.env["CLUSTERDDP_PYTHON"] = lean_python()
    run = user.run("run", "ends.py").run
    value = user.run("why", "--json").json
    assert set(value) == FIELDS
    assert (value["run"], value["state"], value["ranks"], value["sentence"]) == (
        run,
        "ended",
        [],
        f"run {run} succeeded",
    )
    unknown = user.run("why", "nosuchrun")
    assert (unknown.code, unknown.out) == (1, "")


@pytest.fixture(scope="module")
def on_hosts(three: Lab, tmp_path_factory: pytest.TempPathFactory) -> User:
    """Somebody whose run hangs over three hosts."""
    more: dict[str, dict[str, object]] = {"all": {"clusterddp_python": training_python()}}
    more["gpu00"] = {"clusterddp_nproc": 2}
    user = user_of(three, tmp_path_factory.mktemp("user"), FILES, more=more)
    user.hear(user.run("run", "--detach", "--env", "LEAVES=2", "hangs.py").out.strip(), "together", times=4)
    return user


def test_on_three_hosts_the_rank_and_its_line_are_named(on_hosts: User) -> None:
    value = on_hosts.run("why", "--json").json
    assert value["sentence"].startswith(SENTENCE.format(2, "gpu01:0", "s 0-1,3 wait"))
    assert value["hosts"] == ["gpu01"]
    assert len(value["evidence"]) == 2  # the stacks of one that waits and of the one that does not come


def test_with_a_host_off_what_the_others_know_is_told(on_hosts: User, three: Lab) -> None:
    user = on_hosts
    three.host("gpu01").drop(22)  # of rank 2: nobody reaches it by SSH, and the run lives
    unreachable = user.run("why", "--json")
    assert unreachable.code == 0
    value = unreachable.json
    assert (value["state"], value["class"], value["ranks"]) == ("hung", "missing", [2])
    assert value["sentence"].startswith(
        "rank 2 (gpu01) did not join all_reduce #4 of group default (float32 [4]): what it"
    )
    assert any("gpu01" in line and "not answer" in line for line in value["evidence"])
    assert "within 3 s" in unreachable.err
    three.host("gpu01").power_off()
    assert user.run("wait", value["run"]).code != 0
    lost = user.run("why", "--json").json
    assert lost["state"] == "failed"
    assert "gpu01" in lost["sentence"]
