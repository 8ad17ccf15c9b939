"""clusterddp_links: ``./data`` leads to each host's own place; what is in the way stays, and is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.sync_help import FakeHost, content, push, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "project", **{"train.py": "1"})
    return tmp_path / "project"


def test_a_sync_makes_the_links_of_each_host_and_says_where_they_lead_nowhere(root: Path, tmp_path: Path) -> None:
    hosts = [FakeHost(tmp_path, name) for name in ("a", "b")]
    for host in hosts:
        host.entry.links = {"data": str(host.place / "sets"), "deep/er": "/"}
    (hosts[0].place / "sets").mkdir()
    line = f"b: data of clusterddp_links leads to {hosts[1].place}/sets, where nothing is"
    assert push(root, *hosts).notices == (line,)
    for host in hosts:
        assert content(host.workdir) == {"train.py": "1", "data": f"-> {host.place}/sets", "deep/er": "-> /"}
    assert push(root, *hosts).notices == (line,)
    (hosts[1].place / "sets").mkdir()
    assert push(root, *hosts).notices == ()


def test_what_is_in_the_way_of_a_link_stays_and_is_named(root: Path, tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.entry.links = {"data": "/somewhere", "old": "/new"}
    write(host.workdir, **{"data/own": "x"})
    (host.workdir / "old").symlink_to("/old")
    notices = push(root, host).notices
    assert [note.split(" of clusterddp_links")[0] for note in notices] == [
        f"gpu01: {host.workdir}/data is something else than the link to /somewhere",
        f"gpu01: {host.workdir}/old is something else than the link to /new",
    ]
    assert content(host.workdir) == {"train.py": "1", "data/own": "x", "old": "-> /old"}


def test_a_folder_of_the_project_where_a_link_is_meant_is_refused(root: Path, tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.entry.links = {"data": str(tmp_path)}
    push(root, host)
    write(root, **{"data/readme": "x"})
    with pytest.raises(Exception, match="data is a link on this host, but a folder in the project"):
        push(root, host)
