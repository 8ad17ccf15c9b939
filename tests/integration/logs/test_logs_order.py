"""What a worker prints on stdout and stderr: in one order, live, again, after a break, whoever starts the worker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, User, helpers, nothing_left
from tests.lab.system import kill_and_wait
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.cli import Done
    from tests.lab import Lab

need_torch()
pytestmark = pytest.mark.torch

PART = 600
# Bursts that no time index could order, and single lines in between.
ALTERNATES = f"""{WAIT}
import logging
def say(number):
    if number % 5 == 3:
        logging.warning("line %d", number)
    elif number % 7 == 4:
        print("line", end=" ", flush=number % 2)
        print(number)
    else:
        print("line", number, file=(sys.stdout, sys.stderr)[number % 3 == 1])
logging.basicConfig(format="%(message)s")
for part in range(3):
    wait_for("/tmp/part %d of both" % part)
    for number in range(part * {PART}, (part + 1) * {PART}):
        say(number)
        if number % 100 == 50:
            pace(0.005)
"""
LINES = [f"line {number}" for number in range(3 * PART)]
HOSTS = ["gpu02", "gpu03"]


@pytest.fixture(scope="module")
def user(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> User:
    user = User(tmp_path_factory.mktemp("user"))
    lab.write_inventory(user.folder / "inventory.yaml", hosts=HOSTS, more={"gpu02": {"clusterddp_nproc": 2}})
    user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    user.write("both.py", ALTERNATES)
    return user


@pytest.fixture(scope="module", autouse=True)
def _nothing_left(lab: Lab) -> Iterator[None]:
    with nothing_left(lab):
        yield


def go(lab: Lab, part: int) -> None:
    for host in lab.hosts[2:]:
        host.write(f"/tmp/part {part} of both", "")


def check_order(done: Done) -> None:
    assert done.code == 0, done.err
    for rank in range(3):
        assert [said.text for said in done.workers if said.rank == rank] == LINES


@pytest.fixture(scope="module")
def run(user: User, lab: Lab) -> Iterator[str]:
    """A run that has ended, after everything that was live was checked."""
    files = [f"/tmp/part {part} of both" for part in range(3)]
    for host in lab.hosts[2:]:
        host.run(["rm", "-f", *files])
    try:
        with user.start("run", "both.py") as live:
            run = live.run
            with user.start("logs", "--follow", run) as follower, user.start("logs", "-f", "--json", run) as objects:
                go(lab, 0)
                for rank in range(3):
                    follower.wait_for(f":{rank % 2}] line {PART - 1}\n")
                for host in lab.hosts[2:]:
                    kill_and_wait(helpers(host))  # every connection breaks; all go on where they were
                go(lab, 1)
                follower.wait_for(f"line {2 * PART - 1}\n", times=3)
                with user.start("logs", "--follow", run) as late:
                    late.wait_for(f"line {2 * PART - 1}\n", times=3)
                    go(lab, 2)
                    check_order(late.end())
                check_order(follower.end())
                said = [json.loads(line) for line in objects.end().lines]
                for rank in range(3):
                    assert [line["text"] for line in said if line["rank"] == rank] == LINES
            check_order(live.end())
        yield run
    finally:
        for host in lab.hosts[2:]:
            host.run(["rm", "-f", *files])


def test_lines_of_both_streams_come_in_the_order_in_which_they_were_printed_live_and_again(
    user: User, run: str
) -> None:
    for words in ([], ["--follow"], ["-t"], ["--no-fold"]):
        done = user.run("logs", *words, run)
        if words == ["-t"]:
            texts = [line.partition("] ")[2] for line in done.lines if "[0 gpu02:0]" in line]
            assert texts == LINES
        else:
            check_order(done)


def test_the_last_lines_are_those_that_were_printed_last(user: User, run: str) -> None:
    done = user.run("logs", "--tail", "8", "--rank", "2", run)
    assert [said.text for said in done.workers] == LINES[-8:]


def test_a_stream_alone_json_and_saved_files_are_what_each_stream_has(user: User, run: str, tmp_path: Path) -> None:
    said = [json.loads(line) for line in user.run("logs", "--json", run).lines]
    saved = user.run("logs", "--save", str(tmp_path / "saved"), run)
    assert saved.code == 0, saved.err
    for rank, host, local in ((0, "gpu02", 0), (1, "gpu02", 1), (2, "gpu03", 0)):
        assert [line["text"] for line in said if line["rank"] == rank] == LINES
        for stream in ("out", "err"):
            done = user.run("logs", "--stream", stream, "--rank", str(rank), run)
            alone = [line for line in said if (line["rank"], line["stream"]) == (rank, stream)]
            assert [one.text for one in done.workers] == [line["text"] for line in alone]
            file = tmp_path / "saved" / "1.0" / f"rank{rank}-{host}-{local}.{stream}"
            assert file.read_text().splitlines() == [line["text"] for line in alone]
            assert [line["offset"] for line in alone[1:]] == [line["next"] for line in alone[:-1]]
