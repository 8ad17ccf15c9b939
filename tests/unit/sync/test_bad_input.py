"""What a disk, a clock or a project may do to a sync: one clear line, or none, and what was there stays as it was."""

from __future__ import annotations

import errno
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import HelperError, SyncError
from clusterddp.remote.workdir import case_folding
from tests.unit.sync_help import FakeHost, content, push, tree_of, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    write(folder, **{"train.py": "print(1)", "pkg/model.py": "A = 1"})
    return folder


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("after", [0, 2])
def test_a_disk_that_takes_no_more_is_one_line_and_the_old_code_stays(
    root: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch, number: int, after: int
) -> None:
    push(root, host)
    before = content(host.workdir)
    write(root, **{f"pkg/new{count}.py": f"B = {count}" for count in range(5)})
    write(root, **{"train.py": "print(2)"})
    real, left = os.pwrite, [after]

    def full(*args: Any) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(number, os.strerror(number))
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(HelperError, match=rf"^gpu01: cannot sync to .*: {os.strerror(number)}; make room") as told:
            push(root, host)
    assert "\n" not in str(told.value)
    assert content(host.workdir) == before
    push(root, host)
    assert content(host.workdir) == content(root)


def test_a_folder_that_may_not_be_written_is_named(root: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    push(root, host)
    write(root, **{"pkg/more.py": "B = 1"})
    real = os.rename

    def refused(source: Any, target: Any, **options: Any) -> None:
        if target == b"more.py":  # as the kernel does, which knows the folder by its descriptor
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), source, None, target)
        real(source, target, **options)

    monkeypatch.setattr(os, "rename", refused)
    with pytest.raises(HelperError, match=r"^gpu01: cannot sync to \S+/work/pkg/more.py: Permission denied; make room"):
        push(root, host)


def test_a_fifo_a_socket_or_a_device_on_the_host_is_kept_aside_and_never_opened(root: Path, host: FakeHost) -> None:
    (host.workdir / "pkg").mkdir(parents=True)
    os.mkfifo(host.workdir / "train.py")
    os.mkfifo(host.workdir / "pkg/own")
    result = push(root, host)
    assert content(host.workdir) == content(root)
    assert [(kept.path, kept.kept_as) for kept in result.hosts[0].kept] == [("train.py", "train.py.clusterddp-kept-1")]
    assert (host.workdir / "pkg/own").is_fifo()
    assert (host.workdir / "train.py.clusterddp-kept-1").is_fifo()


def test_names_that_differ_in_case_alone_are_refused_where_they_would_be_one(
    root: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(root, host)
    before = content(host.workdir)
    write(root, **{"PKG/model.py": "A = 2", "train.py": "print(2)"})
    with monkeypatch.context() as patch:
        patch.setattr(case_folding, "folds_case", lambda _: True)
        with pytest.raises(HelperError, match=r"^gpu01: PKG and pkg are one name in .*; rename one of them$"):
            push(root, host)
    assert content(host.workdir) == before
    push(root, host)  # the file system here tells them apart
    assert content(host.workdir) == content(root)
    assert not list(host.workdir.glob(".clusterddp-case-*"))


def test_a_file_of_20_gb_is_refused_by_name_and_not_read(root: Path) -> None:
    with (root / "weights.bin").open("wb") as sparse:
        sparse.truncate(20 * 10**9)
    began = time.process_time()
    with pytest.raises(SyncError, match=r"holds 20 GB, more than 500 MB; largest: weights.bin \(20 GB\)") as told:
        tree_of(root)
    assert "\n" not in str(told.value)
    assert time.process_time() - began < 1


def test_two_syncs_at_once_leave_the_code_of_one_of_them_whole(root: Path, host: FakeHost, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write(root, **{f"pkg/a{number}.py": "A" for number in range(60)})
    write(other, **{"train.py": "print(3)", **{f"b{number}.py": "B" for number in range(60)}})
    errors: list[str] = []

    def work(folder: Path) -> None:
        try:
            push(folder, host)
        except HelperError as error:  # the other one came in between, three times
            errors.append(str(error))

    threads = [threading.Thread(target=work, args=(folder,)) for folder in (root, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    project = {name: text for name, text in content(root).items() if ".clusterddp" not in name}
    assert content(host.workdir) in (project, content(other))
    assert all("change while they are synced" in error for error in errors)


@pytest.mark.parametrize("hours", [-48, 48])
def test_a_wrong_clock_costs_hashing_at_most(
    root: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    for path in (root / "train.py", root / "pkg/model.py"):
        os.utime(path, (time.time() + hours * 3600,) * 2)
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + hours * 3600 * 10**9)
    push(root, host)
    host.calls.clear()
    push(root, host)
    assert host.calls == ["workdir_state"]
    write(root, **{"train.py": "print(2)"})
    write(host.workdir, **{"pkg/model.py": "A = 7"})
    push(root, host)
    assert {**content(root), "pkg/model.py.clusterddp-kept-1": "A = 7"} == content(host.workdir)
