"""Data of a project on hosts: which version stands in each of the three states, and what a user is told of it."""

from __future__ import annotations

import itertools
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from clusterddp.errors import HostError, SyncError
from clusterddp.remote.shared.workdir import manifest
from clusterddp.remote.shared.workdir.manifest import Disk, Entry
from clusterddp.remote.workdir.data import HOST, PROJECT, DataRecord, decide
from clusterddp.sync.project_files.project_tree import scan
from clusterddp.sync.send_code import preview, sync
from tests.unit.sync_help import CKPT, FakeHost, content, project_at, project_tree, synced, write


def git(root: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(root), "-c", "user.name=u", "-c", "user.email=u@x", *words], check=True)


def version(text: str | None) -> Entry | None:
    return None if text is None else Entry(CKPT, "file", executable=False, size=len(text), content=text)


@pytest.mark.parametrize("take", ["", PROJECT, HOST])
@pytest.mark.parametrize(("before", "now"), list(itertools.product([None, "a", "b", "c"], repeat=2)))
def test_the_table_of_the_three_states(before: str | None, now: str | None, take: str) -> None:
    last, there = version(before), version(now)
    plan = Entry(CKPT, "file", executable=False, size=1, content="a")
    decision = decide({CKPT: last} if last else {}, [plan], lambda _: there, take)
    if now == "a":
        expected = ""
    elif now == before or (take == PROJECT and before != "a"):
        expected = "put"
    elif before == "a" or take == HOST:
        expected = "standing"
    else:
        expected = "conflicts"
    said = [name for name in ("put", "standing", "conflicts") if getattr(decision, name)]
    assert said == [expected] * bool(expected)


def test_the_projects_mode_is_set_unless_only_the_hosts_was_changed(root: Path, host: FakeHost) -> None:
    write(root, tool="#!/bin/sh")
    synced(root, host)
    (root / "tool").chmod(0o755)
    synced(root, host)
    assert os.access(host.workdir / "tool", os.X_OK)
    (host.workdir / "tool").chmod(0o644)
    write(root, **{"more.csv": "1"})
    assert synced(root, host).notices == ()
    assert not os.access(host.workdir / "tool", os.X_OK)


def test_a_checkpoint_that_a_run_rewrites_stays_at_every_sync_and_is_named_once(root: Path, host: FakeHost) -> None:
    synced(root, host)
    write(host.workdir, **{CKPT: "epoch 1"})
    first = synced(root, host)
    assert content(host.workdir)[CKPT] == "epoch 1"
    assert first.notices == (f"gpu01: {CKPT} was changed on the host since the last sync: the host's stays",)
    assert first.standing == {"gpu01": (CKPT,)}
    write(host.workdir, **{CKPT: "epoch 2"})
    write(root, **{"train.py": "print(2)"})
    second = synced(root, host)
    assert content(host.workdir) == {"train.py": "print(2)", CKPT: "epoch 2"}
    assert second.notices == ()
    assert second.standing == {"gpu01": (CKPT,)}


def test_a_version_is_named_by_the_sync_after_a_preview_and_after_a_sync_that_was_refused(
    root: Path, tmp_path: Path
) -> None:
    host, other = FakeHost(tmp_path, "gpu00"), FakeHost(tmp_path, "gpu01")
    synced(root, host, other)
    write(host.workdir, **{CKPT: "epoch 1"})
    preview([host], project_tree(root), workdir="/nowhere")  # type: ignore[list-item]
    write(root, **{"train.py": "print(2)"})
    preview([host], project_tree(root), workdir="/nowhere")  # type: ignore[list-item]
    with other.live_run("r1", other.workdir), pytest.raises(HostError, match="run r1 is live"):
        synced(root, host, other)
    notices = (
        f"gpu00: {CKPT} was changed on the host since the last sync: the host's stays",
        f"not the same on all hosts: {CKPT}",
    )
    assert synced(root, host, other).notices == notices
    assert synced(root, host, other).notices == ()


def test_an_unchanged_project_costs_one_question(root: Path, host: FakeHost) -> None:
    synced(root, host)
    assert host.calls == ["workdir_state", "sync_apply"]
    host.calls.clear()
    write(host.workdir, **{CKPT: "epoch 1"})
    synced(root, host)
    assert host.calls == ["workdir_state"]
    write(root, **{CKPT: "laptop"})
    write(root, **{"more.csv": "1"})
    host.calls.clear()
    synced(root, host)
    assert host.calls == ["workdir_state", "data_state", "sync_apply"]


