"""How much memory a warm server may take: none begins where there is little, and one that has grown large ends."""

from __future__ import annotations

import mmap
import os
import resource
from pathlib import Path

import pytest

from clusterddp.remote.fork_server.fork_checks import RefusedError
from clusterddp.remote.fork_server.preload_trial import MAX_MEMORY
from clusterddp.remote.preload.preload_server import MIN_AVAILABLE_MEMORY, PreloadServer
from clusterddp.remote.system import procfs


def test_a_server_that_has_grown_large_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(code: int) -> None:
        raise SystemExit(code)

    sizes = [MAX_MEMORY, MAX_MEMORY + 1]
    monkeypatch.setattr(procfs, "own_memory", lambda _: sizes.pop(0))
    monkeypatch.setattr(os, "_exit", ends)
    server = object.__new__(PreloadServer)
    server.end_if_large()
    with pytest.raises(SystemExit):
        server.end_if_large()


def test_a_host_with_little_memory_left_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "available_bytes", lambda: (MIN_AVAILABLE_MEMORY - 1) << 10)
    with pytest.raises(RefusedError, match="only 1199 MB of memory are left here"):
        object.__new__(PreloadServer).load()


def test_pages_of_files_are_not_counted() -> None:
    with mmap.mmap(-1, 64 << 20) as anonymous:
        before = procfs.own_memory(os.getpid()), procfs.anonymous_memory()
        anonymous.write(b"x" * (64 << 20))
        assert procfs.own_memory(os.getpid()) - before[0] > 60 << 10
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 10
    assert 0 < before[0] < resident
    assert 0 < before[1] < resident
