from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterddp.remote.workdir.stat_cache import STAT_CACHES, read_stat_cache, stat_cache_path, stat_caches
from tests.unit.sync_help import FakeHost, content, push, write

if TYPE_CHECKING:
    from pathlib import Path


def synced(place: Path) -> tuple[Path, FakeHost, Path]:
    """A project, a host that has it, and the file of what that remembers."""
    root, host = place / "project", FakeHost(place)
    write(root, **{"train.py": "print(1)", "pkg/model.py": "A = 1"})
    push(root, host)
    return root, host, host.state / stat_cache_path(str(host.state), os.fsencode(host.workdir))


def test_what_was_proved_is_remembered_line_by_line(tmp_path: Path) -> None:
    _, host, _ = synced(tmp_path)
    memory = read_stat_cache(str(host.state), os.fsencode(host.workdir))
    assert memory is not None
    assert memory.paths == [b"pkg/model.py", b"train.py"]
    info = (host.workdir / "train.py").stat()
    assert memory.hashes()["train.py"][0] == [info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino]


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 600), st.binary(max_size=40), st.integers(0, 40))
def test_a_damaged_memory_is_none_or_whole(tmp_path: Path, at: int, put: bytes, taken: int) -> None:
    if not (tmp_path / "gpu01").exists():
        (tmp_path / "memory").write_bytes(synced(tmp_path)[2].read_bytes())
    host, whole = FakeHost(tmp_path), (tmp_path / "memory").read_bytes()
    path = stat_cache_path(str(host.state), os.fsencode(host.workdir))
    (tmp_path / path).write_bytes(whole[:at] + put + whole[at + taken :])
    memory = read_stat_cache(str(host.state), os.fsencode(host.workdir))
    assert memory is None or (len(memory.paths) == len(memory.stats) == len(memory.hashes()))
    ((_, folder),) = stat_caches(str(host.state))
    assert folder is None or isinstance(folder, str)


def test_a_host_that_remembers_nothing_reads_all_and_finds_the_same(tmp_path: Path) -> None:
    root, host, path = synced(tmp_path)
    whole = path.read_bytes()
    in_manifest = whole[:-20] + b"\xff" + whole[-19:]
    for damage in (b"", b"{}\n", b"\xff", b"[" * 100_000, whole[:-5], in_manifest):
        path.write_bytes(damage)
        host.calls.clear()
        push(root, host)
        assert host.calls == ["workdir_state"]
        path.write_bytes(damage)
        write(host.workdir, **{"train.py": "print(7)"})
        assert [one.path for one in push(root, host).hosts[0].kept] == ["train.py"]
        assert content(host.workdir)["train.py"] == "print(1)"


def test_the_folder_of_another_versions_file_is_known(tmp_path: Path) -> None:
    file = tmp_path / STAT_CACHES / "0.files"
    file.parent.mkdir()
    file.write_bytes(b'{"format": 9, "workdir": "/w", "more": []}\n\xff')
    assert stat_caches(str(tmp_path)) == [(str(file), "/w")]
    file.write_bytes(b'{"format": 9}\n')
    assert stat_caches(str(tmp_path)) == [(str(file), None)]
