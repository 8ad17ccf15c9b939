"""What a pull of a run brings: what is new since its start by the folder's own clock, no code, nothing pushed."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.shared.wire.chunks import hash_file
from clusterddp.remote.shared.workdir.manifest import stats_of
from clusterddp.remote.system.bootstrap import Refused
from clusterddp.remote.user_files.pull_operations import pull_list
from clusterddp.remote.workdir.folder_lock import make_live_folder
from clusterddp.remote.workdir.push_record import PushRecord
from clusterddp.remote.workdir.start_marker import mark_start, start_of
from tests.unit.operation import run_operation
from tests.unit.sync_help import FakeHost, push, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    made = FakeHost(tmp_path)
    made.workdir.mkdir()
    return made


def listed(host: FakeHost, path: str = "", run: str = "", *, bytecode: bool = False) -> dict[str, Any]:
    args = {"workdir": str(host.workdir), "path": path, "run": run, "state": str(host.state), "bytecode": bytecode}
    found: dict[str, Any] = run_operation(pull_list, args)
    return found


def paths(host: FakeHost, path: str = "", run: str = "") -> list[str]:
    return [entry.path for entry in listed(host, path, run)["entries"]]


def tick(host: FakeHost) -> None:
    """Until the filesystem's clock, which ticks some hundred times a second, has moved on."""
    probe = host.place / "clock"
    probe.touch()
    before = probe.stat().st_mtime_ns
    while probe.stat().st_mtime_ns == before:
        probe.touch()


def test_of_a_run_only_what_is_new_since_its_start_and_no_code_comes(host: FakeHost, tmp_path: Path) -> None:
    write(tmp_path / "project", **{"train.py": "1", "conf.yaml": "2"})
    push(tmp_path / "project", host)
    write(host.workdir, **{"old.pt": "old", "touched.pt": "old", "data/kept": "x"})
    tick(host)
    mark_start(bytes(host.workdir), "r1", [])
    write(host.workdir, **{"ckpt/new.pt": "new", "conf.yaml": "changed by the run", "ckpt/__pycache__/x.pyc": "x"})
    (host.workdir / "old.pt").rename(host.workdir / "renamed.pt")
    write(host.workdir, **{"touched.pt": "more"})
    os.utime(host.workdir / "ckpt/new.pt", (1, 1))  # as an archive sets times
    assert paths(host, run="r1") == ["ckpt/new.pt", "conf.yaml", "renamed.pt", "touched.pt"]


def test_what_was_pushed_meanwhile_does_not_come_unless_the_run_has_changed_it(host: FakeHost) -> None:
    make_live_folder(bytes(host.workdir))
    mark_start(bytes(host.workdir), "r1", [])
    write(host.workdir, **{"data/a": "a", "data/b": "b"})
    record = PushRecord(str(host.state), bytes(host.workdir / "data"))
    entries = [entry._replace(path=entry.path[5:]) for entry in listed(host)["entries"]]
    record.complete(entries, {}, lambda path: stats_of((host.workdir / "data" / path).stat()))
    assert paths(host, run="r1") == []
    tick(host)
    write(host.workdir, **{"data/b": "c"})
    assert paths(host, run="r1") == ["data/b"]


def test_runs_that_wrote_there_too_are_named(host: FakeHost) -> None:
    root = bytes(host.workdir)
    make_live_folder(root)
    mark_start(root, "r0", [])
    tick(host)
    mark_start(root, "r1", ["r0"])
    tick(host)
    mark_start(root, "r2", [])
    mark_start(root, "r1", ["r2"])  # a later attempt
    assert listed(host, run="r1")["others"] == ["r0", "r2"]
    assert listed(host, run="r0")["others"] == ["r1", "r2"]
    assert listed(host, run="r2")["others"] == []


