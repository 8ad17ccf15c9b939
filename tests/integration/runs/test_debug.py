"""`clusterddp debug` of ranks that wait at breakpoints: over two nodes on this machine, with real torchrun."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.spool.attention import is_attended
from clusterddp.remote.spool.layout import Spool
from tests.integration.cli import CLUSTERDDP, LIMIT, Done, User, local_processes, nothing_left, used_before, user_of
from tests.lab.system import wait_until
from tests.lean import lean_python, training_python
from tests.pythons import OWN
from tests.remedies import remedy, type_line
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab import Lab

need_torch()
pytestmark = pytest.mark.torch

ATTACHES = remedy("remote/worker/hook/rank_debugger.py", "`clusterddp debug %s` attaches a terminal")
FIRST = remedy("cli/actions/debug_action.py", "`clusterddp debug {} {}` attaches to rank {}")
SAYS_HOW = remedy("cli/actions/debug_action.py", "`clusterddp why` says how")
ONE_WAITS = remedy(
    "remote/shared/collectives/hang_sentence.py",
    "`clusterddp debug {}` attaches pdb, and the rank goes on when you leave",
)
ALL_WAIT = remedy(
    "remote/shared/collectives/hang_sentence.py",
    "`clusterddp debug` lists the ranks at breakpoints, and `clusterddp debug RANK` attaches pdb to one",
)
TRAIN = """
from datetime import timedelta
import torch
import torch.distributed as dist

def step(number):
    total = torch.ones(1) * dist.get_rank()
    if dist.get_rank() == 1 or number == 1:
        breakpoint()
    dist.all_reduce(total)
    return total.item()

dist.init_process_group("gloo")
for number in range(2):
    print(number, step(number), flush=True)
dist.destroy_process_group()  # else its threads may abort the worker at its end
"""
FAILS = """
import os
def divide(number):
    return 1 / number
if os.environ["RANK"] == "1":
    divide(0)
"""
BUSY = """
import threading
breakpoint()
print("on", flush=True)
while True:
    threading.Event().wait(0.05)