def test_data_that_is_ignored_from_now_on_stays_on_the_host(root: Path, host: FakeHost) -> None:
    git(root.parent, "init", "-q", str(root))
    synced(root, host)
    write(host.workdir, **{CKPT: "epoch 9"})
    write(root, **{".gitignore": "ckpt/\n"})
    assert synced(root, host).notices == ()
    assert content(host.workdir) == {".gitignore": "ckpt/\n", "train.py": "print(1)", CKPT: "epoch 9"}
    (root / ".gitignore").unlink()
    synced(root, host)  # it is back, as it was last put
    assert content(host.workdir)[CKPT] == "epoch 9"


def test_unchanged_data_that_leaves_the_project_stays_too(root: Path, host: FakeHost) -> None:
    synced(root, host)
    (root / CKPT).unlink()
    synced(root, host)
    assert content(host.workdir)[CKPT] == "laptop"
    write(root, **{CKPT: "laptop again"})
    synced(root, host)  # the host has what was last put
    assert content(host.workdir)[CKPT] == "laptop again"


@pytest.mark.parametrize("committed", ["laptop", "edited"])
def test_code_of_an_earlier_time_leaves_what_was_data_then_and_is_code_by_now(
    root: Path, host: FakeHost, committed: str
) -> None:
    git(root.parent, "init", "-q", str(root))
    git(root, "add", "train.py")
    synced(root, host)
    earlier = replace(project_tree(root), data=(), data_manifest=b"", data_digest=None)  # as of `run --again`
    write(root, **{CKPT: committed, "later.txt": "", "later.py": ""})
    git(root, "add", "-A")
    synced(root, host)
    for _ in range(2):
        assert sync([host], earlier, workdir="/nowhere").notices == ()  # type: ignore[list-item]
        assert content(host.workdir) == {"train.py": "print(1)", CKPT: committed}
    write(root, **{CKPT: "edited again"})
    assert synced(root, host).notices == ()
    expected = {"train.py": "print(1)", CKPT: "edited again", "later.txt": "", "later.py": ""}
    assert content(host.workdir) == expected
    (root / CKPT).unlink()
    synced(root, host)
    assert CKPT not in content(host.workdir)


def test_data_that_only_the_project_changed_is_put(root: Path, host: FakeHost) -> None:
    synced(root, host)
    write(root, **{CKPT: "better"})
    result = synced(root, host)
    assert content(host.workdir)[CKPT] == "better"
    assert result.notices == ()
    assert result.hosts[0].changes.changed == (CKPT,)


def test_data_that_was_removed_on_the_host_stays_removed(root: Path, host: FakeHost) -> None:
    synced(root, host)
    (host.workdir / CKPT).unlink()
    write(root, **{"train.py": "print(2)"})
    synced(root, host)
    assert content(host.workdir) == {"train.py": "print(2)"}


def test_data_changed_on_both_sides_is_refused_before_any_host_is_changed(root: Path, tmp_path: Path) -> None:
    hosts = [FakeHost(tmp_path, name) for name in ("gpu00", "gpu01", "gpu02")]
    synced(root, *hosts)
    write(hosts[1].workdir, **{CKPT: "epoch 1"})
    write(root, **{CKPT: "better", "train.py": "print(2)"})
    before = [content(host.workdir) for host in hosts]
    with pytest.raises(SyncError, match=f"{CKPT}: changed in the project and on gpu01 since the last sync") as refused:
        synced(root, *hosts)
    assert [content(host.workdir) for host in hosts] == before
    remedy = refused.value.remedy or ""
    for way in (
        f"push --overwrite {CKPT}",
        f"pull --overwrite --host gpu01 {CKPT} {CKPT}",
        "--take project",
        "--take host",
    ):
        assert way in remedy


def test_a_file_with_a_dash_before_its_name_is_told_as_a_path(root: Path, host: FakeHost) -> None:
    write(root, **{"-1.bin": "first"})
    synced(root, host)
    write(host.workdir, **{"-1.bin": "host's"})
    write(root, **{"-1.bin": "ours"})
    with pytest.raises(SyncError) as refused:
        synced(root, host)
    remedy = refused.value.remedy or ""
    assert "push --overwrite ./-1.bin`" in remedy
    assert f"pull --overwrite --host {host.name} ./-1.bin ./-1.bin`" in remedy


