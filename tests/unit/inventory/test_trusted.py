"""Whose files are read as an inventory and beside it: the user's, root's, and those of who may write the inventory."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import InventoryError
from clusterddp.inventory import load
from clusterddp.inventory.trusted import refuse_beside
from clusterddp.project.consent import Writers

if TYPE_CHECKING:
    from collections.abc import Callable

ALICE, BOB, TEAM = 4101, 4102, 4100

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """An inventory with variables beside it, all of this user."""
    path = tmp_path / "hosts.yaml"
    path.write_text("all: {children: {gpu: {hosts: {a: }}}}\n")
    for name in ("group_vars", "host_vars", "group_vars/gpu"):
        (tmp_path / name).mkdir()
    (tmp_path / "group_vars" / "gpu" / "one.yml").write_text("ansible_user: alice\n")
    (tmp_path / "host_vars" / "a.yml").write_text("ansible_port: 2222\n")
    return path


def give(path: Path, uid: int, gid: int = -1) -> None:
    for one in (path, *path.rglob("*")):
        os.chown(one, uid, gid, follow_symlinks=False)


def for_the_team(path: Path) -> None:
    os.chown(path, -1, TEAM)
    path.chmod(0o660)


def link(path: Path, target: Path) -> None:
    """Put a link of Bob's in the place of a file or folder, which goes elsewhere."""
    if path.exists():
        path.rename(target)
    path.symlink_to(target)
    os.chown(path, BOB, -1, follow_symlinks=False)


def test_ones_own_files_are_read(inventory: Path) -> None:
    found = load(inventory)
    assert (found.hosts[0].user, found.hosts[0].port) == ("alice", 2222)
    assert found.writers == Writers(owner=os.geteuid())
    assert load(inventory, found.writers).hosts == found.hosts


PLANTED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file of another's": (lambda at: give(at / "host_vars/a.yml", BOB), "a.yml: belongs to uid 4102, who may not"),
    "a folder of another's": (
        lambda at: os.chown(at / "group_vars", BOB, -1), "one.yml: its folder belongs to uid 4102, who may not",
    ),
    "a folder within": (lambda at: os.chown(at / "group_vars/gpu", BOB, -1), "its folder belongs to uid 4102"),
    "a file for all to write": (lambda at: (at / "host_vars/a.yml").chmod(0o666), "a.yml: can be written by everyone"),
    "a folder for all to write": (lambda at: (at / "group_vars").chmod(0o777), "its folder can be written by everyone"),
    "a sticky folder for all": (lambda at: (at / "group_vars").chmod(0o1777), "its folder can be written by everyone"),
    "a file for a group": (
        lambda at: for_the_team(at / "host_vars/a.yml"),
        "a.yml: can be written by the group gid 4100, who may not write hosts.yaml",
    ),
    "another's link to a file of ours": (
        lambda at: link(at / "host_vars/a.yml", at / "mine.yml"), "a.yml: a.yml on the way there is a link of uid 4102",
    ),
    "another's link to a folder of ours": (
        lambda at: link(at / "group_vars", at / "mine"), "group_vars on the way there is a link of uid 4102",
    ),
}  # fmt: skip


@needs_root
@pytest.mark.parametrize(("plant", "words"), PLANTED.values(), ids=PLANTED)
def test_what_others_put_beside_an_inventory_is_refused_by_name(
    inventory: Path, plant: Callable[[Path], object], words: str
) -> None:
    plant(inventory.parent)
    for kept in (None, Writers(owner=os.geteuid())):
        with pytest.raises(InventoryError) as said:
            load(inventory, kept)
        assert words in str(said.value)
    with pytest.raises(InventoryError):
        refuse_beside(inventory)


@needs_root
def test_ones_own_links_are_followed(inventory: Path, tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "group_vars").rename(tmp_path / "common" / "group_vars")
    (tmp_path / "group_vars").symlink_to("common/../common/group_vars")
    (tmp_path / "host_vars" / "a.yml").rename(tmp_path / "b.yml")
    (tmp_path / "host_vars" / "a.yml").symlink_to(tmp_path / "b.yml")
    (tmp_path / "current.yaml").symlink_to("hosts.yaml")
    host = load(tmp_path / "current.yaml", Writers(owner=os.geteuid())).hosts[0]
    assert (host.user, host.port) == ("alice", 2222)
    refuse_beside(inventory)


def test_links_in_a_circle_are_one_line(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    for kept in (None, Writers(owner=os.geteuid())):
        with pytest.raises(InventoryError, match="Too many levels of symbolic links"):
            load(loop / "hosts.yaml", kept)


@needs_root
def test_a_shared_folder_is_read_as_far_as_who_writes_the_inventory_goes(inventory: Path, tmp_path: Path) -> None:
    give(tmp_path, ALICE)
    named = load(inventory)  # by root, as in a container whose mounts are another's
    assert named.writers == Writers(owner=ALICE)
    assert load(inventory, named.writers).hosts == named.hosts
    give(tmp_path / "host_vars", BOB)
    with pytest.raises(InventoryError, match="belongs to uid 4102"):
        load(inventory, named.writers)


@needs_root
def test_members_of_the_group_that_may_write_the_inventory_may_write_beside_it(
    inventory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterddp.project.consent._is_member", lambda uid, gid: (uid, gid) == (BOB, TEAM))
    give(tmp_path, ALICE, TEAM)
    for path in (inventory, tmp_path / "group_vars", tmp_path / "host_vars/a.yml"):
        path.chmod(path.stat().st_mode | 0o020)
    give(tmp_path / "host_vars/a.yml", BOB)
    named = load(inventory)
    assert named.writers == Writers(owner=ALICE, group=TEAM)
    inventory.chmod(0o644)
    (tmp_path / "group_vars").chmod(0o755)
    with pytest.raises(InventoryError, match="belongs to uid 4102"):
        load(inventory)


@needs_root
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: os.chown(path, BOB, -1), "belongs to uid 4102, unlike when `up` was given it"),
        (lambda path: path.chmod(0o666), "can be written by everyone, unlike when `up` was given it"),
        (lambda path: link(path, path.with_name("mine.yaml")), "hosts.yaml on the way there is a link of uid 4102"),
        (lambda path: link(path.parent, path.parent.with_name("moved")), "on the way there is a link of uid 4102"),
    ],
)
def test_an_inventory_that_others_came_to_write_is_no_longer_read(
    inventory: Path, tmp_path: Path, change: Callable[[Path], object], words: str
) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path = Path(shutil.copy(inventory, inner))
    kept = load(path).writers
    change(path)
    with pytest.raises(InventoryError) as said:
        load(path, kept)
    assert words in str(said.value)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.yaml")
    with pytest.raises(InventoryError, match="is no file"):
        load(tmp_path / "fifo.yaml")
    (tmp_path / "hosts.yaml").write_text("all: {hosts: {a: }}\n")
    (tmp_path / "host_vars").mkdir()
    os.mkfifo(tmp_path / "host_vars" / "a.yml")
    with pytest.raises(InventoryError, match="is no file"):
        load(tmp_path / "hosts.yaml")
