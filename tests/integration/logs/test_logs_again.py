"""The lines of a run, kept and gone on with: in files, from where an earlier command ended, of an earlier attempt."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.cli import WAIT, User, nothing_left
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab import Lab

need_torch()
pytestmark = pytest.mark.torch

GO = "/tmp/the second half of all"
COUNTS = f"""{WAIT}
rank = os.environ["RANK"]
for number in range(3000):
    print("line", number, flush=number % 7 == 0)
print("half ", end="", flush=True)
print("an error of", rank, file=sys.stderr, flush=True)
wait_for({GO!r})
print("a line\\n" + "".join("line %d\\n" % number for number in range(3000, 6000)), end="no end", flush=True)
"""
EXPECTED = [f"line {number}" for number in range(3000)]
EXPECTED += ["half a line", *(f"line {number}" for number in range(3000, 6000)), "no end"]


@pytest.fixture(scope="module")
def user(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> User:
    user = User(tmp_path_factory.mktemp("user"))
    lab.write_inventory(
        user.folder / "inventory.yaml", hosts=["gpu02", "gpu03"], more={"gpu02": {"clusterddp_nproc": 2}}
    )
    user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    user.write("counts.py", COUNTS)
    return user


@pytest.fixture(scope="module", autouse=True)
def _nothing_left(lab: Lab) -> Iterator[None]:
    with nothing_left(lab):
        yield


@pytest.fixture(scope="module")
def run(user: User, lab: Lab) -> Iterator[str]:
    """A run that has ended, after it was looked at in the middle in every way."""
    for host in lab.hosts[2:]:
        host.run(["rm", "-f", GO])
    (run,) = user.run("run", "--detach", "counts.py").lines
    with user.start("logs", "--follow", "--json", run) as follower, user.start("logs", "--follow", run) as saver:
        for rank in range(3):
            follower.wait_for(f"an error of {rank}")
            saver.wait_for(f"an error of {rank}")
        middle = user.run("logs", "--json", run)
        (user.folder / "middle.jsonl").write_text(middle.out[:-20])  # its writer was killed
        first = user.run("logs", "--save", "saved", run)
        assert first.code == 0, first.err
        with user.start("logs", "--save", "followed", "--follow", run) as files:
            for host in lab.hosts[2:]:
                host.write(GO, "")
            assert files.end().code == 0
        (user.folder / "live.jsonl").write_text(follower.end().out)
        assert saver.end().code == 0
    yield run
    for host in lab.hosts[2:]:
        host.run(["rm", "-f", GO])


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def texts(lines: list[dict[str, Any]], rank: int, stream: str = "out") -> list[str]:
    return [line["text"] for line in lines if (line["rank"], line["stream"]) == (rank, stream)]


def key(line: dict[str, Any]) -> tuple[Any, ...]:
    return (line["attempt"], line["host"], str(line["round"]), str(line["local_rank"]), line["stream"], line["offset"])


def test_live_and_replayed_lines_are_the_same_with_the_same_times(user: User, run: str) -> None:
    live = objects((user.folder / "live.jsonl").read_text())
    replayed = objects(user.run("logs", "--json", run).out)
    assert sorted(live, key=key) == sorted(replayed, key=key)
    for rank in range(3):
        assert texts(replayed, rank) == EXPECTED
    begun, ended = objects((user.folder / "middle.jsonl").read_text().rpartition("\n")[0]), replayed
    times = {key(line): line["time"] for line in ended}
    assert [line["time"] for line in begun] == [times[key(line)] for line in begun]


def test_after_goes_on_behind_the_lines_of_a_file_also_of_one_that_was_cut(user: User, run: str) -> None:
    path = user.folder / "middle.jsonl"
    done = user.run("logs", "--json", "--after", "middle.jsonl", run)
    assert done.code == 0, done.err
    with path.open("a") as file:
        file.write(done.out)
    whole = path.read_bytes()
    lines = [json.loads(text[text.rfind(b'{"time":') :]) for text in whole.splitlines()]
    for rank in range(3):
        assert texts(lines, rank) == EXPECTED
        assert texts(lines, rank, "err") == [f"an error of {rank}"]
    assert user.run("logs", "--json", "--after", "middle.jsonl", run).lines == []


@pytest.mark.parametrize("folder", ["saved", "followed"])
def test_saved_files_are_the_hosts_own_whenever_they_were_begun(user: User, lab: Lab, run: str, folder: str) -> None:
    again = user.run("logs", "--save", folder, run)
    assert again.code == 0, again.err
    assert again.out == ""
    for rank, host, local in ((0, "gpu02", 0), (1, "gpu02", 1), (2, "gpu03", 0)):
        spool = f".clusterddp/runs/{run}/1/{int(host == 'gpu03')}-{host}/logs"
        for stream in ("out", "err"):
            mine = (user.folder / folder / "1.0" / f"rank{rank}-{host}-{local}.{stream}").read_text()
            assert mine == lab.host(host).read(f"{lab.host(host).user().home}/{spool}/0.{local}.{stream}")
    agents = {"gpu02": 0, "gpu03": 1}
    logs = {host: f".clusterddp/runs/{run}/1/{rank}-{host}/logs/agent.out" for host, rank in agents.items()}
    said = {host for host, path in logs.items() if lab.host(host).read(f"{lab.host(host).user().home}/{path}")}
    assert {path.name for path in (user.folder / folder).glob("1/*")} == {f"agent-{host}.out" for host in said}
    assert user.run("logs", "--save", folder, run).notes[-1] == f"run {run}: 0 bytes written to 0 files in {folder}"


def test_save_takes_whole_files_of_some_ranks_and_refuses_lines(user: User, run: str, tmp_path: Path) -> None:
    done = user.run("logs", "--save", str(tmp_path / "x"), "--rank", "1", "--stream", "out", run)
    assert done.code == 0, done.err
    files = {path.name for path in (tmp_path / "x").rglob("*") if path.is_file()}
    assert files == {"run.json", "rank1-gpu02-1.out"}
    refused = user.run("logs", "--save", str(tmp_path / "x"), "--grep", "line", run)
    assert refused.code == 2
    assert refused.notes[-1] == "--save writes whole files: --grep cannot choose lines of them; leave it out"


def test_another_machine_with_the_same_inventory_sees_the_same(user: User, run: str, tmp_path: Path) -> None:
    other = User(tmp_path)
    inventory = str(user.folder / "inventory.yaml")
    mine, theirs = user.run("logs", "--json", run), other.run("logs", "-i", inventory, "--json", "--follow", run)
    assert (mine.code, theirs.code) == (0, 0)
    assert sorted(mine.lines) == sorted(theirs.lines)


def test_any_attempt_can_be_read_and_lines_tell_which(user: User, lab: Lab, run: str) -> None:
    for host in lab.hosts[2:]:  # as a relaunch leaves them
        host.run(["cp", "-a", f".clusterddp/runs/{run}/1", f".clusterddp/runs/{run}/2"])
    first = objects(user.run("logs", "--json", "--attempt", "1", run).out)
    last = objects(user.run("logs", "--json", run).out)
    both = objects(user.run("logs", "--json", "--attempt", "all", run).out)
    assert {line["attempt"] for line in first} == {1}
    assert {line["attempt"] for line in last} == {2}
    assert texts(first, 0) == texts(last, 0) == EXPECTED
    assert sorted(both, key=key) == sorted(first + last, key=key)
    followed = user.run("logs", "--follow", "--attempt", "all", "--rank", "2", "--stream", "err", run)
    assert (followed.code, [said.text for said in followed.workers]) == (0, ["an error of 2"] * 2)
    saved = user.run("logs", "--save", "attempts", "--attempt", "all", run)
    assert saved.code == 0, saved.err
    names = {path.name for path in (user.folder / "attempts").iterdir()}
    assert names - {"1", "2"} == {"run.json", "1.0", "2.0"}  # agents' lines stand in the former, if there were any
    assert user.run("logs", "--attempt", "3", run).notes[-1] == f"run {run} has no attempt 3; its attempts: 1, 2"
    refused = user.run("logs", "--attempt", "1", "--follow", run)
    assert refused.code == 125
    assert refused.notes[-1] == f"attempt 1 of run {run} has ended; leave --follow out, or --attempt"
    assert user.run("logs", "--attempt", "0", run).code == 2