def test_a_users_choice_ends_a_conflict_and_loses_nothing(root: Path, host: FakeHost) -> None:
    synced(root, host)
    for number, take in enumerate((PROJECT, HOST), 1):
        write(host.workdir, **{CKPT: f"epoch {number}"})
        write(root, **{CKPT: f"better {number}"})
        notices = synced(root, host, take=take).notices
        assert not any("git" in line for line in notices)  # it is data, which git does not track
        synced(root, host)  # no conflict any more
    assert content(host.workdir) == {
        "train.py": "print(1)",
        CKPT: "epoch 2",
        f"{CKPT}.clusterddp-kept-1": "epoch 1",
    }


def test_what_a_run_wrote_before_the_project_had_it_is_a_conflict_unless_it_is_the_same(
    root: Path, host: FakeHost
) -> None:
    (root / CKPT).unlink()
    synced(root, host)
    write(host.workdir, **{CKPT: "epoch 1"})
    write(root, **{CKPT: "epoch 1"})  # as `pull` brings it
    assert synced(root, host).notices == ()
    write(host.workdir, **{CKPT: "epoch 2"})
    synced(root, host)
    assert content(host.workdir)[CKPT] == "epoch 2"
    write(host.workdir, other="the host's")
    write(root, other="the project's")
    with pytest.raises(SyncError, match="other: changed in the project and on gpu01"):
        synced(root, host)


@pytest.mark.parametrize("name", ["a.py", "A.PYX", "x/run.SH", "conf/a.yaml", "b.YML", "p.toml", "s.cfg", "i.ini"])
def test_a_hosts_edit_of_code_is_kept_aside_whether_git_tracks_it_or_not(root: Path, host: FakeHost, name: str) -> None:
    write(root, **{name: "project"})
    synced(root, host)
    write(host.workdir, **{name: "host"})
    synced(root, host)
    assert content(host.workdir)[name] == "project"
    assert content(host.workdir)[f"{name}.clusterddp-kept-1"] == "host"


def test_what_git_tracks_is_code_and_a_run_that_rewrites_it_is_named_with_the_way_out(
    root: Path, host: FakeHost
) -> None:
    git(root.parent, "init", "-q", str(root))
    git(root, "add", "-A")
    synced(root, host)
    for epoch in range(1, 6):
        write(host.workdir, **{CKPT: f"epoch {epoch}"})
        (notice,) = synced(root, host).notices
        assert f"`git rm --cached {CKPT}`" in notice
        assert content(host.workdir)[CKPT] == "laptop"
    kept = {path: text for path, text in content(host.workdir).items() if "kept" in path}
    assert kept == {f"{CKPT}.clusterddp-kept-{number}": f"epoch {number + 2}" for number in (1, 2, 3)}
    git(root, "rm", "-q", "--cached", CKPT)
    write(host.workdir, **{CKPT: "epoch 6"})
    synced(root, host)
    assert content(host.workdir)[CKPT] == "epoch 6"
    git(root, "add", CKPT)
    synced(root, host)  # code again: the project's
    assert content(host.workdir)[CKPT] == "laptop"
    assert "epoch 6" in content(host.workdir).values()


def test_tracked_files_that_leave_the_project_go_and_those_that_are_no_code_by_name_are_named(
    root: Path, host: FakeHost
) -> None:
    git(root.parent, "init", "-q", str(root))
    write(root, **{"old.py": "", "vocab.txt": "a b"})
    git(root, "add", "-A")
    synced(root, host)
    for name in ("old.py", "vocab.txt"):
        (root / name).unlink()
    assert synced(root, host).notices == ("gpu01: removed, as git tracks it no more: vocab.txt",)
    assert content(host.workdir) == {"train.py": "print(1)", CKPT: "laptop"}


def test_a_tracked_folder_that_a_link_replaces_is_put_as_that_link_where_the_user_says_so(
    root: Path, host: FakeHost
) -> None:
    git(root.parent, "init", "-q", str(root))
    write(root, **{"conf/a.yaml": "lr: 1"})
    git(root, "add", "-A")
    synced(root, host)
    (root / "conf").rename(root / "conf_v2")
    (root / "conf").symlink_to("conf_v2")
    with pytest.raises(SyncError, match="conf: changed in the project and on gpu01"):
        synced(root, host)
    synced(root, host, take=PROJECT)
    assert synced(root, host).notices == ()
    moved = {"conf": "-> conf_v2", "conf_v2/a.yaml": "lr: 1"}
    assert content(host.workdir) == {"train.py": "print(1)", CKPT: "laptop", **moved}


