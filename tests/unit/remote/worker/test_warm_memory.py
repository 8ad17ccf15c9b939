"""A warm server that has grown large gives up what it has imported for a project first, then itself."""

from __future__ import annotations

import mmap
import os
import resource
from pathlib import Path

import pytest

from clusterddp.remote.system import procfs
from clusterddp.remote.worker import learned
from clusterddp.remote.worker.fork_checks import RefusedError
from clusterddp.remote.worker.learned import Learned, Package
from clusterddp.remote.worker.learning import Runs
from clusterddp.remote.worker.warm_server import LARGEST, TO_SPARE, WarmServer

GOOD = Package(name="good", modules=("good",))


class AnewError(Exception):
    """It would execute itself."""


def server(state: Path, packages: list[Package]) -> WarmServer:
    """One that has imported the packages."""
    made = object.__new__(WarmServer)
    made.project, made.packages = learned.key_of("/home/u/w"), packages
    made.runs = Runs(str(state), made.project, (), "")
    learned.keep(str(state), Learned(workdir="/home/u/w", packages=(GOOD,), tried="0a"))
    return made


def test_packages_go_first_and_are_remembered_then_the_server_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def anew(*_: object) -> None:
        raise AnewError

    def ends(code: int) -> None:
        raise SystemExit(code)

    sizes = [LARGEST, LARGEST + 1, LARGEST + 1]
    monkeypatch.setattr(procfs, "own_memory", lambda _: sizes.pop(0))
    monkeypatch.setattr(os, "_exit", ends)
    monkeypatch.setattr(WarmServer, "begin_anew", anew)
    large = server(tmp_path, [GOOD])
    large.keep_small()
    with pytest.raises(AnewError):
        large.keep_small()
    found = learned.find(str(tmp_path), large.project)
    assert found
    assert [one.left_out for one in found.packages] == ["with it the warm server had more than 600 MB"]
    with pytest.raises(SystemExit):
        server(tmp_path, []).keep_small()


def test_a_host_with_little_memory_left_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "available_bytes", lambda: (TO_SPARE - 1) << 10)
    with pytest.raises(RefusedError, match="only 1199 MB of memory are left here"):
        server(tmp_path, []).load("")


def test_pages_of_files_are_not_counted() -> None:
    with mmap.mmap(-1, 64 << 20) as anonymous:
        before = procfs.own_memory(os.getpid())
        anonymous.write(b"x" * (64 << 20))
        assert procfs.own_memory(os.getpid()) - before > 60 << 10
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 10
    assert 0 < before < resident
