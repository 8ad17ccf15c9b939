from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterddp.errors import HelperError, HostsError, SyncError
from clusterddp.remote.workdir import workdir as remote_workdir
from clusterddp.sync.send_code import preview, sync, workdirs_as_they_are
from tests.unit.sync_help import FakeHost, content, project_tree, push, tree_of, write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    write(folder, **{"train.py": "print(1)", "pkg/__init__.py": "", "pkg/model.py": "A = 1", "conf/a.yaml": "lr: 1"})
    return folder


@pytest.mark.parametrize(
    "wrong",
    [
        {"have": 7}, {"have": [["a"]]}, {"have": [["a", "file", False, 1, []], None]}, {"chunks": 7}, {"live": 7},
        {"workdir": None}, {"live": None}, {"data": None}, {"shared": ["/w"]},
    ],
    ids=repr,
)  # fmt: skip
def test_a_damaged_answer_is_an_error_of_its_host(root: Path, host: FakeHost, wrong: dict[str, Any]) -> None:
    told = {"ready": False, "workdir": "/w", "live": [], "shared": None, "links": [], "notice": "", "digest": ""}
    host.call = lambda *_, **__: {**told, "data": {"settled": True}, **wrong}  # type: ignore[method-assign]
    with pytest.raises(HelperError, match="gpu01: its answer is damaged"):
        preview([host], tree_of(root), workdir="/w")  # type: ignore[list-item]


def test_the_workdir_equals_the_project_and_the_second_sync_is_one_question(root: Path, host: FakeHost) -> None:
    (root / "train.py").chmod(0o755)
    (root / "link.py").symlink_to("pkg/model.py")
    result = push(root, host)
    assert content(host.workdir) == content(root)
    assert os.access(host.workdir / "train.py", os.X_OK)
    assert not os.access(host.workdir / "pkg/model.py", os.X_OK)
    assert (result.hosts[0].sent, result.hosts[0].digest) == (4, tree_of(root).digest)
    assert result.workdirs == {"gpu01": str(host.workdir)}
    host.calls.clear()
    assert push(root, host).hosts[0].sent == 0
    assert host.calls == ["workdir_state"]


def test_only_changed_files_are_sent(root: Path, host: FakeHost) -> None:
    push(root, host)
    write(root, **{"train.py": "print(2)"})
    (root / "pkg/model.py").chmod(0o755)
    result = push(root, host).hosts[0]
    assert (result.sent, result.sent_bytes, result.kept) == (1, len("print(2)"), ())
    assert os.access(host.workdir / "pkg/model.py", os.X_OK)


@pytest.mark.parametrize("another", [False, True])
def test_a_change_among_many_files_is_told_by_what_differs_where_the_old_manifest_is_known(
    root: Path,
    host: FakeHost,
    another: bool,  # noqa: FBT001
) -> None:
    write(root, **{f"many/m{number:03}.py": str(number) for number in range(300)})
    push(root, host)
    if another:  # operator, who has sent nothing before
        shutil.rmtree(root.with_name("project.synced"))
    write(root, **{"many/m100.py": "changed"})
    (root / "pkg/model.py").rename(root / "pkg/moved.py")
    (root / "many/m200.py").unlink()
    host.sent_bytes = 0
    result = push(root, host).hosts[0]
    assert content(host.workdir) == content(root)
    changes = result.changes
    assert (changes.new, changes.changed) == (("pkg/moved.py",), ("many/m100.py",))
    assert changes.removed == ("many/m200.py", "pkg/model.py")
    assert (host.sent_bytes > 10_000) == another


def test_one_operator_after_another_each_finds_what_the_other_has_put(root: Path, host: FakeHost) -> None:
    kept = root.with_name("project.synced")
    for number in range(3):
        for name in ("one", "two"):
            if (root.parent / name).exists():
                (root.parent / name).rename(kept)
            write(root, **{"train.py": f"print({number}, {name!r})"})
            assert push(root, host).notices == ()
            assert content(host.workdir) == content(root)
            kept.rename(root.parent / name)


def test_what_a_run_wrote_is_found_again_after_an_edit(root: Path, host: FakeHost) -> None:
    push(root, host)
    write(host.workdir, **{"snapshot.pt": "epoch 3", "pkg/out/log.txt": "x"})
    write(root, **{"train.py": "print(2)"})
    (root / "pkg/model.py").unlink()
    assert push(root, host).hosts[0].removed == 1
    there = content(host.workdir)
    assert (there["snapshot.pt"], there["pkg/out/log.txt"], there["train.py"]) == ("epoch 3", "x", "print(2)")


