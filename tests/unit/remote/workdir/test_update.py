"""An update changes the folder that was opened, whatever is put in its place meanwhile."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.shared.wire.chunk_stream import Incoming, bundle
from clusterddp.remote.shared.wire.chunks import digest_of
from clusterddp.remote.shared.workdir.manifest import FILE, Disk, Entry
from clusterddp.remote.system.bootstrap import Refused
from clusterddp.remote.transfer.chunk_files import Assembly
from clusterddp.remote.workdir.update import WorkdirUpdate

if TYPE_CHECKING:
    from pathlib import Path

DATA = b"of the project\n"
ENTRY = Entry(".bashrc", FILE, False, len(DATA), digest_of(DATA))


class Nothing:
    """The record of a folder in which no sync has written anything."""

    entries: list[Entry] = []  # noqa: RUF012 - as the records have it

    def __init__(self, root: Path) -> None:
        self.root = os.fsencode(root)

    def disk(self) -> Disk:
        return Disk(self.root)


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    folder = tmp_path / "team" / "work"
    folder.mkdir(parents=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".bashrc").write_text("the user's own\n")
    return folder


def replace_by_link(workdir: Path, target: Path) -> None:
    """Do what a user can who may write in the parent folder: rename the workdir and put a link in its place."""
    workdir.rename(workdir.with_name("gone"))
    workdir.symlink_to(target)


def test_a_link_put_in_its_place_while_contents_arrive_leads_nothing_elsewhere(tmp_path: Path, workdir: Path) -> None:
    update = WorkdirUpdate(Nothing(workdir), [ENTRY])
    update.check()
    parts = Assembly(update.open_root() + b"/parts", {})
    incoming = iter([bundle([(ENTRY.content, DATA)], compress=False)])
    assert update.stage(parts, Incoming(lambda: next(incoming, b""))) == []
    replace_by_link(workdir, tmp_path / "home")
    update.commit()
    parts.close()
    update.close()
    assert [path.name for path in (tmp_path / "home").iterdir()] == [".bashrc"]
    assert (tmp_path / "home" / ".bashrc").read_text() == "the user's own\n"
    assert (workdir.with_name("gone") / ".bashrc").read_bytes() == DATA


def test_a_link_that_is_there_before_it_is_opened_is_refused(tmp_path: Path, workdir: Path) -> None:
    update = WorkdirUpdate(Nothing(workdir), [ENTRY])
    update.check()
    replace_by_link(workdir, tmp_path / "home")
    with pytest.raises(Refused, match=r"team/work was replaced during the sync$"):
        update.open_root()
