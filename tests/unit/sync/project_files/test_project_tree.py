from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from clusterddp.errors import SyncError, UsageError
from clusterddp.project.project import find
from clusterddp.remote.shared.wire.chunks import Chunk, digest_of
from clusterddp.sync.project_files import project_tree as tree_module
from clusterddp.sync.project_files.project_tree import new_data, scan
from clusterddp.sync.transfer.local_files import LocalFolder
from clusterddp.text.units import parse_size
from tests.unit.sync_help import project_at, tree_of, write


def git(root: Path, *words: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    identity += ["-c", "protocol.file.allow=always"]
    subprocess.run(["git", *identity, *words], cwd=root, check=True, capture_output=True)


def names(root: Path) -> list[str]:
    return [entry.path for entry in tree_of(root).entries]


def reasons(root: Path) -> dict[str, str]:
    return {item.path: item.reason for item in tree_of(root).skipped}


def test_outside_git_all_files_but_bytecode_and_environments(tmp_path: Path) -> None:
    root = tmp_path / "p"
    write(root, **{"train.py": "", "data/x.bin": "", "__pycache__/a.pyc": "", "b.pyc": ""})
    write(
        root, **{".venv/pyvenv.cfg": "", ".venv/lib/x.py": "", "myenv/pyvenv.cfg": "", ".clusterddp/project.json": ""}
    )
    assert names(root) == ["data/x.bin", "train.py"]
    assert reasons(root) == {".venv": "virtual environments", "myenv": "virtual environments"}


def test_in_git_tracked_changed_and_untracked_files_but_not_ignored_or_deleted_ones(tmp_path: Path) -> None:
    root = tmp_path / "p"
    write(root, **{"a.py": "1", "gone.py": "", "data/big": "", ".gitignore": "data/\n", "venv/pyvenv.cfg": ""})
    write(root, **{"venv/lib/b.py": ""})
    git(root, "init")
    git(root, "add", "a.py", "gone.py")
    git(root, "commit", "-m", "x")
    clean = tree_of(root)
    (root / "gone.py").unlink()
    write(root, **{"a.py": "2", "new.py": ""})
    assert names(root) == [".gitignore", "a.py", "new.py"]
    assert tree_of(root).notices == ("not synced, virtual environments: venv",)
    assert clean.git is not None
    assert len(str(clean.git["commit"])) == 40
    assert tree_of(root).digest != clean.digest
    assert tree_of(root).git == {"commit": clean.git["commit"], "dirty": True}


def test_a_project_below_a_repository_follows_its_ignore_rules_unless_ignored_as_a_whole(tmp_path: Path) -> None:
    write(tmp_path, **{".gitignore": "*.log\nscratch/\n", "exp/a.py": "", "exp/a.log": "", "scratch/b.py": ""})
    git(tmp_path, "init")
    assert names(tmp_path / "exp") == ["a.py"]
    assert names(tmp_path / "scratch") == ["b.py"]


def test_submodules_and_repositories_inside_are_walked(tmp_path: Path) -> None:
    other, root = tmp_path / "other", tmp_path / "p"
    write(other, **{"lib.py": "", ".gitignore": "*.tmp"})
    git(other, "init")
    git(other, "add", ".")
    git(other, "commit", "-m", "x")
    write(root, **{"a.py": "", "nested/n.py": ""})
    git(root, "init")
    git(root, "submodule", "add", str(other), "sub")
    git(root / "nested", "init")
    write(root, **{"sub/x.tmp": "", "sub/untracked.py": ""})
    assert names(root) == [
        ".gitmodules", "a.py", "nested/n.py", "sub/.gitignore", "sub/lib.py", "sub/untracked.py"
    ]  # fmt: skip


@pytest.mark.parametrize("place", ["p/conf_v2", "outside"])
def test_what_was_in_a_tracked_folder_is_gone_once_a_link_replaces_that(tmp_path: Path, place: str) -> None:
    root = tmp_path / "p"
    write(root, **{"train.py": "", "conf/a.yaml": "1", "conf/deep/b.yaml": "1"})
    git(root, "init")
    git(root, "add", ".")
    (root / "conf").rename(tmp_path / place)
    (root / "conf").symlink_to(tmp_path / place)
    moved = ["conf", "conf_v2/a.yaml", "conf_v2/deep/b.yaml"] if place != "outside" else []
    assert names(root) == [*moved, "train.py"]
    assert reasons(root) == ({"conf": "links that lead out of the project"} if place == "outside" else {})


def test_a_hooks_git_variables_do_not_lead_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "p", **{"a.py": ""})
    git(tmp_path / "p", "init")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert names(tmp_path / "p") == ["a.py"]


