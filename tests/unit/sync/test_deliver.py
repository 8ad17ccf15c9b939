"""Pushes to hosts in this process: what a job or another host does meanwhile costs no file."""

from __future__ import annotations

import fcntl
import itertools
import os
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import ClusterddpError
from clusterddp.remote.shared.wire.chunks import CHUNK, hash_file
from clusterddp.remote.shared.wire.partial_files import Parts
from clusterddp.remote.shared.workdir import manifest
from clusterddp.remote.transfer import chunk_files
from clusterddp.remote.workdir.push_record import PushRecord, pushed_in
from clusterddp.remote.workdir.update import WorkdirUpdate
from clusterddp.sync import chosen_files
from clusterddp.sync.deliver import Delivered, deliver, kept_lines
from clusterddp.sync.transfer.progress_rate import Transfer
from clusterddp.sync.transfer.upload import Files, Uploads
from tests.unit.sync_help import FakeHost, content, project_at, push, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    """A host to which ``data/a`` and ``data/b`` were pushed."""
    host = FakeHost(tmp_path)
    write(tmp_path / "project", **{"data/a": "a1", "data/b": "b1"})
    deliver_data(tmp_path, host)
    return host


def deliver_data(place: Path, *hosts: FakeHost, overwrite: bool = False) -> tuple[Delivered, ...]:
    """Push the project's folder ``data``."""
    project = project_at(place / "project")
    folder, chosen = chosen_files.read_sources(project, [str(project.root / "data")], "data", lambda _: None)
    files = Files(chosen.entries, chosen.chunks, lambda entry: chosen.local_paths[entry.path])
    return deliver(
        hosts,  # type: ignore[arg-type]
        Uploads(chosen.entries, chosen.chunks, files),
        chosen.entries,
        folder=folder,
        workdir="/nowhere",
        transfer=Transfer("pushing", lambda _: None),
        overwrite=overwrite,
    )


def before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, change: Callable[[], object], call: int = 1) -> None:
    """Change something once, just before a call of the function: the first, or the one of that number."""
    real, calls = getattr(owner, name), itertools.count(1)

    def changing(*args: Any, **options: Any) -> Any:
        if next(calls) == call:
            change()
        return real(*args, **options)

    monkeypatch.setattr(owner, name, changing)


def test_what_a_job_writes_while_another_file_comes_is_no_pushs(
    tmp_path: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "project", **{"data/b": "b2"})
    before(monkeypatch, WorkdirUpdate, "stage", lambda: write(host.workdir, **{"data/a": "of"}))
    deliver_data(tmp_path, host)
    result = (host.workdir / "data/a").stat()
    assert pushed_in(str(host.state), bytes(host.workdir))["data/a"] != manifest.stats_of(result)  # a pull brings it
    with pytest.raises(ClusterddpError, match=r"a in .* differs"):
        deliver_data(tmp_path, host)
    assert content(host.workdir / "data") == {"a": "of", "b": "b2"}
    deliver_data(tmp_path, host, overwrite=True)
    assert content(host.workdir / "data") == {"a": "a1", "b": "b2"}


def test_what_a_job_writes_over_a_file_just_put_in_place_is_no_pushs(
    tmp_path: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "project", **{"data/a": "a2"})
    before(monkeypatch, WorkdirUpdate, "close", lambda: write(host.workdir, **{"data/a": "job's"}))
    deliver_data(tmp_path, host)
    with pytest.raises(ClusterddpError, match=r"a in .* differs"):
        deliver_data(tmp_path, host)


def test_what_a_job_writes_while_all_is_looked_at_is_no_pushs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = FakeHost(tmp_path)
    for root in (tmp_path / "project", host.workdir):
        write(root, **{"data/a": "a1", "data/b": "b1"})

    def hashed(path: Any, _check: object) -> Any:
        if path == bytes(host.workdir / "data/b"):
            write(host.workdir, **{"data/a": "of"})
        return hash_file(path)

    monkeypatch.setattr(manifest, "hash_file", hashed)
    assert [done.files for done in deliver_data(tmp_path, host)] == [0]
    with pytest.raises(ClusterddpError, match=r"a in .* differs"):
        deliver_data(tmp_path, host)


def test_a_file_that_changes_before_it_is_replaced_is_kept_and_named(
    tmp_path: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "project", **{"data/a": "a2"})
    before(monkeypatch, WorkdirUpdate, "commit", lambda: write(host.workdir, **{"data/a": "of"}))
    done = deliver_data(tmp_path, host)
    assert content(host.workdir / "data") == {"a": "a2", "a.clusterddp-kept-1": "of", "b": "b1"}
    assert kept_lines(done) == ["gpu01: a changed while the push came: kept as a.clusterddp-kept-1"]


def test_what_was_pushed_is_read_once_by_whatever_way_it_came(tmp_path: Path, host: FakeHost) -> None:
    root = tmp_path / "project/data"
    write(root, c="a1", d="new", e="new")
    (root / "b").chmod(0o755)
    deliver_data(tmp_path, host)
    there = {path: manifest.stats_of((host.workdir / path).stat()) for path in (f"data/{name}" for name in "abcde")}
    assert pushed_in(str(host.state), bytes(host.workdir)) == there


def break_off_recording(monkeypatch: pytest.MonkeyPatch, place: Path, host: FakeHost) -> None:
    """Push, and break off when the files are in place, before that is recorded."""

    def fail() -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        before(patch, PushRecord, "complete", fail)
        with pytest.raises(ZeroDivisionError):
            deliver_data(place, host)


