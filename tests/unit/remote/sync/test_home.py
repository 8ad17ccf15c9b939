"""Results of a run in a sibling come home: nothing is overwritten, nothing lost, whenever it is interrupted."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterddp.remote.sync import home
from tests.unit.sync_help import Cut, FakeHost, content, cut_after, push, write


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


@pytest.fixture
def root(tmp_path: Path, host: FakeHost) -> Path:
    folder = tmp_path / "project"
    write(folder, **{"train.py": "print(1)", "pkg/model.py": "A = 1"})
    push(folder, host)
    write(host.workdir, **{"snapshot.pt": "epoch 1", "out/log": "x"})
    return folder


@pytest.fixture
def sibling(root: Path, host: FakeHost) -> Path:
    """A sibling in which a run has ended: it wrote new files, and put one in the place of a link."""
    write(root, **{"train.py": "print(2)"})
    with host.live_run("r1", host.workdir):
        folder = Path(push(root, host).hosts[0].workdir)
    assert folder != host.workdir
    write(folder, **{"new/deep/a.pt": "a", "pkg/curve.csv": "1,2", "pkg/__pycache__/model.cpython-311.pyc": "b"})
    (folder / "latest").symlink_to(folder / "new/deep/a.pt")
    (folder / "beside").symlink_to("new")
    return folder


def brought(result: Any) -> list[str]:
    return [line for line in result.hosts[0].told if "home" in line or "versions" in line]


def test_new_files_come_home_at_the_next_start_and_the_sibling_goes(root: Path, host: FakeHost, sibling: Path) -> None:
    result = push(root, host)
    assert brought(result) == [
        f"brought home from {sibling}: beside, latest, new/deep/a.pt, pkg/curve.csv",
    ]
    assert not sibling.exists()
    assert content(host.workdir) == {
        **content(root),
        "snapshot.pt": "epoch 1",
        "out/log": "x",
        "new/deep/a.pt": "a",
        "pkg/curve.csv": "1,2",
        "latest": f"-> {host.workdir}/new/deep/a.pt",
        "beside": "-> new",
    }
    assert brought(push(root, host)) == []


def test_what_has_another_in_its_place_stays_and_is_named_with_the_command_that_takes_it(
    root: Path, host: FakeHost, sibling: Path
) -> None:
    (sibling / "snapshot.pt").unlink()
    write(sibling, **{"snapshot.pt": "epoch 9", "pkg/a b.txt": "mine"})
    write(host.workdir, **{"pkg/a b.txt": "other", "snapshot.pt": "epoch 22"})
    (line,) = brought(push(root, host))[1:]
    assert "pkg/a b.txt, snapshot.pt; to take these (the old are kept): cd" in line
    assert (host.workdir / "snapshot.pt").read_text() == "epoch 22"
    assert (sibling / "snapshot.pt").read_text() == "epoch 9"
    assert brought(push(root, host)) == [line]  # at each start
    command = line.partition("are kept): ")[2]
    subprocess.run(["sh", "-c", command], check=True)
    assert brought(push(root, host))[0].startswith("brought home")
    assert not sibling.exists()
    assert (host.workdir / "snapshot.pt").read_text() == "epoch 9"
    assert (host.workdir / "snapshot.pt.~1~").read_text() == "epoch 22"
    assert (host.workdir / "pkg/a b.txt").read_text() == "mine"
    assert str(host.workdir) in shlex.split(command)


def replace_snapshot(sibling: Path) -> None:
    """As trainers do it: the new one is written beside, then renamed over what is there, here a link."""
    write(sibling, **{"snapshot.tmp": "epoch 9"})
    (sibling / "snapshot.tmp").replace(sibling / "snapshot.pt")


def test_a_checkpoint_put_in_the_place_of_the_workdirs_own_takes_it_there_too_and_the_old_is_kept(
    root: Path, host: FakeHost, sibling: Path
) -> None:
    replace_snapshot(sibling)
    with host.live_run("r3", sibling):
        push(root, host)
    assert (host.workdir / "snapshot.pt").read_text() == "epoch 1"
    (line,) = brought(push(root, host))
    assert line.endswith("pkg/curve.csv, snapshot.pt; what that replaced is kept: snapshot.pt.~1~")
    assert not sibling.exists()
    assert (host.workdir / "snapshot.pt").read_text() == "epoch 9"
    assert (host.workdir / "snapshot.pt.~1~").read_text() == "epoch 1"


def test_a_second_run_in_the_sibling_brings_its_own_checkpoint_home_and_no_other(
    root: Path, host: FakeHost, sibling: Path
) -> None:
    replace_snapshot(sibling)
    with host.live_run("r3", host.workdir):
        assert Path(push(root, host).hosts[0].workdir) == sibling  # again: it is the base of what it began with
    assert (sibling / "snapshot.pt").read_text() == "epoch 9"
    write(host.workdir, **{"snapshot.pt": "epoch 33"})
    assert "versions of what is in" in brought(push(root, host))[-1]
    assert (host.workdir / "snapshot.pt").read_text() == "epoch 33"


def test_nothing_moves_while_a_run_is_live_in_the_workdir_and_it_is_told(
    root: Path, host: FakeHost, sibling: Path
) -> None:
    write(root, **{"train.py": "print(3)"})
    before = content(sibling)
    with host.live_run("r2", host.workdir):
        (line, where) = brought(push(root, host))[::-1]
    assert "this code is in" in where
    assert line.startswith(f"{sibling} holds files of an earlier run: beside, latest")
    assert content(sibling) == before


def test_nothing_moves_from_under_a_run_that_is_live_in_the_sibling(root: Path, host: FakeHost, sibling: Path) -> None:
    before = content(sibling)
    with host.live_run("r2", sibling):
        assert brought(push(root, host)) == []
    assert content(sibling) == before


def _cuts(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    counted = cut_after(step)
    cutting = {name: counted(getattr(os, name)) for name in ("link", "rename", "symlink", "unlink", "mkdir", "rmdir")}
    monkeypatch.setattr(home, "os", SimpleNamespace(**{**vars(os), **cutting}))
    cutting = {name: counted(getattr(shutil, name)) for name in ("copymode", "rmtree")}
    monkeypatch.setattr(home, "shutil", SimpleNamespace(**cutting))


@pytest.mark.parametrize("step", range(29))
def test_a_cut_at_any_step_loses_nothing_and_the_next_start_goes_on(
    root: Path, host: FakeHost, sibling: Path, step: int
) -> None:
    wanted = {"new/deep/a.pt": "a", "pkg/curve.csv": "1,2", "beside": "-> new", "snapshot.pt": "epoch 9"}
    replace_snapshot(sibling)
    with pytest.MonkeyPatch.context() as patch:
        _cuts(patch, step)
        with contextlib.suppress(Cut):
            push(root, host)
    assert "epoch 1" in content(host.workdir).values()
    there = {**content(host.workdir), **(content(sibling) if sibling.exists() else {})}
    assert wanted.items() <= there.items()
    push(root, host)
    found = content(host.workdir)
    assert wanted.items() <= found.items()
    assert found["snapshot.pt.~1~"] == "epoch 1"
    assert found["latest"] == f"-> {host.workdir}/new/deep/a.pt"
    assert not sibling.exists()


def test_where_there_are_no_hard_links_files_come_home_all_the_same(
    root: Path, host: FakeHost, sibling: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(home, "os", SimpleNamespace(**{**vars(os), "link": refused}))
    replace_snapshot(sibling)
    push(root, host)
    assert [(host.workdir / f"snapshot.pt{end}").read_text() for end in ("", ".~1~")] == ["epoch 9", "epoch 1"]
    assert (host.workdir / "new/deep/a.pt").read_text() == "a"
    assert not sibling.exists()


def test_a_start_that_has_no_more_time_leaves_the_rest_to_the_next(
    root: Path, host: FakeHost, sibling: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home, "LIMIT", -1.0)
    assert brought(push(root, host)) == [f"{sibling} holds more, which comes home at the next start"]
    assert (sibling / "new/deep/a.pt").exists()