"""


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """Somebody without an inventory, who trains over two nodes on this machine."""
    user = used_before(User(tmp_path))
    user.env["CLUSTERDDP_PYTHON"] = training_python()
    for name, text in {"train.py": TRAIN, "fails.py": FAILS, "busy.py": BUSY}.items():
        user.write(name, text)
    yield user
    user.run("stop", "--all", "--grace", "0")
    wait_until("nothing is left", lambda: not local_processes(str(user.home)))


def type_lines(user: User, lines: str, *words: str) -> Done:
    """`clusterddp debug` with these lines as its stdin."""
    done = subprocess.run(
        [CLUSTERDDP, "debug", *words],
        input=lines,
        capture_output=True,
        text=True,
        cwd=user.folder,
        env=user.env,
        timeout=LIMIT,
        check=False,
    )
    return Done(code=done.returncode, out=done.stdout, err=done.stderr)


def stop_waits(user: User, run: str, times: int = 1) -> None:
    """Until so many ranks have said that they wait."""
    user.hear(run, "attaches a terminal", times=times)


def test_ranks_at_breakpoints_are_listed_attached_to_and_go_on(user: User) -> None:
    with user.start("run", "train.py") as live:
        live.wait_for("[1 local1:0] clusterddp: rank 1 waits at breakpoint(), train.py:9 in step: `clusterddp debug 1`")
        not_there = user.run("debug", "0")
        why_one = user.run("why")
        first = type_lines(user, "p number, total\nn\n", *ONE_WAITS.printed(why_one.err))
        live.wait_for("attaches a terminal", times=3)  # both in the second step
        why_all = user.run("why")
        assert ALL_WAIT.commands(why_all.err)[0] == "clusterddp debug"
        listed = user.run("debug")
        assert FIRST.printed(listed.err) == (live.run, "0", "0")
        second = type_lines(user, "total += 10\nw\n", live.run, "0")
        third = type_lines(user, "q\n")  # the only one that is left
        done = live.end()
    assert not_there.code == 1
    (line,) = [note for note in not_there.notes if note.startswith("rank 0 is not at a breakpoint(), and ")]
    assert line.endswith(f"pdb cannot be attached: Python {OWN} lets no debugger in, 3.14 and newer do; it is here:")
    assert "train.py:10 in step" in not_there.out

    assert "rank 1 (local1:0) has not joined all_reduce #1 of group default" in why_one.err
    assert "ranks 0-1 stand at a breakpoint() at train.py:9, and no rank waits in a collective operation" in why_all.err

    assert first.code == 0, first.err
    assert "train.py(9)step()\n-> breakpoint()\n(Pdb) p number, total\n(0, tensor([1.]))\n(Pdb) n\n" in first.out
    assert first.out.endswith("train.py(10)step()\n-> dist.all_reduce(total)\n")
    assert first.notes[-1] == "detached: rank 1 goes on"
    assert [line.partition("; it goes on")[0] for line in listed.lines] == [
        f"rank {rank} (local{rank}:0) waits at breakpoint(), train.py:9 in step" for rank in (0, 1)
    ]
    assert "-> print(number, step(number), flush=True)" in second.out
    assert third.notes[-1] == "detached: rank 1 goes on"
    assert done.code == 0, f"{done.out} {done.err}"
    assert sorted(one.text for one in done.workers if one.text[0].isdigit()) == ["0 1.0", "0 1.0", "1 11.0", "1 11.0"]


def test_an_uncaught_exception_is_looked_at_and_then_fails_the_run(user: User) -> None:
    user.env["CLUSTERDDP_PYTHON"] = lean_python()
    with user.start("run", "--pdb", "fails.py") as live:
        live.wait_for("rank 1 waits at ZeroDivisionError, fails.py:4 in divide")
        (rank,) = ATTACHES.printed(live.text())
        seen = type_lines(user, "p number\n", rank)
        done = live.end()
    assert "fails.py(4)divide()\n-> return 1 / number\n(Pdb) p number\n0\n" in seen.out
    assert seen.notes[-1] == "detached: rank 1 ends now"
    assert done.code == 1
    assert "ZeroDivisionError" in done.notes[-1]


def test_a_terminal_stops_the_rank_is_alone_and_all_hosts_know_of_it(user: User) -> None:
    user.env["CLUSTERDDP_PYTHON"] = lean_python()
    run = user.run("run", "--detach", "busy.py").out.strip()
    stop_waits(user, run, 2)
    spools = [Spool(str(path.parent)) for path in user.home.glob(f".clusterddp/runs/{run}/*/*/debug")]
    assert len(spools) == 2
    assert not any(map(is_attended, spools))
    with user.start("debug", "1", terminal=True) as terminal:
        terminal.wait_for("(Pdb) ")
        wait_until("both hosts know", lambda: all(map(is_attended, spools)))
        second = user.run("debug", "1")
        terminal.key("c\n")
        terminal.wait_for("Ctrl-C stops it where it is, Ctrl-D detaches")
        terminal.key("\x03")
        terminal.wait_for("interrupted")
        terminal.wait_for("(Pdb) ", times=2)
        terminal.key("\x03")  # gives up the line
        terminal.wait_for("(Pdb) ", times=3)
        terminal.key("\x04")
        ended = terminal.end()
    wait_until("both hosts know", lambda: not any(map(is_attended, spools)))
    assert second.code == 1
    assert "somebody else is attached to rank 1" in second.err
    assert ended.code == 0
    assert "detached: rank 1 goes on" in ended.out
    user.hear(run, "on")


@pytest.fixture(scope="module")
def on_lab(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> User:
    return user_of(lab, tmp_path_factory.mktemp("user"), {"busy.py": BUSY})


def test_on_hosts_over_ssh_a_lost_terminal_lets_the_rank_go_on(on_lab: User, lab: Lab) -> None:
    with nothing_left(lab):
        run = on_lab.run("run", "--detach", "--limit", "gpu00,gpu01", "busy.py").out.strip()
        stop_waits(on_lab, run, 2)
        with on_lab.start("debug", run, "1", terminal=True) as terminal:
            terminal.wait_for("busy.py(3)<module>()\r\n-> breakpoint()\r\n(Pdb) ")
            assert [line[:15] for line in on_lab.run("debug", run).lines] == ["rank 0 (gpu00:0", "rank 1 (gpu01:0"]
        on_lab.hear(run, "[1 gpu01:0] on")
        on_lab.run("stop", run, "--grace", "0")


def test_nobody_comes_and_the_run_goes_on(user: User) -> None:
    user.write("train.py", TRAIN.replace('"gloo"', '"gloo", timeout=timedelta(seconds=61)'))
    done = user.run("run", "train.py")
    assert done.code == 0, f"{done.out} {done.err}"
    assert "process group default times out in 6" in done.out
    assert done.out.count("nobody came to train.py:9: it goes on, and does not stop there again") == 2
    (why,) = SAYS_HOW.commands(user.run("debug").err)
    assert type_line(user, why).code == 0