def test_a_file_removed_here_is_removed_there_with_its_bytecode_and_empty_folders(root: Path, host: FakeHost) -> None:
    push(root, host)
    subprocess.run([sys.executable, "-c", "import pkg.model"], cwd=host.workdir, check=True)
    for name in ("__init__.py", "model.py"):
        (root / "pkg" / name).unlink()
    push(root, host)
    assert not (host.workdir / "pkg").exists()


def test_a_replaced_module_is_not_run_from_stale_bytecode(root: Path, host: FakeHost) -> None:
    push(root, host)
    show = [sys.executable, "-c", "import pkg.model; print(pkg.model.A)"]
    assert subprocess.check_output(show, cwd=host.workdir) == b"1\n"
    stamp = (host.workdir / "pkg/model.py").stat().st_mtime
    write(root, **{"pkg/model.py": "A = 2"})
    push(root, host)
    os.utime(host.workdir / "pkg/model.py", (stamp, stamp))
    assert subprocess.check_output(show, cwd=host.workdir) == b"2\n"


def test_a_file_edited_on_the_host_is_kept_aside_and_named(root: Path, host: FakeHost) -> None:
    push(root, host)
    write(host.workdir, **{"train.py": "print('mine')"})
    result = push(root, host)
    there = content(host.workdir)
    assert there["train.py"] == "print(1)"
    assert there["train.py.clusterddp-kept-1"] == "print('mine')"
    assert result.notices == ("gpu01: train.py on the host was not the project's: kept as train.py.clusterddp-kept-1",)
    write(host.workdir, **{"train.py": "print('mine')"})
    push(root, host)
    assert len([name for name in content(host.workdir) if "kept" in name]) == 1
    write(host.workdir, **{"train.py": "print('other')"})
    push(root, host)
    assert content(host.workdir)["train.py.clusterddp-kept-2"] == "print('other')"


@pytest.mark.parametrize("stem", ["x" * 252, "x" + "é" * 125, "x" * 235, "\udcff" * 252])
def test_a_file_with_a_long_name_is_kept_under_its_beginning(root: Path, host: FakeHost, stem: str) -> None:
    name = f"pkg/{stem}.py"
    for number in range(3):
        write(root, **{name: f"print({number})"})
        push(root, host)
        write(host.workdir, **{name: f"print('mine {number}')"})
    (kept,) = push(root, host).hosts[0].kept
    there = content(host.workdir)
    found = {path: text for path, text in there.items() if "kept" in path}
    assert sorted(found.values()) == [f"print('mine {number}')" for number in range(3)]
    assert (kept.path, found[kept.kept_as]) == (name, "print('mine 2')")
    assert there[name] == "print(2)"
    assert kept.kept_as.startswith(f"pkg/{stem[:50]}")
    assert kept.kept_as.endswith(".clusterddp-kept-3")
    assert stem[0] == "\udcff" or kept.kept_as.isprintable()


def test_each_file_edited_on_the_host_is_named_and_each_removed_one_counted_over_all_tries(
    root: Path, host: FakeHost
) -> None:
    write(root, **{"old.py": ""})
    push(root, host)
    write(host.workdir, **{"train.py": "print('mine')", "pkg/model.py": "A = 'mine'"})
    write(root, **{"train.py": "print(2)"})
    (root / "old.py").unlink()
    host.calls.clear()
    result = push(root, host).hosts[0]
    assert host.calls == ["workdir_state", "sync_apply"] * 2  # the first finds one edited file, its proof the other
    assert [kept.path for kept in result.kept] == ["train.py", "pkg/model.py"]
    assert result.removed == 1


def test_an_edit_that_keeps_size_and_mtime_is_seen(root: Path, host: FakeHost) -> None:
    push(root, host)
    info = (host.workdir / "train.py").stat()
    write(host.workdir, **{"train.py": "print(9)"})
    os.utime(host.workdir / "train.py", ns=(info.st_atime_ns, info.st_mtime_ns))
    assert push(root, host).hosts[0].kept
    assert content(host.workdir)["train.py"] == "print(1)"


def test_a_file_no_sync_put_is_kept_aside_unless_it_is_the_same(root: Path, host: FakeHost) -> None:
    write(host.workdir, **{"train.py": "print(1)", "conf/a.yaml": "lr: 7"})
    result = push(root, host).hosts[0]
    assert [kept.kept_as for kept in result.kept] == ["conf/a.yaml.clusterddp-kept-1"]


def test_a_file_edited_there_and_dropped_here_stays(root: Path, host: FakeHost) -> None:
    write(root, **{"snapshot.pt": "old"})
    push(root, host)
    write(host.workdir, **{"snapshot.pt": "epoch 9"})
    (root / "snapshot.pt").unlink()
    result = push(root, host)
    assert content(host.workdir)["snapshot.pt"] == "epoch 9"
    assert "stays there" in result.notices[0]
    assert push(root, host).notices == ()


