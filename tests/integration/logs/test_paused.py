"""A reader who pauses (Ctrl-S, a pager) under a flood: memory stays flat, and nothing but the showing waits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, User, assert_nothing_left, helpers, nothing_left
from tests.lab.system import wait_until
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.cli import Live
    from tests.lab import Lab

need_torch()
pytestmark = pytest.mark.torch

HOSTS = ("gpu01", "gpu02", "gpu03")
LINES, WIDTH = 120_000, 150  # of each rank: 18 MB
ROOM = 16 << 20  # bytes by which the operator's process may grow: less than a third of what waits to be shown
HELPER_ROOM = 6 << 20
FEW = 80_000  # lines where memory is not the point: 12 MB, more than all pipes, sockets and queues in between hold
GO, FLOODED, END = "/tmp/flood", "/tmp/has flooded", "/tmp/end the flood"
FLOODS = f"""{WAIT}
print("started", flush=True)
wait_for({GO!r})
for start in range(0, int(sys.argv[1]), 1000):
    sys.stdout.write("".join("%07d %s\\n" % (number, "x" * {WIDTH - 9}) for number in range(start, start + 1000)))
sys.stdout.flush()
open({FLOODED!r}, "w").close()
wait_for({END!r})
print("the end", flush=True)
"""


@pytest.fixture
def user(lab: Lab, tmp_path: Path) -> Iterator[User]:
    user = User(tmp_path)
    lab.write_inventory(user.folder / "inventory.yaml", hosts=list(HOSTS))
    user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    user.write("floods.py", FLOODS)
    with nothing_left(lab):
        yield user
    for name in HOSTS:
        lab.host(name).run(["rm", "-f", GO, FLOODED, END])


def flood(lab: Lab) -> None:
    """Every rank writes all it has, to the end, whoever looks."""
    for name in HOSTS:
        lab.host(name).write(GO, "")
    for name in HOSTS:
        host = lab.host(name)
        wait_until("the flood is over", lambda: host.run(["test", "-e", FLOODED], check=False).returncode == 0, 120)  # noqa: B023


def resident(pid: int) -> int:
    """Bytes of memory that a process holds now."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


def memory(lab: Lab) -> int:
    """Of the largest helper on any host."""
    return max(resident(helper.pid) for name in HOSTS for helper in helpers(lab.host(name)))


def numbers(text: str, host: str) -> list[int]:
    """The numbers of the flood's lines of one host, in the order shown."""
    return [int(number) for number in re.findall(rf"^\[\d {host}:0\] (\d{{7}}) x+$", text, re.MULTILINE)]


def started(live: Live, user: User) -> str:
    run = live.run
    live.wait_for(" started", times=len(HOSTS))
    wait_until("all run", lambda: user.status(run)["state"] == "running", 60)
    return run


def test_a_flood_that_nobody_reads_costs_no_memory_and_comes_whole_afterwards(user: User, lab: Lab) -> None:
    with user.start("run", "floods.py", str(LINES)) as live:
        run = started(live, user)
        live.pause()
        operator, helping = resident(live.process.pid), memory(lab)
        flood(lab)  # training goes on
        assert resident(live.process.pid) - operator < ROOM
        assert memory(lab) - helping < HELPER_ROOM
        assert user.status(run)["state"] == "running"
        assert user.run("logs", "--tail", "1", "--rank", "0", run).lines[0].endswith("x" * 50)
        live.resume()
        for name in HOSTS:
            lab.host(name).write(END, "")
        done = live.end()
    assert done.code == 0, done.err
    for host in HOSTS:
        assert numbers(done.out, host) == list(range(LINES))
    assert [said.text for said in done.workers if said.text in {"started", "the end"}].count("the end") == 3


def test_a_stop_from_another_terminal_does_not_wait_for_a_paused_one(user: User, lab: Lab) -> None:
    with user.start("run", "floods.py", str(FEW)) as live:
        run = started(live, user)
        live.pause()
        flood(lab)
        stop = user.run("stop", "--grace", "1", run)
        assert stop.code == 0, stop.err
        assert_nothing_left(lab.hosts, run)
        assert live.process.poll() is None
        live.resume()
        done = live.end()
    assert (done.code, done.notes[-1]) == (143, "stopped: by another command")
    for host in HOSTS:
        assert numbers(done.out, host) == list(range(FEW))


def test_ctrl_c_stops_the_run_though_its_reader_has_paused(user: User, lab: Lab) -> None:
    with user.start("run", "floods.py", str(FEW)) as live:
        run = started(live, user)
        live.pause()
        flood(lab)
        live.interrupt()
        live.wait_for("gpu03: ", stream="err")
        assert_nothing_left(lab.hosts, run)
        live.resume()
        done = live.end()
    assert done.code == 130
    assert all(note.endswith("proved empty") for note in done.notes[-5:-2])


def test_ctrl_s_holds_the_terminal_and_ctrl_q_shows_the_rest(user: User, lab: Lab) -> None:
    with user.start("run", "floods.py", str(LINES), terminal=True) as live:
        live.wait_for("gpu03:0]\x1b[0m started")
        run = started(live, user)
        live.key("\x13")
        operator = resident(live.process.pid)
        flood(lab)
        assert resident(live.process.pid) - operator < ROOM
        assert user.status(run)["state"] == "running"
        assert f"{LINES - 1:07} x" not in live.text()
        live.key("\x11")
        for name in HOSTS:
            lab.host(name).write(END, "")
        done = live.end()
    assert done.code == 0
    text = re.sub(r"\x1b\[[0-9;]*[mK]|\r", "", done.out)
    for host in HOSTS:
        assert numbers(text, host) == list(range(LINES))
