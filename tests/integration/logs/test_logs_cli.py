"""The lines of a run, live and again: whatever workers write comes through, and every filter means what it says."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.text.units import ranks
from tests.integration.cli import WAIT, Done, User, user_of
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from tests.lab import Lab

need_torch()
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("lab_left_clean")]

GO = "/tmp/the second half"
LONG = 5 << 20
WRITES = f"""{WAIT}
rank = os.environ["RANK"]
def say(data, stream=sys.stdout):
    stream.buffer.write(data)
    stream.buffer.flush()
say(b"first half\\n")
say(b"an error of " + rank.encode() + b"\\n", sys.stderr)
wait_for({GO!r})
if rank == "1":
    for step in range(100):
        say(b"step %d\\n" % step)
if rank == "0":
    for part in (b"10%", b"\\r50%", b"\\r100%\\n", b"dos\\r\\n", b"caf\\xe9 \\xff\\n"):
        say(part)
    say(b"\\x1b[2J\\x1b[31mred\\x1b[0m\\n")
    say(b"x" * {LONG} + b"\\n")
    say(b"half a line")
    pace(0.3)  # so that readers meet it unfinished
    say(b" and the rest\\n\\n  indented\\n")
    say(b"no newline at the end")
"""
ASKS = f"""{WAIT}
print("hello", flush=True)
print("your name? ", end="", flush=True)
wait_for("/tmp/never")
"""
# What is shown elsewhere than on a terminal; a progress bar is thinned to its first and its last state.
WRITTEN = [
    *("first half", "10%", "100%", "dos", "caf\udce9 \udcff", "\x1b[31mred\x1b[0m", "x" * LONG),
    *("half a line and the rest", "", "  indented", "no newline at the end"),
]
FIELDS = {
    *("time", "time_error_ms", "run", "attempt", "round", "rank", "host", "local_rank", "stream", "offset", "next"),
    "text",
}


@pytest.fixture(scope="module")
def user(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> User:
    files, two_workers = {"writes.py": WRITES, "asks.py": ASKS}, {"gpu00": {"clusterddp_nproc": 2}}
    return user_of(lab, tmp_path_factory.mktemp("user"), files, hosts=["gpu00", "gpu01"], more=two_workers)


@pytest.fixture(scope="module")
def told(user: User, lab: Lab) -> tuple[Done, float]:
    """A run as it was shown live, and a time between its halves."""
    with user.start("run", "writes.py") as live:
        for label in ("[0 gpu00:0]", "[1 gpu00:1]", "[2 gpu01:0]"):
            live.wait_for(f"{label} first half")
        soon = [line["time"] for line in objects(user, "--stream", "out") if line["text"] == "first half"]
        assert len(soon) == 3
        for host in lab.hosts[:2]:
            host.write(GO, "")
        return live.end(), max(soon) + 0.05


def objects(user: User, *words: str) -> list[dict[str, Any]]:
    """The workers' lines as JSON."""
    found = [json.loads(line) for line in user.run("logs", "--json", *words).lines]
    return [line for line in found if line["rank"] is not None]


def texts(done: Done, rank: int) -> list[str]:
    assert done.code == 0, done.err
    return [said.text for said in done.workers if said.rank == rank]


def test_whatever_workers_write_comes_through_live(told: tuple[Done, float]) -> None:
    done, _ = told
    mine = texts(done, 0)
    mine.remove("an error of 0")
    assert mine == WRITTEN
    assert sorted(texts(done, 2)) == ["an error of 2", "first half"]
    assert [text for text in texts(done, 1) if text.startswith("step")] == [f"step {n}" for n in range(100)]


def test_a_replay_shows_what_was_shown_live(user: User, told: tuple[Done, float]) -> None:
    again = user.run("logs")
    assert sorted(again.lines) == sorted(told[0].lines)
    assert texts(user.run("logs", "--stream", "out"), 0) == WRITTEN
    followed = user.run("logs", "--follow")
    assert sorted(followed.lines) == sorted(told[0].lines)
    assert (followed.code, followed.notes[-1]) == (0, f"run {told[0].run}: succeeded")


