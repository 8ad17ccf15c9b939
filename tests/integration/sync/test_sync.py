"""Sync through real helpers: local child processes with homes of their own, the whole path but the network."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import HelperError
from clusterddp.hosts.client import Host
from clusterddp.hosts.ssh import Connector
from clusterddp.inventory import HostEntry
from clusterddp.sync.send_code import sync, workdirs_as_they_are
from tests.unit.sync_help import content, tree_of, write

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Host]]:
    entries = [
        HostEntry(
            name=name,
            address=name,
            connection="local",
            workdir=str(tmp_path / name / "work"),
            state=str(tmp_path / name / "state"),
        )
        for name in ("gpu01", "gpu02", "gpu03")
    ]
    opened = [Host.open(entry, Connector()) for entry in entries]
    yield opened
    for host in opened:
        host.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    write(folder, **{f"pkg{number % 7}/module{number}.py": f"A = {number}\n" for number in range(300)})
    (folder / "weights.bin").write_bytes(os.urandom(3 << 20))
    (folder / os.fsdecode(b"caf\xe9")).write_text("x")
    return folder


def work(host: Host) -> Path:
    return Path(str(host.entry.workdir))


def test_every_host_holds_the_project_and_edits_follow(hosts: list[Host], root: Path) -> None:
    tree = tree_of(root)
    result = sync(hosts, tree, workdir="~/unused", subfolder="exp")
    assert [host.digest for host in result.hosts] == [tree.digest] * 3
    assert all(content(work(host)) == content(root) for host in hosts)
    assert all((work(host) / "exp").is_dir() for host in hosts)
    write(work(hosts[1]), **{"snapshot.pt": "epoch 1"})
    write(root, **{"pkg0/module0.py": "A = 99\n"})
    (root / "pkg1/module1.py").unlink()
    result = sync(hosts, tree_of(root), workdir="~/unused")
    assert [(host.sent, host.removed) for host in result.hosts] == [(1, 1)] * 3
    assert content(work(hosts[1])) == {**content(root), "snapshot.pt": "epoch 1"}
    assert [host.digest for host in workdirs_as_they_are(hosts, workdir="~/unused")] == [tree_of(root).digest] * 3


def test_a_manifest_larger_than_any_frame_comes_through(hosts: list[Host], tmp_path: Path) -> None:
    folder = tmp_path / "many"
    write(folder, **{f"d{number % 20}/{'long' * 20}{number}": str(number) for number in range(2000)})
    sync(hosts[:1], tree_of(folder), workdir="~/unused")
    (folder / "one").write_text("more")
    assert sync(hosts[:1], tree_of(folder), workdir="~/unused").hosts[0].sent == 1
    assert content(work(hosts[0])) == content(folder)


def test_a_refusal_is_one_line_with_host_and_remedy(hosts: list[Host], root: Path, tmp_path: Path) -> None:
    work(hosts[2]).mkdir(parents=True)
    (work(hosts[2]) / "pkg3").symlink_to(tmp_path)
    with pytest.raises(HelperError, match=r"^gpu03: .*pkg3 is a link on this host.*; remove the link"):
        sync(hosts, tree_of(root), workdir="~/unused")


def test_a_helper_killed_under_way_is_mended_by_the_next_sync(
    hosts: list[Host], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, tree = hosts[0], tree_of(root)
    upload, helper = host.upload, host.hello.pid

    def cut(op: str, args: Any, chunks: Any, **options: Any) -> Any:
        def until_half() -> Iterator[bytes]:
            for chunk in chunks:
                yield chunk[: len(chunk) // 2]
                if len(chunk) > 1 << 20:
                    os.kill(helper, signal.SIGKILL)
                yield chunk[len(chunk) // 2 :]

        return upload(op, args, until_half() if op == "sync_apply" else chunks, **options)

    monkeypatch.setattr(host, "upload", cut)
    with pytest.raises(Exception, match="gpu01"):
        sync([host], tree, workdir="~/unused")
    with Host.open(host.entry, Connector()) as again:
        result = sync([again], tree, workdir="~/unused").hosts[0]
    assert result.kept == ()
    assert content(tmp_path / "gpu01" / "work") == content(root)