def test_a_new_host_gets_the_projects_version_and_the_difference_between_hosts_is_named(
    root: Path, tmp_path: Path
) -> None:
    old, new = FakeHost(tmp_path, "gpu00"), FakeHost(tmp_path, "gpu01")
    synced(root, old)
    write(old.workdir, **{CKPT: "epoch 1"})
    result = synced(root, old, new)
    assert (content(old.workdir)[CKPT], content(new.workdir)[CKPT]) == ("epoch 1", "laptop")
    assert result.notices == (
        f"gpu00: {CKPT} was changed on the host since the last sync: the host's stays",
        f"not the same on all hosts: {CKPT}",
    )
    assert synced(root, old, new).notices == ()


def test_a_folder_that_hosts_share_is_judged_once(root: Path, tmp_path: Path) -> None:
    place = str(tmp_path / "shared")
    hosts = [FakeHost(tmp_path, name, workdir=place) for name in ("gpu00", "gpu01")]
    synced(root, *hosts)
    write(Path(place), **{CKPT: "epoch 1"})
    write(root, **{"train.py": "print(2)", "more.csv": "1"})
    synced(root, *hosts)
    assert content(Path(place)) == {"train.py": "print(2)", CKPT: "epoch 1", "more.csv": "1"}
    write(root, **{CKPT: "better"})
    with pytest.raises(SyncError, match="changed in the project and on gpu00, gpu01"):
        synced(root, *hosts)


def test_a_preview_shows_what_would_be_put_and_what_is_in_conflict(root: Path, host: FakeHost) -> None:
    synced(root, host)
    write(host.workdir, **{CKPT: "epoch 1"})
    write(root, **{CKPT: "better", "new.csv": "1"})
    (shown,) = preview([host], project_tree(root), workdir="/nowhere")  # type: ignore[list-item]
    assert shown.changes.new == ("new.csv",)
    assert shown.conflicts == (CKPT,)
    assert content(host.workdir) == {"train.py": "print(1)", CKPT: "epoch 1"}


def test_what_is_new_is_looked_up_once_for_each_file(root: Path, host: FakeHost) -> None:
    hashed = []

    class Counted(str):
        __slots__ = ()

        def __hash__(self) -> int:
            hashed.append(self)
            return super().__hash__()

    write(root, **{f"set/{number}.bin": "" for number in range(100)})
    tree = project_tree(root)
    data = tuple(entry._replace(path=Counted(entry.path)) for entry in tree.data)
    (shown,) = preview([host], replace(tree, data=data), workdir="/nowhere")  # type: ignore[list-item]
    assert (len(shown.changes.new), len(hashed) < 10 * len(data)) == (102, True)


def test_a_change_of_mode_sends_nothing(root: Path, host: FakeHost) -> None:
    synced(root, host)
    (root / CKPT).chmod(0o755)
    (shown,) = preview([host], project_tree(root), workdir="/nowhere")  # type: ignore[list-item]
    assert (shown.sent, shown.sent_bytes, shown.changes.changed) == (0, 0, (CKPT,))
    (done,) = synced(root, host).hosts
    assert (done.sent, done.sent_bytes) == (0, 0)
    assert os.access(host.workdir / CKPT, os.X_OK)


def test_only_data_that_changed_is_read_again(root: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root, **{f"set/{number}.bin": str(number) for number in range(20)})
    synced(root, host)
    disks: list[Disk] = []
    real = DataRecord.disk

    def seen(record: DataRecord) -> Disk:
        disks.append(real(record))
        return disks[-1]

    monkeypatch.setattr(DataRecord, "disk", seen)
    monkeypatch.setattr(manifest, "RACY_INTERVAL", 0)
    synced(root, host)
    write(host.workdir, **{"set/3.bin": "changed"})
    disks.clear()
    synced(root, host)
    assert [disk.hashed for disk in disks] == [1]


def test_a_project_of_code_alone_has_no_record_of_data(root: Path, host: FakeHost) -> None:
    (root / CKPT).unlink()
    synced(root, host)
    assert scan(project_at(root)).data_digest == ""
    assert not (host.workdir / ".clusterddp-live/data.json").exists()
