"""Run every command line of SKILL.md on two local nodes, as the steps of tasks that a coding agent gets."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.cli import Done, User, local_processes, used_before
from tests.lab.system import wait_until
from tests.lean import training_python
from tests.remedies import remedy, type_line
from tests.skill import SKILL, filled, lines
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

need_torch()
pytestmark = pytest.mark.torch

COMPARE = remedy(
    "cli/actions/skill_action.py", "`clusterddp skill` prints this version's, to compare; move yours away first"
)
INVENTORY = """
all:
  hosts: {{local0: , local1: }}
  vars: {{ansible_connection: local, clusterddp_python: {python}}}
"""
# Ends well, and leaves a file that is another one on each node.
GOOD = """
import os, pathlib, sys
rank = os.environ["RANK"]
print("loss", *sys.argv[1:])
pathlib.Path(f"out-{rank}.txt").write_text(rank)
"""
FAILS = """
import os
if os.environ["RANK"] == "1":
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
"""
WAITS = """
import threading
x = 42
breakpoint()
print("left", flush=True)
threading.Event().wait()
"""
# Rank 1 is late in each step, and comes no more once the file is there.
HANGS = """
import os, sys, threading
import torch
import torch.distributed as dist

def load():
    while os.path.exists(sys.argv[1]):
        threading.Event().wait(1)
    threading.Event().wait(0.15)

dist.init_process_group("gloo")
while True:
    if dist.get_rank() == 1:
        load()
    else:
        threading.Event().wait(0.05)
    dist.all_reduce(torch.ones(1))
"""


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    """A user whose inventory has two nodes on this machine."""
    user = used_before(User(tmp_path_factory.mktemp("user")))
    user.write("inventory.yaml", INVENTORY.format(python=training_python()))
    yield user
    user.run("stop", "--all", "--grace", "0")
    assert user.run("down", "--yes").code == 0
    wait_until("nothing is left", lambda: not local_processes(str(user.home)))


@pytest.fixture(scope="module")
def ready(user: User) -> User:
    """The user, after SKILL.md's first two steps: `hosts` and `up`."""
    assert [host["name"] for host in typed(user, "clusterddp hosts --json").json] == ["local0", "local1"]
    typed(user, "clusterddp up INVENTORY", INVENTORY="inventory.yaml")
    return user


def typed(user: User, line: str, *options: str, code: int = 0, **values: str) -> Done:
    """Type a command line of SKILL.md into a shell; return its output and exit code."""
    done = type_line(user, filled(line, *options, **values))
    assert done.code == code, f"{line}: {done.code} {done.out} {done.err}"
    return done


def started(user: User, name: str, script: str, *words: str) -> str:
    """Start a run of train.py; return its id."""
    user.write("train.py", script)
    line = "clusterddp run --detach --time-limit 2h --name NAME train.py ARGS…"
    return typed(user, line, NAME=name, ARGS=" ".join(words)).out.strip()


def test_every_line_of_the_skill_is_typed_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8").replace("\\\\", "\\")
    assert [line for line in lines() if f'"{line}"' not in text] == []


def test_look_whether_a_job_would_run_and_start_it(ready: User) -> None:
    checked = typed(ready, "clusterddp doctor --json").json
    assert [check["message"] for check in checked["checks"] if check["verdict"] == "fail"] == []
    assert "--detach" in typed(ready, "clusterddp COMMAND --help", COMMAND="run").out
    ready.write("train.py", GOOD)
    assert "torch.distributed.run" in typed(ready, "clusterddp run --dry-run train.py").out
    run = started(ready, "first", GOOD, "0.1")
    assert typed(ready, "clusterddp wait NAME", NAME=run).notes[-1].startswith(f"run {run}: succeeded")
    assert typed(ready, "clusterddp status NAME --json", NAME="first").json["state"] == "succeeded"
    logs = "clusterddp logs NAME --tail 50"
    assert sorted(line.text for line in typed(ready, logs, NAME="first").workers) == ["loss 0.1"] * 2
    assert [line.rank for line in typed(ready, logs, "--rank", "1", "--grep", "loss", NAME=run).workers] == [1]
    assert typed(ready, logs, "--since", "0s", NAME=run).workers == []
    assert json.loads(typed(ready, logs, "--json", NAME=run).lines[0])["text"] == "loss 0.1"


def test_say_why_a_run_failed(ready: User) -> None:
    run = started(ready, "broken", FAILS)
    verdict = typed(ready, "clusterddp wait NAME", NAME=run, code=1).notes[-1]
    assert verdict.startswith(f"run {run}: rank 1 (local1:0) failed first: RuntimeError: CUDA out of memory")
    why = typed(ready, "clusterddp why NAME --json", NAME=run).json
    assert (why["state"], why["ranks"], why["where"]) == ("failed", [1], "train.py:4")
    assert "a smaller batch" in why["remedy"]
    typed(ready, "clusterddp logs NAME --save DIR", NAME=run, DIR="saved")
    log = "saved/1.0/rank1-local1-0.err"
    assert "a smaller batch" in typed(ready, "clusterddp doctor --explain LOGFILE", LOGFILE=log).out


