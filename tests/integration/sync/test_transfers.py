"""sync, push and pull as a user gives them, in this process, over real helpers on hosts with homes of their own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from clusterddp.cli.main import main
from clusterddp.errors import SyncError
from clusterddp.remote.shared.wire.chunks import CHUNK
from clusterddp.sync.transfer.local_files import LocalFolder
from tests.unit.sync_help import content, write

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = ("gpu00", "gpu01", "gpu02")


@dataclass(frozen=True)
class User:
    """A project folder, which is the current one, and the hosts' workdirs below ``place``."""

    place: Path
    folder: Path
    capsys: pytest.CaptureFixture[str]

    def work(self, host: str) -> Path:
        return self.place / host / "work"

    def __call__(self, *argv: str) -> tuple[int, list[str], list[str]]:
        """The exit code of a command, its lines on stdout, and our own on stderr but the cluster's."""
        with pytest.raises(SystemExit) as ended:
            main(list(argv))
        out, err = self.capsys.readouterr()
        assert all(line.startswith("clusterddp: ") for line in err.splitlines()), err
        notes = [line.removeprefix("clusterddp: ") for line in err.splitlines()]
        code = ended.value.code
        assert isinstance(code, int)
        passed_over = ("cluster:", "part of the project from now on")  # said of .gitignore: test_workdir.py
        return code, out.splitlines(), [note for note in notes if not any(one in note for one in passed_over)]


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> User:
    folder = tmp_path / "project"
    write(folder, **{"train.py": "print(1)", "pkg/model.py": "A = 1"})
    lines = ["all:", "  hosts:"]
    for name in HOSTS:
        here = tmp_path / name
        lines += [f"    {name}:", "      ansible_connection: local"]
        lines += [f"      clusterddp_{key}: {here / value}" for key, value in (("workdir", "work"), ("state", "state"))]
    (tmp_path / "inventory.yaml").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLUSTERDDP_INVENTORY", str(tmp_path / "inventory.yaml"))
    return User(place=tmp_path, folder=folder, capsys=capsys)


def project(user: User) -> dict[str, str]:
    return {name: text for name, text in content(user.folder).items() if not name.startswith(".clusterddp/")}


def test_sync_says_what_would_change_then_changes_it_then_finds_nothing(user: User) -> None:
    write(user.folder, **{".env": "SECRET=1"})
    first = ["gpu[00:02]: would be 2 new; 13 bytes to send", "  + pkg/model.py", "  + train.py"]
    assert user("sync", "--dry-run") == (0, first, ["not synced, they look like keys: .env"])
    assert not user.work("gpu00").exists()
    code, out, notes = user("sync")
    assert (code, out[0]) == (0, "gpu[00:02]: 2 new; 13 bytes in these files")
    assert notes[-1].endswith("is on 3 hosts")
    write(user.folder, **{"train.py": "print(2)"})
    (user.folder / "pkg/model.py").unlink()
    assert user("sync", "--limit", "gpu01")[:2] == (
        0,
        ["gpu01: 1 changed, 1 removed; 8 bytes in these files", "  ~ train.py", "  - pkg/model.py"],
    )
    code, out, _ = user("sync", "--dry-run")
    assert [line for line in out if not line.startswith(" ")] == [
        "gpu00, gpu02: would be 1 changed, 1 removed; 8 bytes to send",
        "gpu01: nothing to change",
    ]
    user("sync")
    assert [content(user.work(name)) for name in HOSTS] == [{"train.py": "print(2)"}] * 3
    assert user("sync")[1] == ["gpu[00:02]: nothing to change"]


def test_sync_refuses_while_a_live_run_has_other_code_there(user: User) -> None:
    from clusterddp.remote.workdir.run_markers import mark  # noqa: PLC0415 - stands in for a supervisor

    user("sync")
    state, workdir = str(user.place / "gpu01/state"), bytes(user.work("gpu01"))
    marker = mark(state, workdir, "r1", "gpu01", os.getpid())
    assert user("sync")[0] == 0
    write(user.folder, **{"train.py": "print(2)"})
    for words in (("sync",), ("sync", "--dry-run")):
        code, out, notes = user(*words)
        assert (code, out) == (1, [])
        assert notes[-1] == (
            f"gpu01: run r1 is live in {user.work('gpu01')} with other code or data; give this run a folder of its own"
            " with --workdir NAME, wait for that run, or `clusterddp stop r1`"
        )
    assert [content(user.work(name))["train.py"] for name in HOSTS] == ["print(1)"] * 3
    os.unlink(marker)  # noqa: PTH108 - bytes
    assert user("sync")[0] == 0