def test_a_file_becomes_a_folder_and_back(root: Path, host: FakeHost) -> None:
    write(root, data="a file")
    push(root, host)
    (root / "data").unlink()
    write(root, **{"data/deep/x": "1"})
    push(root, host)
    assert content(host.workdir)["data/deep/x"] == "1"
    (root / "data/deep/x").unlink()
    (root / "data/deep").rmdir()
    (root / "data").rmdir()
    (root / "data").symlink_to("pkg")
    assert push(root, host).hosts[0].kept == ()
    assert content(host.workdir)["data"] == "-> pkg"
    (root / "data").unlink()
    write(root, **{"data/y": "2"})
    push(root, host)
    assert content(host.workdir) == content(root)


def test_a_hosts_own_folder_or_file_in_the_way_is_kept_aside(root: Path, host: FakeHost) -> None:
    write(host.workdir, **{"train.py/own.txt": "folder", "pkg": "file", "conf/a.yaml/deep/x": "1"})
    result = push(root, host).hosts[0]
    there = content(host.workdir)
    assert there["train.py.clusterddp-kept-1/own.txt"] == "folder"
    assert there["pkg.clusterddp-kept-1"] == "file"
    assert there["pkg/model.py"] == "A = 1"
    assert len(result.kept) == 3


def test_a_hosts_link_where_the_project_has_a_folder_is_refused_before_any_change(
    root: Path, host: FakeHost, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    host.workdir.mkdir()
    (host.workdir / "pkg").symlink_to(outside)
    with pytest.raises(HelperError, match="pkg is a link on this host"):
        push(root, host)
    assert content(outside) == {}
    assert set(content(host.workdir)) == {"pkg"}


def test_a_link_of_the_host_is_left_alone_and_not_written_through(root: Path, host: FakeHost, tmp_path: Path) -> None:
    big = tmp_path / "big"
    write(big, **{"set.bin": "data"})
    host.workdir.mkdir()
    (host.workdir / "dataset").symlink_to(big)
    (host.workdir / "train.py").symlink_to(big / "set.bin")
    push(root, host)
    assert content(big) == {"set.bin": "data"}
    assert content(host.workdir)["dataset"] == f"-> {big}"
    assert content(host.workdir)["train.py"] == "print(1)"


def test_names_that_are_no_text_arrive(root: Path, host: FakeHost) -> None:
    odd = [b"caf\xe9/x", b"new\nline", b"-rf", b"quo'te\"s", b"\xff"]
    for name in odd:
        path = Path(os.fsdecode(os.fsencode(root) + b"/" + name))
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    push(root, host)
    assert content(host.workdir) == content(root)


def test_many_hosts_share_one_pack_and_compression_pays_only_where_it_shrinks(root: Path, tmp_path: Path) -> None:
    hosts = [FakeHost(tmp_path, f"gpu{number:02}", ssh=True) for number in range(4)]
    write(root, **{"big.txt": "the same line\n" * 50_000})
    push(root, *hosts)
    assert all(content(host.workdir) == content(root) for host in hosts)
    assert all(host.sent_bytes < 50_000 for host in hosts)
    (root / "noise.bin").write_bytes(os.urandom(200_000))
    push(root, *hosts)
    assert all((host.workdir / "noise.bin").stat().st_size == 200_000 for host in hosts)


def test_two_nodes_may_share_one_workdir(root: Path, tmp_path: Path) -> None:
    place = str(tmp_path / "shared")
    first, second = FakeHost(tmp_path, "a", workdir=place), FakeHost(tmp_path, "b", workdir=place)
    second.state = first.state
    for text in ("print(2)", "print(3)"):
        write(root, **{"train.py": text})
        result = push(root, first, second)
        assert content(Path(place)) == content(root)
        assert result.notices == ()


def test_a_shared_workdir_receives_each_file_once(root: Path, tmp_path: Path) -> None:
    hosts = [FakeHost(tmp_path, f"gpu0{number}", workdir=str(tmp_path / "shared")) for number in range(3)]
    (root / "big.py").write_bytes(os.urandom(1 << 16))
    push(root, *hosts)
    first, *others = [host.sent_bytes for host in hosts]
    assert first > 1 << 16
    assert sum(others) < 1 << 15


@pytest.mark.parametrize("data", [b"", b"damaged"])
def test_a_damaged_manifest_of_an_earlier_sync_is_not_offered(root: Path, host: FakeHost, data: bytes) -> None:
    push(root, host)
    for kept in root.with_name("project.synced").iterdir():
        kept.write_bytes(data)
    write(root, **{"train.py": "print(2)"})
    push(root, host)
    assert content(host.workdir) == content(root)


def test_hosts_that_share_a_network_folder_go_one_after_the_other(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_workdir, "filesystem_type", lambda _: "nfs4")
    place = str(tmp_path / "shared")
    hosts = [FakeHost(tmp_path, name, workdir=place) for name in "abc"]  # each with its own state
    push(root, hosts[0])
    write(root, **{"train.py": "print(2)"})
    (root / "conf/a.yaml").unlink()
    assert push(root, *hosts).notices == ()
    assert content(Path(place)) == content(root)
    write(root, **{"train.py": "print(3)"})
    with hosts[1].live_run("r1", Path(place)), pytest.raises(HostsError, match="run r1 is live"):
        push(root, *hosts)
    assert content(Path(place))["train.py"] == "print(2)"


def test_a_worker_finds_its_subfolder(root: Path, host: FakeHost) -> None:
    push(root, host, subfolder="exp/one")
    assert (host.workdir / "exp/one").is_dir()
    push(root, host, subfolder="exp/two")
    assert (host.workdir / "exp/two").is_dir()


def test_a_file_that_changes_under_way_is_an_error_and_nothing_changes(root: Path, host: FakeHost) -> None:
    tree = tree_of(root)
    write(root, **{"train.py": "print(2)"})
    with pytest.raises(SyncError, match=r"train\.py changed while it was sent"):
        sync([host], tree, workdir="/nowhere")  # type: ignore[list-item]
    assert content(host.workdir) == {}


def test_a_host_whose_digest_differs_is_an_error(root: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tree_of(root)
    upload = host.upload

    def lying(op: str, *rest: Any, **options: Any) -> Any:
        return {**upload(op, *rest, **options), "digest": "0" * 64} if op == "sync_apply" else upload(op, *rest)

    monkeypatch.setattr(host, "upload", lying)
    with pytest.raises(SyncError, match=r"gpu01: the code in .* is not the project's"):
        sync([host], tree, workdir="/nowhere")  # type: ignore[list-item]


def test_a_host_that_changed_since_it_was_asked_is_asked_again(
    root: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(root, host)
    write(root, **{"train.py": "print(2)"})
    upload, once = host.upload, [True]

    def meddling(op: str, *rest: Any, **options: Any) -> Any:
        if op == "sync_apply" and once:
            once.clear()
            (host.workdir / "pkg/model.py").unlink()
        return upload(op, *rest, **options)

    monkeypatch.setattr(host, "upload", meddling)
    push(root, host)
    assert content(host.workdir) == content(root)
    assert host.calls[-4:] == ["workdir_state", "sync_apply", "workdir_state", "sync_apply"]


def test_a_preview_changes_nothing_and_a_look_tells_the_code(root: Path, host: FakeHost) -> None:
    tree = tree_of(root)
    (shown,) = preview([host], tree, workdir="/nowhere")  # type: ignore[list-item]
    assert (shown.sent, shown.sent_bytes, shown.digest) == (4, tree.size, "")
    assert not host.workdir.exists()
    push(root, host)
    (root / "train.py").unlink()
    (shown,) = preview([host], tree_of(root), workdir="/nowhere")  # type: ignore[list-item]
    assert (shown.sent, shown.removed) == (0, 1)
    (found,) = workdirs_as_they_are([host], workdir="/nowhere")  # type: ignore[list-item]
    assert (found.digest, found.workdir) == (tree.digest, str(host.workdir))
    write(host.workdir, **{"train.py": "edited"})
    with host.live_run("r1", host.workdir):
        (found,) = workdirs_as_they_are([host], workdir="/nowhere")  # type: ignore[list-item]
    assert (found.digest, found.workdir) == ("", str(host.workdir))


def test_a_preview_makes_no_links_and_leaves_nothing_in_a_folder_of_the_users(root: Path, host: FakeHost) -> None:
    host.entry.links = {"deep/sets": "/"}
    write(host.workdir, own="x")
    preview([host], tree_of(root), workdir="/nowhere")  # type: ignore[list-item]
    write(root, **{"set.bin": "data"})
    preview([host], project_tree(root), workdir="/nowhere")  # type: ignore[list-item]
    assert [path.name for path in host.workdir.iterdir()] == ["own"]
    push(root, host)
    assert (host.workdir / "deep/sets").is_symlink()
    shutil.rmtree(host.workdir / "deep")
    (shown,) = preview([host], tree_of(root), workdir="/nowhere")  # type: ignore[list-item]
    assert shown.digest == tree_of(root).digest
    assert not (host.workdir / "deep").exists()