def test_key_like_files_are_left_out_and_named(tmp_path: Path) -> None:
    root = tmp_path / "p"
    keys = {".env", "prod/.env.local", "c.PEM", "x.key", "id_ed25519", "id_work"}
    write(root, **dict.fromkeys(keys, "-----BEGIN OPENSSH PRIVATE KEY-----"))
    write(root, **{"id_map.py": "ids = {}", "id_rsa.pub": "ssh-rsa", ".env.example": "A=", "environment.py": ""})
    assert set(reasons(root)) == keys
    assert names(root) == [".env.example", "environment.py", "id_map.py", "id_rsa.pub"]
    assert "they look like keys" in tree_of(root).notices[0]


@pytest.mark.parametrize("in_git", [False, True])
def test_half_of_what_an_interrupted_transfer_was_to_bring_is_no_part_of_the_project(
    tmp_path: Path,
    in_git: bool,  # noqa: FBT001
) -> None:
    root, half = tmp_path / "p", digest_of(b"half")
    write(root, **{"train.py": ""})
    if in_git:
        git(root, "init")
    for dest in (root, root / "ckpt"):
        with LocalFolder(dest) as local:
            local.want({half: [Chunk(half, 4)]}, {half: 1})
            local.put(half, b"half")
    assert (root / "ckpt/.clusterddp-parts").is_dir()
    write(root, **{f"ckpt/.clusterddp-parts-0a/{half}": "half"})  # of a push to a host that shares the folder
    assert names(root) == ["train.py"]


def test_names_like_those_of_our_own_files_are_left_out_at_the_top_and_named(tmp_path: Path) -> None:
    root = tmp_path / "p"
    write(root, **{"train.py": "", ".clusterddp.json": "", "conf/.clusterddp.json": ""})
    assert names(root) == ["conf/.clusterddp.json", "train.py"]
    assert tree_of(root).notices == ("not synced, their names begin with .clusterddp: .clusterddp.json",)
    assert new_data(project_at(root), root, ["conf/.clusterddp.json", ".clusterddp.json"]) == ["conf/.clusterddp.json"]