def test_folded_lines_are_the_same_lines_of_the_same_ranks(user: User, told: tuple[Done, float]) -> None:
    done = user.run("logs", "--fold", "--rank", "0-2")
    assert done.code == 0
    assert sorted(unfolded(done)) == sorted((said.rank, said.text) for said in told[0].workers)


def unfolded(done: Done) -> list[tuple[int, str]]:
    """Rank and text of every line, out of a folded output."""
    parts = [line.removeprefix("[").partition("] ") for line in done.lines]
    return [(rank, text) for label, _, text in parts for rank in ranks(label.partition(" ")[0]) or ()]


def test_json_lines_hold_to_the_contract(user: User, told: tuple[Done, float]) -> None:
    lines = objects(user)
    assert all(set(line) == FIELDS for line in lines)
    assert {(line["run"], line["attempt"], line["round"]) for line in lines} == {(told[0].run, 1, 0)}
    assert {(line["rank"], line["host"], line["local_rank"]) for line in lines} == {
        (0, "gpu00", 0), (1, "gpu00", 1), (2, "gpu01", 0)
    }  # fmt: skip
    steps = [line for line in lines if line["rank"] == 1 and line["stream"] == "out"]
    assert [line["offset"] for line in steps] == [0, *(line["next"] for line in steps[:-1])]
    *ended, last = lines  # what has no newline is a line once nothing can follow, with the time when it was written
    assert last["text"] == WRITTEN[-1]
    assert [line["time"] for line in ended] == sorted(line["time"] for line in ended)
    assert "caf\ufffd \ufffd" in {line["text"] for line in lines}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--rank", "1", "--tail", "2"], {1: ["step 98", "step 99"]}),
        (["--rank", "0,2", "--grep", "^first"], {0: ["first half"], 2: ["first half"]}),
        (["--rank", "1-2", "--stream", "err"], {1: ["an error of 1"], 2: ["an error of 2"]}),
        (["--host", "gpu01", "--stream", "out"], {2: ["first half"]}),
        (
            ["--host", "gpu00", "--grep", "step 9[89]|rest"],
            {0: ["half a line and the rest"], 1: ["step 98", "step 99"]},
        ),
    ],
)
@pytest.mark.usefixtures("told")
def test_a_filter_shows_what_it_says(user: User, words: list[str], expected: dict[int, list[str]]) -> None:
    done = user.run("logs", *words)
    assert {rank: texts(done, rank) for rank in {said.rank for said in done.workers}} == expected


def test_since_and_until_part_the_run(user: User, told: tuple[Done, float]) -> None:
    moment = datetime.fromtimestamp(told[1], tz=timezone.utc).isoformat()
    before = user.run("logs", "--until", moment)
    assert [sorted(texts(before, rank)) for rank in range(3)] == [[f"an error of {n}", "first half"] for n in range(3)]
    since = user.run("logs", "--since", moment, "--rank", "0-2")
    assert [len(texts(since, rank)) for rank in range(3)] == [len(WRITTEN) - 1, 100, 0]


def test_a_terminal_shows_progress_colours_and_unfinished_lines_and_ctrl_backslash_detaches(user: User) -> None:
    with user.start("run", "asks.py", terminal=True) as live:
        for label in ("\x1b[36m[0 gpu00:0]\x1b[0m", "\x1b[33m[1 gpu00:1]\x1b[0m", "\x1b[35m[2 gpu01:0]\x1b[0m"):
            live.wait_for(f"{label} hello")
        live.wait_for("] your name?".replace("]", "]\x1b[0m"))
        assert "clusterddp: connecting 2/2…" in live.text()
        run = live.run
        live.key("\x1c")
        done = live.end()
    assert done.code == 0
    assert f"clusterddp logs --follow {run}" in done.out
    assert user.status(run)["state"] == "running"
    with user.start("logs", "--follow", terminal=True) as live:
        live.wait_for("\x1b[36m[0 gpu00:0]\x1b[0m hello")
        live.key("\x03")
        assert live.end().code == 130
    for words in ((), ("--host", "gpu00")):  # the run goes on, and no line of it is to come
        until = user.run("logs", "--follow", "--until", "0s", *words)
        assert (until.code, until.notes[1:]) == (0, []), until.err
    assert user.run("stop").code == 0
    assert "your name? " in texts(user.run("logs"), 0)
