"""A project on a disk of the operator's that takes nothing more: full, or read-only."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import Done, User, used_before
from tests.lean import lean_python
from tests.remedies import remedy
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

need_torch()
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not sys.platform.startswith("linux") or os.getuid() != 0, reason="mounts need root on Linux"),
]

# The project's own folder on a disk of its own, for one command: $0 the folder, the rest the command.
FULL = """
cp -a "$0" "$0.copy" && mount -t tmpfs -o size=64k,mode=700 tmpfs "$0"
cp "$0.copy/project.json" "$0.copy/.gitignore" "$0"
dd if=/dev/zero of="$0/filled" bs=1k 2>/dev/null
exec "$@"
"""
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
WHY = {
    FULL: "No space left on device); make room there",
    READ_ONLY: "Read-only file system); make the folder writable",
}

INSTEAD = remedy("project/project.py", "{}, or set CLUSTERDDP_PROJECT to an id of your choice")


@pytest.fixture
def user(tmp_path: Path) -> User:
    user = used_before(User(tmp_path))
    user.write("ends.py", "import sys\nprint('begun', flush=True)\nsys.exit(3)\n")
    user.env["CLUSTERDDP_LIMIT"] = "all"
    user.env["CLUSTERDDP_PYTHON"] = lean_python()
    assert user.run("sync").code == 0  # makes the project's id
    return user


def on(user: User, disk: str, *words: str) -> Done:
    """A command where the project's folder is on such a disk."""
    prefix = ("unshare", "--mount", "/bin/sh", "-c", disk, str(user.folder / ".clusterddp"))
    with user.start(*words, prefix=prefix) as live:
        return live.end()


@pytest.mark.parametrize("disk", WHY, ids=["full", "read-only"])
def test_a_run_that_has_started_is_followed_to_its_end_and_what_is_not_kept_is_said(user: User, disk: str) -> None:
    done = on(user, disk, "run", "--max-restarts", "0", "ends.py")
    assert done.code == 3, done.err
    assert [one.text for one in done.workers] == ["begun", "begun"]
    (line,) = [note for note in done.notes if "keeps no record" in note]
    assert line == (
        f"run {done.run} has started, and the project keeps no record of it: "
        f"{user.folder}/.clusterddp: cannot be written ({WHY[disk]}"
    )
    assert f"run {done.run}: failed, 2 ranks" in user.run("status", done.run).out  # its hosts know it


@pytest.mark.parametrize("disk", WHY, ids=["full", "read-only"])
def test_up_says_in_a_line_that_it_cannot_remember(user: User, disk: str) -> None:
    user.write("inventory.yaml", "all: {hosts: {here: {ansible_connection: local}}}\n")
    done = on(user, disk, "up", "inventory.yaml")
    assert (done.code, done.notes[-1]) == (2, f"{user.folder}/.clusterddp: cannot be written ({WHY[disk]}")


@pytest.mark.parametrize("disk", WHY, ids=["full", "read-only"])
def test_a_project_without_an_id_there_takes_the_one_that_is_given_as_told(user: User, disk: str) -> None:
    (user.folder / ".clusterddp" / "project.json").unlink()
    refused = on(user, disk, "sync")
    assert refused.code == 2
    assert INSTEAD.printed(refused.err)[0].endswith(WHY[disk])
    user.env["CLUSTERDDP_PROJECT"] = "mine"
    done = on(user, disk, "sync")
    assert done.code == 0, done.err


def test_a_result_that_cannot_be_written_leaves_the_run_its_code(user: User) -> None:
    (user.folder / "full").symlink_to("/dev/full")
    done = user.run("run", "--max-restarts", "0", "--result", "full", "ends.py")
    assert done.code == 3, done.err
    assert f"--result full: cannot be written (No space left on device); `clusterddp status {done.run}" in done.err
