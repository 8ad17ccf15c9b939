"""Changes below a workdir, where somebody puts something else in the place of a folder or file."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.system.bootstrap import Refused
from clusterddp.remote.transfer.descriptor_walk import FolderTree, open_or_make, path_of, real_folder
from clusterddp.remote.workdir.folder_lock import LIVE_FOLDER, FolderLock, make_live_folder
from clusterddp.remote.workdir.links import make_links

if TYPE_CHECKING:
    from collections.abc import Callable

# What a sync does to files, by their paths.
CHANGES: dict[str, Callable[[FolderTree], object]] = {
    "unlink": lambda inside: inside.unlink("deep/file"),
    "executable": lambda inside: inside.set_executable("deep/file", executable=True),
    "mkdir": lambda inside: inside.mkdir("deep/new"),
    "rmdir": lambda inside: inside.rmdir("deep/empty"),
    "keep": lambda inside: inside.keep_as("deep/file", "deep/kept"),
    "rename": lambda inside: inside.rename("deep/file", "deep/other"),
    "bytecode": lambda inside: inside.remove_bytecode("deep/file.py"),
    "exists": lambda inside: inside.exists("deep/file"),
}


def laid_out(folder: Path) -> Path:
    (folder / "empty").mkdir(parents=True)
    (folder / "__pycache__").mkdir()
    for name in ("file", "__pycache__/file.cpython-311.pyc"):
        (folder / name).write_text("mine")
        (folder / name).chmod(0o600)
    return folder


def seen(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path.relative_to(folder)), path.lstat().st_mode) for path in folder.rglob("*"))


@pytest.mark.parametrize("change", CHANGES)
def test_it_is_done_in_a_folder_and_refused_by_way_of_a_link(tmp_path: Path, change: str) -> None:
    root, private = tmp_path / "workdir", laid_out(tmp_path / "private")
    laid_out(root / "deep")
    before = seen(private)
    CHANGES[change](FolderTree(os.fsencode(root)))
    (root / "deep").rename(tmp_path / "away")
    (root / "deep").symlink_to(private)
    with pytest.raises(Refused, match="workdir/deep was replaced during the sync") as refused:
        CHANGES[change](FolderTree(os.fsencode(root)))
    assert refused.value.remedy == "sync again"
    assert seen(private) == before


def test_a_folder_that_is_open_already_is_the_one_that_is_changed(tmp_path: Path) -> None:
    root, private = tmp_path / "workdir", laid_out(tmp_path / "private")
    laid_out(root / "deep")
    before = seen(private)
    inside = FolderTree(os.fsencode(root))
    assert inside.exists("deep/file")
    (root / "deep").rename(tmp_path / "away")
    (root / "deep").symlink_to(private)
    inside.unlink("deep/file")
    assert not (tmp_path / "away" / "file").exists()
    assert seen(private) == before


@pytest.mark.parametrize("make", [lambda path, other: path.symlink_to(other), lambda path, _other: os.mkfifo(path)])
def test_the_mode_of_no_other_file_is_changed(tmp_path: Path, make: Callable[[Path, Path], object]) -> None:
    (tmp_path / "key").write_text("secret")
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "workdir").mkdir()
    make(tmp_path / "workdir" / "tool.sh", tmp_path / "key")
    with pytest.raises(Refused, match=r"tool\.sh was replaced"):
        FolderTree(os.fsencode(tmp_path / "workdir")).set_executable("tool.sh", executable=True)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


@pytest.mark.parametrize(("mode", "executable", "wanted"), [(0o640, True, 0o750), (0o755, False, 0o644)])
def test_a_file_is_made_executable_for_its_readers_or_for_nobody(
    tmp_path: Path,
    mode: int,
    executable: bool,  # noqa: FBT001 - a case's value
    wanted: int,
) -> None:
    (tmp_path / "tool").touch()
    (tmp_path / "tool").chmod(mode)
    FolderTree(os.fsencode(tmp_path)).set_executable("tool", executable=executable)
    assert stat.S_IMODE((tmp_path / "tool").stat().st_mode) == wanted


OTHER = 40002
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="another user's links are made")


def planted(path: Path, leads: Path) -> None:
    """A link as another user would put it into a folder that they may write."""
    path.symlink_to(leads)
    os.lchown(path, OTHER, OTHER)


def reached(path: Path) -> str:
    handle = open_or_make(os.fsencode(path))
    try:
        return str(Path(os.fsdecode(path_of(handle))).readlink())
    finally:
        os.close(handle)


def test_a_folder_is_reached_by_links_of_ones_own_and_made_where_it_is_missing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "workdir").symlink_to("data")
    assert reached(tmp_path / "workdir/a/b") == str(tmp_path / "data/a/b")
    assert reached(tmp_path / "workdir/a/b") == str(tmp_path / "data/a/b")


def test_a_link_that_leads_nowhere_is_no_folder_to_make(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(NotADirectoryError):
        open_or_make(os.fsencode(tmp_path / "link/a"))
    assert not (tmp_path / "nothing").exists()


@needs_root
@pytest.mark.parametrize("below", ["", "a", "a/b"])
def test_nothing_is_made_by_way_of_another_user_s_link(tmp_path: Path, below: str) -> None:
    (tmp_path / "private").mkdir()
    planted(tmp_path / "link", tmp_path / "private")
    with pytest.raises(Refused, match="link is another user's link"):
        open_or_make(os.fsencode(tmp_path / "link" / below))
    assert list((tmp_path / "private").iterdir()) == []


@needs_root
def test_no_link_of_clusterddp_links_is_made_behind_another_user_s_link(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "workdir").mkdir()
    planted(tmp_path / "workdir/data", tmp_path / "private")
    with pytest.raises(Refused, match="workdir/data is another user's link"):
        make_links(os.fsencode(tmp_path / "workdir"), {"data/sets": "/scratch"})
    assert list((tmp_path / "private").iterdir()) == []


@needs_root
@pytest.mark.parametrize("theirs", ["link", "folder"])
def test_a_lock_s_folder_that_another_user_has_put_is_refused(tmp_path: Path, theirs: str) -> None:
    make_live_folder(os.fsencode(tmp_path))
    place = tmp_path / os.fsdecode(LIVE_FOLDER)
    before = sorted(path.name for path in place.iterdir())
    if theirs == "link":
        place.rename(tmp_path / "elsewhere")
        planted(place, tmp_path / "elsewhere")
    else:
        os.chown(place, OTHER, OTHER)
    with (
        pytest.raises(Refused, match="is not a folder that a sync of yours has made"),
        FolderLock(str(tmp_path / "state"), os.fsencode(tmp_path)),
    ):
        pass
    assert sorted(path.name for path in place.iterdir()) == before


READ = """
import os, sys
from clusterddp.remote.workdir.live_runs import live_runs
from clusterddp.remote.workdir.folder_lock import folder_id
from clusterddp.remote.workdir.sync_record import SyncRecord
from clusterddp.remote.workdir.start_marker import start_of
state, root = sys.argv[1], os.fsencode(sys.argv[2])
for read in (lambda: folder_id(root), lambda: start_of(root, "r1"), lambda: live_runs(state, root),
             lambda: SyncRecord(state, root).manifest(sys.argv[3])):
    try:
        read()
    except OSError as error:
        print(error.strerror)
"""


@pytest.mark.parametrize("name", ["id", "start.r1", "synced.json", f"manifest.{'0' * 64}", "run.a-b-1-1.r1.host"])
def test_no_pipe_in_our_dotted_folder_is_waited_for(tmp_path: Path, name: str) -> None:
    place = tmp_path / "workdir" / os.fsdecode(LIVE_FOLDER)
    place.mkdir(parents=True)
    os.mkfifo(place / name)
    words = [sys.executable, "-c", READ, str(tmp_path / "state"), str(place.parent), "0" * 64]
    subprocess.run(words, check=True, timeout=60)


@pytest.mark.parametrize("name", ["there", "new", "new/below"])
def test_a_slash_at_the_end_of_a_folder_means_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "there").mkdir()
    assert real_folder(os.fsencode(f"{tmp_path}/{name}/")) == os.fsencode(tmp_path / name)