def data(user: User, host: str, name: str = "") -> dict[str, str]:
    return content(user.work(host) / name)


@pytest.mark.parametrize(
    ("first", "second"), [("data", "data/train"), ("data/train", "data"), ("data", "data/train/a")]
)
def test_what_a_push_of_more_or_less_has_put_there_is_replaced(user: User, first: str, second: str) -> None:
    (user.folder / ".gitignore").write_text("data/\n")
    write(user.folder, **{"data/train/a": "1", "data/val/b": "1"})
    assert user("push", first)[0] == 0
    write(user.folder, **{"data/train/a": "2"})
    assert user("push", second)[0] == 0
    assert content(user.work("gpu00") / "data/train") == {"a": "2"}
    write(user.work("gpu00"), **{"data/train/a": "job's"})
    assert user("push", first)[0] != 0
    assert content(user.work("gpu00") / "data/train") == {"a": "job's"}


def test_pushed_files_go_where_they_are_named(user: User) -> None:
    write(user.place / "in", **{"data/s1.bin": "1", "data/sub/s2.bin": "2", "one.txt": "one"})
    source = str(user.place / "in")
    whole = {"s1.bin": "1", "sub/s2.bin": "2"}
    cases: dict[tuple[str, ...], dict[str, str]] = {
        (f"{source}/data", "a"): {f"a/{name}": text for name, text in whole.items()},
        (f"{source}/data/", "b/"): {f"b/{name}": text for name, text in whole.items()},
        (f"{source}/data", "c/"): {f"c/data/{name}": text for name, text in whole.items()},
        (f"{source}/data", f"{source}/one.txt", "d"): {
            **{f"d/data/{name}": text for name, text in whole.items()},
            "d/one.txt": "one",
        },
        (f"{source}/one.txt", "e/two.txt"): {"e/two.txt": "one"},
        (f"{source}/one.txt",): {"one.txt": "one"},
        (f"{source}/one.txt", str(user.place / "gpu01/abs/x")): {},
    }
    expected: dict[str, str] = {}
    for words, there in cases.items():
        code, out, notes = user("push", "--limit", "gpu01", *words)
        assert (code, notes) == (0, []), words
        assert "put there" in out[0]
        expected |= there
        assert data(user, "gpu01") == expected, words
        assert "all is there" in user("push", "--limit", "gpu01", *words)[1][0], words
    assert (user.place / "gpu01/abs/x").read_text() == "one"
    assert list((user.place / "gpu01/abs").iterdir()) == [user.place / "gpu01/abs/x"]


def test_a_push_sends_what_is_lacking_and_replaces_only_what_a_push_has_put(user: User) -> None:
    write(user.place, **{"data/a": "x" * 5000, "data/b": "b", "data/link": ""})
    (user.place / "data/link").unlink()
    (user.place / "data/link").symlink_to("a")
    source = str(user.place / "data")
    write(user.work("gpu01"), **{"data/own": "own", "data/b": "b"})
    code, out, _ = user("push", source)
    assert (code, out) == (
        0,
        [
            f"gpu00: {user.work('gpu00')}/data: 2 files put there, 5 kB sent",
            f"gpu01: {user.work('gpu01')}/data: 1 file put there, 5 kB sent",
            f"gpu02: {user.work('gpu02')}/data: 2 files put there, 5 kB sent",
        ],
    )
    write(user.place, **{"data/a": "new"})
    assert user("push", source)[0] == 0
    assert data(user, "gpu01", "data") == {"a": "new", "b": "b", "link": "-> a", "own": "own"}
    write(user.place, **{"data/a": "newer"})
    write(user.work("gpu02"), **{"data/a": "edited there"})
    code, out, notes = user("push", source)
    assert (code, out) == (1, [])
    assert notes == [
        f"gpu02: a in {user.work('gpu02')}/data differs, and no push has put it there as it is; --overwrite replaces it"
    ]
    assert data(user, "gpu01", "data")["a"] == "new"
    assert user("push", "--overwrite", source)[0] == 0
    assert [data(user, host, "data")["a"] for host in HOSTS] == ["newer"] * 3