def test_a_mark_stays_for_a_month_and_a_damaged_one_says_nothing_of_others(host: FakeHost) -> None:
    root = bytes(host.workdir)
    make_live_folder(root)
    for number, days in enumerate((40, 20, 40)):
        mark_start(root, f"r{number}", [])
        os.utime(host.workdir / f".clusterddp-live/start.r{number}", (time.time() - days * 86400,) * 2)
    mark_start(root, "r9", ["r2"])
    assert [bool(start_of(root, name)) for name in ("r0", "r1", "r2", "r9")] == [False, True, True, True]
    for damage in (b"", b"7", b"[7]", b"\xff", b"[" * 99_999):
        (host.workdir / ".clusterddp-live/start.r9").write_bytes(damage)
        assert listed(host, run="r9")["others"] == []


def test_a_run_without_a_mark_is_refused_with_another_way(host: FakeHost) -> None:
    with pytest.raises(Refused, match="holds no mark of the start of run r7") as caught:
        listed(host, run="r7")
    assert caught.value.remedy == "name what you want: clusterddp pull PATH"


def test_a_path_that_is_a_link_of_this_user_is_followed(host: FakeHost, tmp_path: Path) -> None:
    write(tmp_path, **{"data/a": "a", "data/b/c": "c"})
    (host.workdir / "folder").symlink_to("file")
    (host.workdir / "file").symlink_to(tmp_path / "data/b/../a")
    (host.workdir / "none").symlink_to(tmp_path / "gone")
    (host.workdir / "round").symlink_to("round")
    (host.workdir / "below").symlink_to("file/x")
    assert paths(host, "folder") == ["a"]
    (host.workdir / "file").unlink()
    (host.workdir / "file").symlink_to(f"{tmp_path}/data/")
    assert paths(host, "folder") == ["a", "b/c"]
    assert not listed(host, "none")["there"]
    for name in ("round", "below"):
        (host.workdir / "file").unlink(missing_ok=True)
        (host.workdir / "file").touch()
        with pytest.raises(Refused, match=rf"^{name} cannot be read"):
            listed(host, name)


def test_bytecode_comes_only_where_it_is_wanted(host: FakeHost) -> None:
    write(host.workdir, **{"lib/a.pyc": "", "lib/b.py": "", "lib/__pycache__/c.pyc": ""})
    assert paths(host, "lib") == ["b.py"]
    listed_paths = [entry.path for entry in listed(host, "lib", bytecode=True)["entries"]]
    assert sorted(listed_paths) == ["__pycache__/c.pyc", "a.pyc", "b.py"]


def test_a_link_through_a_link_and_up_leads_where_the_kernel_leads(host: FakeHost) -> None:
    write(host.workdir, **{"runs/7/ckpt/x": "", "runs/7/best": "of run 7", "best": "of none"})
    (host.workdir / "cur").symlink_to("runs/7/ckpt")
    for name, target in (("file", "cur/../best"), ("folder", "cur/.."), ("through", "folder/ckpt/../best")):
        (host.workdir / name).symlink_to(target)
    assert listed(host, "file")["root"] == listed(host, "through")["root"] == str(host.workdir / "runs/7")
    assert paths(host, "file") == paths(host, "through") == ["best"]
    assert paths(host, "folder") == ["best", "ckpt/x"]


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's links are made")
@pytest.mark.parametrize("target", ["private", "private/key", "gone"])
def test_a_path_that_is_another_users_link_is_refused(host: FakeHost, tmp_path: Path, target: str) -> None:
    write(tmp_path, **{"private/key": "x"})
    (tmp_path / "out").symlink_to(tmp_path / target)
    os.lchown(tmp_path / "out", 4242, 4242)
    (tmp_path / "mine").symlink_to("out")
    for name in ("out", "mine"):
        with pytest.raises(Refused, match="/out is another user's link"):
            listed(host, str(tmp_path / name))