def test_name_the_slow_rank_say_why_a_run_hangs_and_hand_it_on(ready: User) -> None:
    sign = ready.home / "hang"
    run = started(ready, "night", HANGS, str(sign))
    looks: list[dict[str, Any]] = []

    def names_a_rank() -> bool:
        looks.append(typed(ready, "clusterddp top NAME --json", NAME="night").json["late"])
        return bool(looks[-1]["ranks"])

    wait_until("a rank is named", names_a_rank, timeout=90)
    assert (looks[-1]["kind"], looks[-1]["ranks"]) == ("always", [1])
    sign.touch()
    answers: list[dict[str, Any]] = []

    def hangs() -> bool:
        answers.append(typed(ready, "clusterddp why NAME --json", NAME="night").json)
        return bool(answers[-1]["state"] == "hung")

    wait_until("it hangs", hangs, timeout=60)
    assert answers[-1]["ranks"] == [1]
    assert answers[-1]["where"].startswith("train.py:8 in load")
    assert "train.py:8 in load" in typed(ready, "clusterddp status NAME --stacks", NAME="night").out
    typed(ready, "clusterddp bundle NAME -o FILE", NAME="night", FILE="night.tar.gz")
    typed(ready, "clusterddp stop NAME", NAME="night")
    assert typed(ready, "clusterddp status NAME --json", NAME=run).json["state"] == "stopped"
    assert "rank 1 (local1:0) did not join all_reduce" in typed(ready, "clusterddp why FILE", FILE="night.tar.gz").err
    typed(ready, "clusterddp doctor --explain FILE", FILE="night.tar.gz")


def test_sweep_and_compare_two_runs(ready: User) -> None:
    ready.write("train.py", GOOD)
    line = "clusterddp run --detach --name NAME --workdir NAME train.py ARGS…"
    for rate in ("0.1", "0.2"):
        typed(ready, line, "--gpus", "all", NAME=f"lr-{rate}", ARGS=f"--lr {rate}")
    typed(ready, "clusterddp wait A B", A="lr-0.1", B="lr-0.2")
    runs = typed(ready, "clusterddp runs --json --last 20").json
    ended = {run["name"]: (run["state"], run["argv"]) for run in runs}
    assert ended["lr-0.1"] == ("succeeded", ["--lr", "0.1"])
    assert ended["lr-0.2"] == ("succeeded", ["--lr", "0.2"])
    compared = typed(ready, "clusterddp runs --diff A B", A="lr-0.1", B="lr-0.2").out
    assert re.search(r"^arguments +--lr.0\.1 +--lr.0\.2$", compared, re.MULTILINE)


def test_bring_files_to_the_hosts_and_those_of_a_run_back(ready: User) -> None:
    ready.write("words.txt", "a b c\n")
    typed(ready, "clusterddp push SRC DEST", SRC="words.txt", DEST="data/words.txt")
    out = typed(ready, "clusterddp exec --gather -- COMMAND", COMMAND="cat data/words.txt").out
    assert out == "local0, local1 (2): a b c\n"
    said = typed(ready, "clusterddp exec --json -- COMMAND", COMMAND="pwd").lines
    assert {json.loads(line)["host"] for line in said} == {"local0", "local1"}
    run = started(ready, "writer", GOOD)
    typed(ready, "clusterddp wait NAME", NAME=run)
    typed(ready, "clusterddp pull NAME DEST", NAME=run, DEST="back")
    assert sorted(path.name for path in (ready.folder / "back").iterdir()) == ["out-0.txt", "out-1.txt"]


def test_look_at_a_ranks_variables_start_it_again_and_stop_it(ready: User) -> None:
    run = started(ready, "odd", WAITS)
    wait_until("it waits", lambda: "breakpoint()" in typed(ready, "clusterddp why NAME --json", NAME=run).out)
    line = "printf 'p x\\n' | clusterddp debug NAME RANK"
    for rank in ("0", "1"):
        wait_until(
            f"rank {rank} waits",
            lambda rank=rank: f"rank {rank} waits" in typed(ready, "clusterddp logs NAME --tail 50", NAME=run).out,  # type: ignore[misc]
        )
        assert "\n(Pdb) p x\n42\n" in typed(ready, line, NAME=run, RANK=rank).out
    typed(ready, "clusterddp stop")
    again = typed(ready, "clusterddp run --detach --again NAME", NAME="odd").out.strip()
    assert again != run
    typed(ready, "clusterddp stop NAME", NAME=again)
    idle = typed(ready, "clusterddp top --json").json
    assert (idle["run"], [host["name"] for host in idle["hosts"]]) == (None, ["local0", "local1"])


def test_install_the_skill_beside_an_edited_one(ready: User) -> None:
    assert ready.run("skill", "--install", ".agents/skills").code == 0
    path = ready.folder / ".agents/skills/clusterddp/SKILL.md"
    path.write_text("mine\n")
    refused = ready.run("skill", "--install", ".agents/skills")
    assert refused.code == 2
    (command,) = COMPARE.commands(refused.err)
    assert type_line(ready, command).out == SKILL.read_text(encoding="utf-8")
    path.rename(path.with_name("mine.md"))
    assert ready.run("skill", "--install", ".agents/skills").code == 0