def test_what_a_pull_brought_is_the_projects_unless_the_next_sync_would_refuse_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "home"
    write(root, **{"out/a.pt": "", "out/a.py": ""})
    assert new_data(project_at(root), root / "out", ["a.pt", "a.py"]) == ["out/a.pt"]
    write(root, **{"out/a.pyc": "", "out/env/pyvenv.cfg": "", "out/env/lib": ""})
    assert new_data(project_at(root), root / "out", ["a.pyc", "env/lib"]) == []

    def deny(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:  # root may read everything: only the system call's answer can be simulated
        patch.setattr("clusterddp.sync.project_files.gitignore.os.scandir", deny)
        assert new_data(project_at(root), root / "out", ["a.pt"]) == []
    monkeypatch.setenv("HOME", str(root))
    assert new_data(project_at(root), root / "out", ["a.pt"]) == []


def test_links_inside_stay_links_and_links_outside_are_named(tmp_path: Path) -> None:
    root = tmp_path / "p"
    write(root, **{"real/a.txt": "x"})
    (root / "near").symlink_to("real/a.txt")
    (root / "absolute").symlink_to(root / "real")
    (root / "dangling").symlink_to("not/yet")
    (root / "etc").symlink_to("/etc")
    (root / "up").symlink_to("../q")
    links = {entry.path: entry.content for entry in tree_of(root).entries if entry.kind == "link"}
    assert links == {"near": "real/a.txt", "absolute": "real", "dangling": "not/yet"}
    assert set(reasons(root)) == {"etc", "up"}


def test_sockets_and_fifos_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "p"
    root.mkdir()
    monkeypatch.chdir(root)
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("sock")
        assert set(reasons(root)) == {"pipe", "sock"}


def test_a_file_that_cannot_be_read_is_an_error_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "p"
    write(root, **{"locked.bin": "x"})

    def deny(path: bytes) -> tuple[int, str]:
        raise PermissionError(13, "Permission denied", path)

    # root may read everything: only the system call's answer can be simulated
    monkeypatch.setattr("clusterddp.sync.hash_cache.hash_file", deny)
    with pytest.raises(SyncError, match=r"locked\.bin: cannot be read \(Permission denied\)"):
        tree_of(root)


@pytest.mark.parametrize("where", ["/", "home", "parent"])
def test_home_root_and_what_is_above_home_are_refused_unseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    home = tmp_path / "users" / "me"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    root = {"/": Path("/"), "home": home, "parent": home.parent}[where]
    with pytest.raises(SyncError, match="home folder"):
        scan(find(root, {"CLUSTERDDP_PROJECT": "x"}))


def test_too_many_bytes_are_refused_with_the_largest_entries_and_the_remedy(tmp_path: Path) -> None:
    root = tmp_path / "p"
    write(root, **{"ckpt/run1/a.bin": "x" * 6000, "ckpt/run2/b.bin": "x" * 4000, "train.py": "x" * 10})
    with pytest.raises(SyncError, match=r"10 kB, more than 1 kB; largest: ckpt/run1/ .*--sync-limit") as caught:
        scan(project_at(root), 1000)
    assert "ckpt/run2/ (4 kB)" in str(caught.value)
    assert scan(project_at(root), 20_000).size == 10_010


def test_too_many_files_are_refused_unless_a_limit_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "p"
    monkeypatch.setattr(tree_module, "MAX_FILES", 3)
    write(root, **{f"many/{number}": "" for number in range(5)})
    with pytest.raises(SyncError, match=r"5 files, more than 3; largest: many/0 \(1 file\)"):
        scan(project_at(root))
    assert len(scan(project_at(root), 10**6).data) == 5


def test_of_many_files_side_by_side_the_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "p"
    write(root, **{"train.py": "x", **{f"data/many/{number}": "x" * 100 for number in range(20)}})
    with pytest.raises(SyncError, match=r"2 kB, more than 1 kB; largest: data/many/ \(2 kB\); keep"):
        scan(project_at(root), 1000)
    monkeypatch.setattr(tree_module, "MAX_FILES", 10)
    with pytest.raises(SyncError, match=r"21 files, more than 10; largest: data/many/ \(20 files\); keep"):
        scan(project_at(root))


@pytest.mark.parametrize(
    ("text", "size"), [("500MB", 500 * 10**6), ("2G", 2 * 10**9), ("1.5 kb", 1500), ("7", 7), ("3TB", 3 * 10**12)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "many", "-1", "0", "5X", "1e9", "nan"])
def test_what_is_no_size_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


def test_the_digest_tells_content_mode_name_and_target(tmp_path: Path) -> None:
    root, seen = tmp_path / "p", set()
    write(root, a="1", b="2")
    (root / "l").symlink_to("a")

    def changed() -> bool:
        digest = tree_of(root).digest
        fresh = digest not in seen
        seen.add(digest)
        return fresh

    assert changed()
    assert not changed()
    (root / "a").chmod(0o755)
    assert changed()
    write(root, a="3")
    assert changed()
    (root / "b").rename(root / "c")
    assert changed()
    (root / "l").unlink()
    (root / "l").symlink_to("c")
    assert changed()


def test_unchanged_files_are_not_read_again_and_a_change_that_keeps_size_is_seen(tmp_path: Path) -> None:
    root = tmp_path / "p"
    write(root, **{"a.py": "one", "b.py": "x"})
    project = project_at(root)
    _ = project.write("made", b"")
    first = scan(project).digest
    for name in ("a.py", "b.py"):
        os.utime(root / name, (1, 1))
    assert scan(project).digest == first
    write(root, **{"a.py": "two"})
    os.utime(root / "a.py", (1, 1))
    assert scan(project).digest != first


def test_names_that_are_no_text_and_odd_ones_come_through(tmp_path: Path) -> None:
    root = tmp_path / "p"
    root.mkdir()
    odd = [b"caf\xe9", b"new\nline", b"\xe2\x82\xac.py", b"-rf", b"quo'te\"s", b" "]
    for name in odd:
        Path(os.fsdecode(os.fsencode(root) + b"/" + name)).write_text("x")
    git(root, "init")
    assert {os.fsencode(name) for name in names(root)} == set(odd)