REFUSED = (
    (("nowhere", "x"), 2, "nowhere: no such file or folder"),
    (("train.py", "pkg", "../up/"), 1, "leads out of the workdir; give a path below it, or an absolute one"),
    (("train.py", "train.py"), 1, "sync manages train.py in "),
    (("train.py", "pkg/model.py/x"), 1, "is not a folder"),
    (("train.py", "pkg"), 1, "pkg in {work} is a folder"),
    (("train.py", ".clusterddp-live/x"), 1, "leads out of the workdir"),
    (("train.py", "own"), 1, "own in {work} is a folder; end the destination with / to go below it"),
    (("train.py", "pkg", "own/deep/x/"), 1, "is not a folder"),
    (("train.py", "file"), 1, "file in {work} differs"),
    (("pkg/", "file"), 1, "file is not a folder"),
    ((".", "whole"), 2, ". has no name of its own"),
)


def test_what_a_push_may_not_do_is_one_line_and_changes_nothing(user: User) -> None:
    assert user("sync", "--limit", "gpu01")[0] == 0
    write(user.work("gpu01"), **{"own/deep/x": "own", "file": "own"})
    before = data(user, "gpu01")
    for words, code, said in REFUSED:
        found, out, notes = user("push", "--limit", "gpu01", *words)
        assert (found, out, len(notes)) == (code, [], 1), (words, notes)
        assert said.format(work=user.work("gpu01")) in notes[0], words
        assert data(user, "gpu01") == before, words


def test_a_push_says_what_it_leaves_out_and_keeps_odd_names(user: User) -> None:
    folder = user.place / "odd"
    write(folder, **{"new\nline": "1", "quo'te": "2", "sub/x": "3", ".clusterddp-x/y": "4"})
    (folder / os.fsdecode(b"\xff")).write_text("5")
    (folder / "out").symlink_to("/etc/passwd")
    (folder / "sub/up").symlink_to("../sub/x")
    os.mkfifo(folder / "fifo")
    code, _, notes = user("push", f"{folder}/", "odd")
    assert code == 0
    assert sorted(notes) == [
        "left out, clusterddp's own: .clusterddp-x",
        "left out, links that lead out of it: out",
        "left out, neither files nor links: fifo",
    ]
    names = {"new\nline", "quo'te", "sub/x", os.fsdecode(b"\xff"), "sub/up"}
    assert set(data(user, "gpu00", "odd")) == names
    assert data(user, "gpu00", "odd")["sub/up"] == "-> ../sub/x"


def test_a_push_goes_through_the_hosts_own_link_to_a_large_disk(user: User) -> None:
    disk = user.place / "disk"
    disk.mkdir()
    user.work("gpu00").mkdir(parents=True)
    (user.work("gpu00") / "data").symlink_to(disk)
    assert user("push", "--limit", "gpu00", "pkg", "data")[0] == 0
    assert content(disk) == {"model.py": "A = 1"}
    (disk / "deep").symlink_to(user.place / "elsewhere")
    code, _, notes = user("push", "--limit", "gpu00", "pkg", "train.py", "data/deep/x/")
    assert (code, notes) == (0, [])  # the destination is the user's word, links on the way to it too
    write(user.place, **{"more/deep/file": "x"})
    code, _, notes = user("push", "--limit", "gpu00", str(user.place / "more"), "data")
    assert code == 1
    assert "deep is a link on this host" in notes[0]


def test_equal_files_come_once_and_differing_ones_lie_by_host(user: User) -> None:
    for host in HOSTS:
        write(user.work(host), **{"out/all.txt": "same", "out/deep/log": f"of {host}", f"out/only-{host}": host})
    write(user.work("gpu00"), **{"out/mixed": "a file"})
    write(user.work("gpu01"), **{"out/mixed/inside": "x"})
    (user.work("gpu02") / "out/run.sh").write_text("#!/bin/sh")
    (user.work("gpu02") / "out/run.sh").chmod(0o6755)
    (user.work("gpu02") / "out/link").symlink_to("deep/log")
    code, out, notes = user("pull", "out", "here")
    assert code == 1
    assert content(user.folder / "here") == {
        "all.txt": "same",
        "gpu00/deep/log": "of gpu00",
        "gpu01/deep/log": "of gpu01",
        "gpu02/deep/log": "of gpu02",
        "gpu00/mixed": "a file",
        "mixed/inside": "x",
        "only-gpu00": "gpu00",
        "only-gpu01": "gpu01",
        "only-gpu02": "gpu02",
        "run.sh": "#!/bin/sh",
        "link": "-> deep/log",
    }
    assert (user.folder / "here/run.sh").stat().st_mode & 0o7777 & ~0o022 == 0o755 & ~0o022
    assert notes == ["not the same on all hosts, each in a folder of its host's name: deep/log, mixed"]
    assert out == ["here: 11 files, 59 bytes from gpu[00:02]"]
    code, out, _ = user("pull", "out", "here")
    assert (code, out) == (1, ["here: 0 files, 0 bytes from gpu[00:02]; 11 here already"])
    code, out, notes = user("pull", "--host", "gpu01", "out/deep/", "one")
    assert (code, notes, content(user.folder / "one")) == (0, [], {"log": "of gpu01"})