def test_what_a_push_put_in_place_before_it_broke_off_is_a_pushs(
    tmp_path: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("a2", "a3"):
        write(tmp_path / "project", **{"data/a": text, "data/new": text})
        break_off_recording(monkeypatch, tmp_path, host)
        assert content(host.workdir / "data") == {"a": text, "b": "b1", "new": text}
    write(tmp_path / "project", **{"data/a": "a4", "data/new": "a4"})
    deliver_data(tmp_path, host)
    assert content(host.workdir / "data") == {"a": "a4", "b": "b1", "new": "a4"}
    write(host.workdir, **{"data/a": "job's"})
    with pytest.raises(ClusterddpError, match=r"a in .* differs"):
        deliver_data(tmp_path, host)


@pytest.fixture
def weights(tmp_path: Path) -> bytes:
    """A file of three chunks in the project's folder ``data``."""
    weights = os.urandom(3 * CHUNK)
    (tmp_path / "project/data").mkdir(parents=True)
    (tmp_path / "project/data/w.bin").write_bytes(weights)
    return weights


@pytest.mark.parametrize("call", [1, 3])  # the folder of parts is empty still, or not
def test_hosts_that_share_a_folder_and_no_locks_do_not_mix_their_parts(
    tmp_path: Path, weights: bytes, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)  # one kernel does not see the other's
    shared = tmp_path / "shared"
    first, second = (FakeHost(tmp_path, name, workdir=str(shared)) for name in ("gpu00", "gpu01"))
    before(monkeypatch, Parts, "put", lambda: deliver_data(tmp_path, first), call=call)
    deliver_data(tmp_path, second)
    assert (shared / "data/w.bin").read_bytes() == weights
    assert [path.name for path in (shared / "data").glob("w*")] == ["w.bin"]
    assert [done.files for done in deliver_data(tmp_path, first, second)] == [0, 0]


def break_off(monkeypatch: pytest.MonkeyPatch, place: Path, host: FakeHost) -> None:
    """Push, and break off before the third chunk is stored."""

    def fail() -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        before(patch, Parts, "put", fail, call=3)
        with pytest.raises(ZeroDivisionError):
            deliver_data(place, host)


def test_a_push_that_broke_off_goes_on_from_its_parts(
    tmp_path: Path, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = FakeHost(tmp_path)
    break_off(monkeypatch, tmp_path, host)
    host.sent_bytes = 0
    deliver_data(tmp_path, host)
    assert CHUNK < host.sent_bytes < 2 * CHUNK
    assert [path.name for path in (host.workdir / "data").iterdir()] == ["w.bin"]
    assert (host.workdir / "data/w.bin").read_bytes() == weights


def test_parts_that_another_host_places_or_removes_meanwhile_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = os.open(tmp_path, os.O_RDONLY)
    old = tmp_path / ("e" * 64)
    old.touch()
    before(monkeypatch, os, "stat", old.unlink)
    Parts(handle).remove_old(0.0)
    os.close(handle)


@pytest.mark.usefixtures("weights")
def test_a_push_goes_on_where_another_host_of_the_folder_broke_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    first, second = (FakeHost(tmp_path, name, workdir=str(shared)) for name in ("login1", "login2"))
    break_off(monkeypatch, tmp_path, first)
    for path in [*(shared / "data").glob(".clusterddp-parts*/*"), *(shared / "data").glob(".clusterddp-parts*")]:
        os.utime(path, (0, 0))
    deliver_data(tmp_path, second)
    assert CHUNK < second.sent_bytes < 2 * CHUNK
    assert [path.name for path in (shared / "data").iterdir()] == ["w.bin"]


def test_who_finds_all_in_place_does_not_wait_for_another_push(tmp_path: Path, host: FakeHost) -> None:
    for root in (tmp_path / "project", host.workdir):
        write(root, **{"data/a": "a1"})
    other = os.open(host.workdir / "data", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert [done.files for done in deliver_data(tmp_path, host)] == [0]
    os.close(other)


def test_the_room_for_equal_files_is_checked_before_any_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = FakeHost(tmp_path)
    write(tmp_path / "project", **{f"data/{number}": "x" * 1000 for number in range(50)})
    monkeypatch.setattr(chunk_files, "free_bytes", lambda _: 49_999)
    with pytest.raises(ClusterddpError, match=r"it needs 0\.1 MB in .*, where 0\.0 MB are free"):
        deliver_data(tmp_path, host)
    assert host.calls == ["push_check"]
    monkeypatch.setattr(chunk_files, "free_bytes", lambda _: 50_000)
    assert [done.files for done in deliver_data(tmp_path, host)] == [50]


def test_the_room_is_checked_before_what_is_there_is_copied(
    tmp_path: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/table.py").write_bytes(b"#" * 2 * CHUNK)
    push(tmp_path / "code", host)
    (tmp_path / "code/table.py").write_bytes(b"#" * 2 * CHUNK + b"more")
    monkeypatch.setattr(chunk_files, "free_bytes", lambda _: CHUNK)
    monkeypatch.setattr(Parts, "put", lambda *_: pytest.fail("something was written"))
    with pytest.raises(ClusterddpError, match=r"it needs 8\.4 MB"):
        push(tmp_path / "code", host)
