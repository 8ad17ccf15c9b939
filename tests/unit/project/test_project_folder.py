"""``.clusterddp/`` as an archive may bring it along: its links reach no file of the user's, and nothing waits."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from clusterddp.cli import host_list
from clusterddp.cli.session import open_cluster
from clusterddp.errors import ClusterddpError, RunError, UsageError
from clusterddp.launch import repeat
from clusterddp.project import project_folder
from clusterddp.project.crash import write_crash
from clusterddp.project.project import find
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.runs import local_cache
from clusterddp.sync import code_store
from clusterddp.sync.manifest_history import ManifestHistory
from clusterddp.sync.project_files.project_tree import scan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from clusterddp.project.project import Project

VALUABLE = ("ab/" + "c" * 62, "notes.txt", "run.json", "inventory.yaml", "d" * 64)


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder of the user's own, with names that ours have too."""
    folder = tmp_path / "precious"
    for name in VALUABLE:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("dear to me")
    for number in range(30):
        (folder / f"{number:02}.txt").write_text("dear to me")
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Project:
    root = tmp_path / "clone"
    (root / ".clusterddp").mkdir(parents=True, mode=0o700)
    (root / ".clusterddp" / "project.json").write_text('{"id": "0123456789"}')
    (root / "train.py").write_text("print(1)\n")
    return find(root, {})


def use(project: Project) -> None:
    """All that commands do with the folder; what refuses one thing leaves the next to be tried."""
    uses: list[Callable[[], object]] = [
        lambda: project.record_run(RunRecord(hosts=("h",), run="abcdefghij")),
        lambda: project.remember_attempt(project.root / "i.yaml"),
        lambda: project.remember(project.root / "i.yaml", None),
        project.runs,
        lambda: project.launchers,
        lambda: code_store.keep(project, scan(project)),
        lambda: ManifestHistory(folder=project.folder / "synced").keep("e" * 64, b"x"),
        lambda: ManifestHistory(folder=project.folder / "synced").read("d" * 64),
        lambda: write_crash(ValueError("x"), project=project),
        lambda: local_cache.finished_runs(project),
        lambda: host_list.write("gpu01", (), project),
        lambda: project.write("verdicts/abcdefghij.json", b"{}"),
        lambda: project.write_folder("converted", {"group_vars/all.yaml": b"", "inventory.yaml": b""}),
    ]
    for one in uses:
        with contextlib.suppress(ClusterddpError):
            one()


PLANTED = [
    ".clusterddp", ".clusterddp/objects", ".clusterddp/objects/files", ".clusterddp/objects/manifests",
    ".clusterddp/objects/files/ab", ".clusterddp/crashes", ".clusterddp/verdicts", ".clusterddp/synced",
    ".clusterddp/converted", ".clusterddp/converted/group_vars",
]  # fmt: skip


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_link_to_a_folder_of_the_user_changes_nothing_there(
    project: Project, precious: Path, planted: str
) -> None:
    path = project.root / planted
    if planted == ".clusterddp":
        path.rename(project.root / "moved")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(precious)
    before = {one: one.stat().st_mtime_ns for one in precious.rglob("*")}
    use(project)
    assert {one: one.stat().st_mtime_ns for one in precious.rglob("*")} == before


@pytest.mark.parametrize(
    "planted",
    ["runs.jsonl", ".gitignore", "objects/.lock", "objects/last", "objects/cleared", "hashes.json", "inventory.yaml"],
)
@pytest.mark.parametrize("there", [False, True])
def test_a_planted_link_to_a_file_of_the_user_neither_makes_nor_changes_it(
    project: Project, tmp_path: Path, planted: str, *, there: bool
) -> None:
    target = tmp_path / "profile"
    if there:
        target.write_text("dear to me")
    path = project.folder / planted
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target)
    use(project)
    assert (target.read_text() if target.exists() else None) == ("dear to me" if there else None)


@pytest.mark.parametrize("planted", ["project.json", "runs.jsonl", "hashes.json", "verdicts/x.json", "objects/last"])
def test_nothing_waits_for_a_planted_pipe(project: Project, planted: str) -> None:
    path = project.folder / planted
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    used = threading.Thread(target=use, args=[project], daemon=True)
    used.start()
    used.join(30)
    assert not used.is_alive()


def test_a_folder_is_replaced_whole_and_private(project: Project) -> None:
    project.write_folder("converted", {"group_vars/all": b"1", "group_vars/gpu": b"2", "inventory.yaml": b"3"})
    made = project.write_folder("converted", {"group_vars/all/x.yaml": b"4", "inventory.yaml": b"5"})
    folder = project.folder / "converted"
    assert {str(one.relative_to(folder)): one.stat().st_mode & 0o777 for one in folder.rglob("*")} == {
        "group_vars": 0o700,
        "group_vars/all": 0o700,
        "group_vars/all/x.yaml": 0o600,
        "inventory.yaml": 0o600,
    }
    assert (made, made.read_bytes()) == (folder / "inventory.yaml", b"5")