def test_files_here_stay_unless_overwriting_is_asked_for(user: User) -> None:
    write(user.work("gpu00"), **{"ckpt/last.pt": "epoch 2", "ckpt/first.pt": "epoch 1", "ckpt/sub/x": "x"})
    write(user.folder, **{"ckpt/last.pt": "mine"})
    (user.folder / "ckpt/sub").symlink_to(user.place)
    code, out, notes = user("pull", "--host", "gpu00", "./ckpt")
    assert (code, out) == (1, ["ckpt: 1 file, 7 bytes from gpu00"])
    assert notes == ["here is something else by that name, which stays: last.pt, sub/x; --overwrite replaces it"]
    assert (user.folder / "ckpt/last.pt").read_text() == "mine"
    assert not (user.place / "x").exists()
    (user.folder / "ckpt/sub").unlink()
    assert user("pull", "--host", "gpu00", "--overwrite", "./ckpt", "ckpt")[0] == 0
    assert content(user.folder / "ckpt") == content(user.work("gpu00") / "ckpt")


@pytest.mark.parametrize(
    ("words", "there"),
    [
        (("ckpt", "a"), "a/x"),
        (("ckpt", "b/"), "b/ckpt/x"),
        (("ckpt/", "c/"), "c/x"),
        (("ckpt/x",), "x"),
        (("ckpt/x", "d"), "d"),
        (("ckpt/x", "e/"), "e/x"),
        (("ckpt/x", "pkg"), "pkg/x"),
    ],
)
def test_pulled_files_go_where_they_are_named(user: User, words: tuple[str, ...], there: str) -> None:
    write(user.work("gpu00"), **{"ckpt/x": "1"})
    before = project(user)
    assert user("pull", "--limit", "gpu00", *words)[0] == 0
    assert project(user) == {**before, there: "1"}


def test_a_push_may_come_from_one_host(user: User) -> None:
    write(user.work("gpu01"), **{"data/s1": "1", "data/sub/s2": "2" * 10_000})
    assert user("push", "gpu01:data/", "sets")[0] == 0
    assert [data(user, host, "sets") for host in HOSTS] == [{"s1": "1", "sub/s2": "2" * 10_000}] * 3
    assert user("push", "gpu01:data/s1")[0] == 0
    assert data(user, "gpu02", "data") == {"s1": "1"}
    for word, code, said in (
        ("gpu09:data", 2, "gpu09:data: no such file, and no node or spare is called gpu09"),
        ("gpu01:nothing", 1, "gpu01:nothing: nothing is there"),
        ("gpu01:../up", 1, "leads out of the workdir"),
    ):
        found, _, notes = user("push", word, "x")
        assert (found, len(notes)) == (code, 1)
        assert said in notes[0]


def test_a_pull_that_broke_off_goes_on_and_what_a_job_writes_meanwhile_is_read_again(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.urandom(3 * CHUNK)
    write(user.work("gpu00"), **{"out/log": "line 1\n"})
    (user.work("gpu00") / "out/big.pt").write_bytes(whole)
    put, came = LocalFolder.put, list[int]()

    def broken(landing: LocalFolder, digest: str, chunk: bytes) -> None:
        if sum(came) > CHUNK:
            raise SyncError("the disk is pulled out")
        came.append(len(chunk))
        put(landing, digest, chunk)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "put", broken)
        assert user("pull", "--host", "gpu00", "out")[0] == 1
    assert not (user.folder / "out/big.pt").exists()
    came.clear()

    def written(landing: LocalFolder, digest: str, chunk: bytes) -> None:
        came.append(len(chunk))
        put(landing, digest, chunk)
        if len(came) == 1:
            with (user.work("gpu00") / "out/log").open("a") as log:
                log.write("line 2\n")

    monkeypatch.setattr(LocalFolder, "put", written)
    code, _, notes = user("pull", "--host", "gpu00", "out")
    assert (code, notes) == (0, [])
    assert sum(came) < 2 * CHUNK
    assert (user.folder / "out/big.pt").read_bytes() == whole
    assert (user.folder / "out/log").read_text() in ("line 1\n", "line 1\nline 2\n")
    assert sorted(path.name for path in (user.folder / "out").iterdir()) == ["big.pt", "log"]
