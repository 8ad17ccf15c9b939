"""The folders beside a workdir: told with their sizes, and removed where no run is live."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterddp.errors import HelperError
from clusterddp.remote.shared.schema.record import read_record
from clusterddp.remote.shared.workdir.named_workdir_records import NamedWorkdir, NamedWorkdirs, RemoveWorkdirsAnswer
from clusterddp.remote.workdir import other_workdirs
from clusterddp.sync.send_code import sync
from tests.unit.sync_help import FakeHost, FakeRequest, content, push, tree_of, write


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


@pytest.fixture
def root(tmp_path: Path, host: FakeHost) -> Path:
    folder = tmp_path / "project"
    write(folder, **{"train.py": "print(1)"})
    push(folder, host)
    return folder


def named(root: Path, host: FakeHost, name: str) -> Path:
    result = sync([host], tree_of(root), workdir="/nowhere", name=name)  # type: ignore[list-item]
    return Path(result.hosts[0].workdir)


def asked(host: FakeHost, operation: Any, **args: Any) -> Any:
    return operation(FakeRequest({"workdir": str(host.workdir), "state": str(host.state), **args}))


def paths(host: FakeHost) -> list[str]:
    return [folder.path for folder in listed(host)]


def listed(host: FakeHost) -> tuple[NamedWorkdir, ...]:
    return read_record(NamedWorkdirs, asked(host, other_workdirs.workdirs_beside), "answer").folders


def test_a_named_folder_has_the_code_alone_and_is_kept(root: Path, host: FakeHost) -> None:
    write(host.workdir, **{"snapshot.pt": "x"})
    folder = named(root, host, "exp1")
    assert folder == host.workdir.with_name("work@exp1")
    assert content(folder) == content(root)
    write(folder, result="y")
    write(root, **{"train.py": "print(2)"})
    assert named(root, host, "exp1") == folder
    assert content(folder) == {**content(root), "result": "y"}
    assert content(host.workdir)["train.py"] == "print(1)"


@pytest.mark.parametrize("name", ["../x", "a/b", ".", "~", "a~b", "a\n"])
def test_a_name_that_leads_elsewhere_is_refused(root: Path, host: FakeHost, name: str) -> None:
    with pytest.raises(HelperError, match="cannot be a folder's name"):
        named(root, host, name)


def test_folders_are_told_and_strangers_are_not(root: Path, host: FakeHost) -> None:
    folder = named(root, host, "exp1")
    (folder / "big").write_bytes(b"x" * 100_000)
    host.workdir.with_name("work@mine").mkdir()  # no sync has been there
    host.workdir.with_name("work@link").symlink_to(folder)
    host.workdir.with_name("workshop").mkdir()
    (told,) = listed(host)
    assert told.path == str(folder)
    assert 100_000 <= told.bytes < 200_000
    assert told.written == (folder / "big").stat().st_mtime_ns
    assert told.live == ()


def test_a_folder_is_removed_whole_but_not_under_a_live_run(root: Path, host: FakeHost) -> None:
    first, second = named(root, host, "a"), named(root, host, "b")
    both = {"paths": [str(first), str(second), str(host.workdir)], "stopped": []}
    with host.live_run("r1", second):
        done = read_record(RemoveWorkdirsAnswer, asked(host, other_workdirs.remove_workdirs, **both), "answer")
    assert done.removed == (str(first),)
    assert done.kept == ((str(second), "run r1 is live there"),)
    assert paths(host) == [str(second)]
    assert content(host.workdir) == content(root)
    assert sorted(path.name for path in host.place.iterdir()) == ["state", "work", "work@b"]


def test_what_an_interrupted_removal_left_goes_with_the_next(
    root: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = named(root, host, "a")
    with monkeypatch.context() as patch:
        patch.setattr(other_workdirs, "shutil", SimpleNamespace(rmtree=lambda *_, **__: None))
        asked(host, other_workdirs.remove_workdirs, paths=[str(folder)], stopped=[])
    assert paths(host) == []
    assert list(host.place.glob(".clusterddp-removed-*"))
    asked(host, other_workdirs.remove_workdirs, paths=[], stopped=[])
    assert not list(host.place.glob(".clusterddp-removed-*"))