@pytest.mark.parametrize(
    ("error", "raised"), [(OSError(errno.ENOSPC, "full"), UsageError), (KeyboardInterrupt(), KeyboardInterrupt)]
)
def test_a_folder_stays_until_the_next_is_whole(
    project: Project, monkeypatch: pytest.MonkeyPatch, error: BaseException, raised: type[BaseException]
) -> None:
    made = project.write_folder("converted", {"group_vars/all": b"1", "inventory.yaml": b"2"})
    seen: list[bytes] = []

    def fsync(_: int) -> None:
        seen.append(made.read_bytes())
        if len(seen) == 2:
            raise error

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(raised):
        project.write_folder("converted", {"group_vars/all": b"3", "inventory.yaml": b"4"})
    assert (seen, made.read_bytes(), (made.parent / "group_vars/all").read_bytes()) == ([b"2", b"2"], b"2", b"1")
    assert unfinished(project) == []


def test_a_pyproject_that_is_a_pipe_is_said(project: Project) -> None:
    os.mkfifo(project.root / "pyproject.toml")
    with pytest.raises(UsageError, match=r"pyproject\.toml: cannot be read \(no file, or too large\)"):
        find(project.root, {})


def test_a_link_in_the_folders_place_is_said_in_a_line(project: Project, precious: Path) -> None:
    project.folder.rename(project.root / "moved")
    project.folder.symlink_to(precious)
    with pytest.raises(UsageError, match=r"\.clusterddp: is a link; .*; remove it, or move it away"):
        _ = project.id


def test_a_folder_that_everybody_may_write_is_said_in_a_line(project: Project) -> None:
    project.folder.chmod(0o777)
    with pytest.raises(UsageError, match=r"can be written by everyone; `chmod go-w .*\.clusterddp`"):
        _ = project.id


def test_a_run_that_a_clone_brings_along_is_shown_and_not_repeated(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    planted = RunRecord(hosts=("h",), run="abcdefghij", name="night", options={"env": {"AWS_SECRET_ACCESS_KEY": None}})
    text = json.dumps(to_fields(planted), separators=(",", ":"))
    proofs = ["", ',"started_here":"' + "0" * 64 + '"']
    (project.folder / "runs.jsonl").write_text("".join(f"{text[:-1]}{more}}}\n" for more in proofs))
    assert [record.name for record in project.runs()] == ["night", "night"]
    with pytest.raises(
        RunError, match="run abcdefghij cannot be repeated: nothing proves that you have started it here"
    ):
        repeat.find_record(project, "night")
    mine = RunRecord(hosts=("h",), run="bbbbbbbbbb", name="mine")
    project.record_run(mine)
    assert repeat.find_record(project, "mine") == mine
    with (project.folder / "runs.jsonl").open("a") as index:
        index.write(text.replace("abcdefghij", "bbbbbbbbbb") + "\n")
    assert repeat.find_record(project, "bbbbbbbbbb") == mine


WRITES = """
import sys
from pathlib import Path
from clusterddp.project import project_folder

def pieces():
    yield b"half"
    print("begun", flush=True)
    sys.stdin.read()

with project_folder.unfinished_file(Path(sys.argv[1]), pieces()) as new:
    new.replace(Path(sys.argv[1], "whole"))
"""


def unfinished(project: Project) -> list[str]:
    return [path.name for path in project.folder.iterdir() if path.suffix == ".tmp"]


def test_what_a_killed_command_has_left_unfinished_the_next_command_removes(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.root)
    argv = [sys.executable, "-c", WRITES, str(project.folder)]
    writer = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"begun\n"
        with open_cluster(None, None, quiet=True):
            assert len(unfinished(project)) == 1  # somebody works on it
        writer.kill()
        writer.wait(30)
        with open_cluster(None, None, quiet=True):
            assert unfinished(project) == []
    finally:
        writer.kill()
        writer.communicate(timeout=30)


def test_a_file_that_is_removed_before_it_is_locked_is_made_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []

    def late(handle: int, operation: int) -> None:
        if not taken:
            taken.extend(unfinished(project))
            project_folder.clear_unfinished(project.folder)
        flock(handle, operation)

    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", late)
    project.write("project.json", b"{}")
    assert len(taken) == 1
    assert (project.folder / "project.json").read_bytes() == b"{}"
    assert unfinished(project) == []


def test_an_error_on_the_way_leaves_nothing_unfinished(project: Project) -> None:
    (project.folder / "full").mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        project.write("full", b"x")
    assert unfinished(project) == []


def test_of_planted_names_only_files_are_removed_and_nothing_waits(project: Project, precious: Path) -> None:
    (project.folder / "link.tmp").symlink_to(precious / "notes.txt")
    (project.folder / "folder.tmp").mkdir()
    os.mkfifo(project.folder / "pipe.tmp")
    (project.folder / "file.tmp").touch()
    project_folder.clear_unfinished(project.folder)
    assert sorted(unfinished(project)) == ["folder.tmp", "link.tmp", "pipe.tmp"]
    assert (precious / "notes.txt").exists()
    (precious / "other.tmp").touch()
    project.folder.rename(project.root / "moved")
    project.folder.symlink_to(precious)
    project_folder.clear_unfinished(project.folder)
    assert (precious / "other.tmp").exists()