def test_what_cannot_come_is_named_and_no_link_is_followed(host: FakeHost, tmp_path: Path) -> None:
    write(tmp_path / "outside", secret="s")
    write(host.workdir, **{"out/a": "a", "out/.git/config": "g", "out/sub/b": "b", "out/.clusterddp-parts-0a/x": "p"})
    os.mkfifo(host.workdir / "out/fifo")
    for name, target in (("away", tmp_path / "outside"), ("up", "../.."), ("odd", "sub/../a"), ("fine", "sub/b")):
        (host.workdir / "out" / name).symlink_to(target)
    found = listed(host, "out")
    assert [entry.path for entry in found["entries"]] == ["a", "fine", "sub/b"]
    assert sorted(found["skipped"]) == [
        ["away", "links that lead out"],
        ["fifo", "neither files nor links"],
        ["odd", "links that lead out"],
        ["up", "links that lead out"],
    ]
    assert (found["there"], found["folder"], listed(host, "out/a")["folder"]) == (True, True, False)
    assert paths(host, "out/a") == ["a"]
    assert listed(host, "nothing")["there"] is False


def test_what_cannot_be_read_is_named_and_what_was_removed_meanwhile_is_not(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(host.workdir, **{f"out/{name}/x": "" for name in ("fine", "gone", "hidden", "locked")})
    scandir, lstat = os.scandir, os.lstat
    errors = {b"locked": PermissionError(13, "Permission denied"), b"gone": FileNotFoundError(2, "no such file")}

    def scan(path: Any) -> Any:
        if error := errors.get(os.fsencode(path).rpartition(b"/")[2]):
            raise error
        return scandir(path)

    def stat_of(path: Any, **options: Any) -> os.stat_result:  # of a file in a folder that may be listed, not searched
        if os.fsencode(path).endswith(b"/hidden/x"):
            raise PermissionError(13, "Permission denied")
        return lstat(path, **options)

    monkeypatch.setattr(os, "scandir", scan)
    monkeypatch.setattr(os, "lstat", stat_of)
    found = listed(host, "out")
    assert [entry.path for entry in found["entries"]] == ["fine/x"]
    why = "cannot be read (Permission denied)"
    assert sorted(found["skipped"]) == [["hidden/x", why], ["locked", why]]


def test_bytecode_stays_and_names_that_another_disk_takes_for_gits_or_ours_are_named(host: FakeHost) -> None:
    write(host.workdir, **{"out/a": "", "out/b.pyc": "", "out/__pycache__/c.pyc": "", "out/.git/x": ""})
    write(host.workdir, **{"out/.Git": "", "out/sub/.ClusterDDP-live/x": "", "out/sub/.clusterddp-live/y": ""})
    found = listed(host, "out")
    assert [entry.path for entry in found["entries"]] == ["a"]
    reason = "named as git's files or clusterddp's own"
    assert sorted(found["skipped"]) == [[".Git", reason], ["sub/.ClusterDDP-live", reason]]
    skipped = ([".Git", reason], [".git", reason], ["sub/.ClusterDDP-live", reason], ["sub/.clusterddp-live", reason])
    assert sorted(listed(host, "out", bytecode=True)["skipped"]) == [*skipped]  # for a push, which brings all else


def test_from_the_home_folder_a_file_a_folder_and_all_of_it(
    host: FakeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write(tmp_path / "home", **{"top.txt": "", "d/x": ""})
    write(host.workdir, **{"~/own": ""})
    assert paths(host, "~/top.txt") == paths(host, "~//top.txt") == ["top.txt"]
    assert paths(host, "~/d") == ["x"]
    assert paths(host, "~") == paths(host, "~/") == ["d/x", "top.txt"]
    assert paths(host, "./~") == ["own"]


def test_only_what_changed_is_read_again(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterddp.remote.shared.workdir.manifest.RACY_INTERVAL", 0)
    write(host.workdir, a="1", b="2")
    tick(host)
    first = listed(host)["entries"]
    write(host.workdir, b="3")
    read: list[bytes] = []

    def counted(path: bytes, _check: object) -> tuple[int, list[str]]:
        read.append(path)
        return hash_file(path)

    monkeypatch.setattr("clusterddp.remote.shared.workdir.manifest.hash_file", counted)
    second = listed(host)["entries"]
    assert read == [bytes(host.workdir / "b")]
    assert (first[0], first[1].content != second[1].content) == (second[0], True)
