"""Followers of a run that is started again: they go on to the next attempt, and none of its lines is missed."""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from clusterddp import Cluster
from clusterddp.project.project import find
from tests.integration.cli import WAIT, User, nothing_left
from tests.lab.system import PATIENCE, wait_until
from tests.remedies import remedy
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from clusterddp.logs.lines import LogLine
    from tests.lab import Lab

need_torch()
pytestmark = pytest.mark.torch

HOSTS = ("gpu00", "gpu01")
DIE, AGAIN = "/tmp/attempts: die", "/tmp/attempts: again"
TWICE = f"""{WAIT}
import signal
for number in range(100):
    print("line", number, flush=True)
if not os.path.exists({AGAIN!r}):
    wait_for({DIE!r})
    open({AGAIN!r}, "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
print("the end", flush=True)
"""
ONCE = [f"line {number}" for number in range(100)]
BOTH = [(1, text) for text in ONCE] + [(2, text) for text in (*ONCE, "the end")]


@pytest.fixture
def user(lab: Lab, tmp_path: Path) -> Iterator[User]:
    user = User(tmp_path)
    lab.write_inventory(user.folder / "inventory.yaml", hosts=list(HOSTS))
    user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    user.write("twice.py", TWICE)
    with nothing_left(lab):
        yield user
    for name in HOSTS:
        lab.host(name).run(["rm", "-f", DIE, AGAIN])


def follow_in_python(user: User, run: str) -> tuple[list[LogLine], Future[None]]:
    """Run `run.logs(follow=True)` in a thread; return, after its first line, the list that grows, and its future."""
    lines: list[LogLine] = []

    def follow() -> None:
        project = find(user.folder)
        with Cluster.from_inventory(user.folder / "inventory.yaml", project=project) as cluster:
            lines.extend(cluster.find(run).logs(follow=True))

    pool = ThreadPoolExecutor(1)
    end = pool.submit(follow)
    pool.shutdown(wait=False)
    wait_until("Python has a line", lambda: lines)
    return lines, end


def test_followers_go_on_to_the_next_attempt_and_see_all_of_it(user: User, lab: Lab) -> None:
    with user.start("run", "--relaunch", "1", "twice.py") as live:
        run = live.run
        with (
            user.start("logs", "-f", "--json", run) as follower,
            user.start("logs", "-f", "--save", "saved", run) as saver,
            user.start("logs", "-f", "--tail", "1", "--host", "gpu01", run) as narrow,
        ):
            for command in (live, narrow):
                command.wait_for("[1 gpu01:0] line 99")
            live.wait_for("[0 gpu00:0] line 99")
            early = user.run("logs", "--json", run).lines
            user.run("logs", "--save", "twice", run)
            told, end = follow_in_python(user, run)
            for name in HOSTS:
                lab.host(name).write(DIE, "")
            shown, followed, saved, narrowed = (one.end() for one in (live, follower, saver, narrow))
            end.result(PATIENCE)
    assert [one.code for one in (shown, followed, saved, narrowed)] == [0, 0, 0, 0], followed.err
    lines = [json.loads(line) for line in followed.lines]
    user.write("early.jsonl", "".join(f"{line}\n" for line in early[:70]))  # the rest of its attempt is missing too
    later = [
        json.loads(line) for line in (*early[:70], *user.run("logs", "--json", "--after", "early.jsonl", run).lines)
    ]
    assert user.run("logs", "--save", "twice", run).code == 0
    for rank, host in enumerate(HOSTS):
        for objects in (lines, later):
            assert [(line["attempt"], line["text"]) for line in objects if line["rank"] == rank] == BOTH
        assert [(line.attempt, line.text) for line in told if line.rank == rank] == BOTH
        assert [said.text for said in shown.workers if said.rank == rank] == [text for _, text in BOTH]
        for attempt in (1, 2):
            for folder in ("saved", "twice"):
                text = (user.folder / folder / f"{attempt}.0" / f"rank{rank}-{host}-0.out").read_text()
                assert text.splitlines() == [text for number, text in BOTH if number == attempt]
    # Its first attempt is cut to what was the last line when it began; the second one is whole.
    assert [said.text for said in narrowed.workers][-101:] == [*ONCE, "the end"]
    assert {said.host for said in narrowed.workers} == {"gpu01"}
    assert "attempt 2 on gpu00, gpu01" in shown.notes
    refused = user.run("logs", "--follow", "--attempt", "1", run)
    assert remedy("cli/actions/logs_action.py", "leave --follow out, or --attempt").found(refused.err)
    assert user.run("logs", "--follow", run).code == 0
    for attempt in (1, 2):
        read = user.run("logs", "--attempt", str(attempt), run)
        for rank in range(2):
            expected = [text for number, text in BOTH if number == attempt]
            assert [said.text for said in read.workers if said.rank == rank] == expected
