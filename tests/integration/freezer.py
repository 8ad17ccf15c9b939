"""Processes in uninterruptible sleep, as of a dead file server: put to frost by a cgroup (version 1)."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.lab.system import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def freezing(place: Path) -> Iterator[Path]:
    """A cgroup whose processes can be frozen, mounted in the empty folder ``place``; thawed at the end.

    Write a pid to its ``cgroup.procs``, then ``freeze`` it.
    """
    mounted = subprocess.run(["mount", "-t", "cgroup", "-o", "freezer", "freezer", place], check=False)
    if mounted.returncode:
        pytest.skip("no freezer cgroup can be mounted here")
    group = place / f"clusterddp-{os.getpid()}"
    group.mkdir()
    try:
        yield group
    finally:
        thaw(group)
        wait_until("the end of what was frozen", lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()
        subprocess.run(["umount", place], check=True)


def freeze(group: Path) -> None:
    """Put all that is in the group to sleep."""
    (group / "freezer.state").write_text("FROZEN")
    wait_until("the frost", lambda: (group / "freezer.state").read_text() == "FROZEN\n")


def thaw(group: Path) -> None:
    """Wake all that is in the group."""
    (group / "freezer.state").write_text("THAWED")
