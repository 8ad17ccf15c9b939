"""A lab for as long as a block runs; whoever asks for it is skipped where this machine cannot carry one.

Importing torch is most of what a new host costs, so a host of a later lab knows from its first boot what torch said
on one of an earlier lab of the session, as a host knows it that was used before. Where several processes share a
session's tests, one host is asked for all of them before their first labs, which begin at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.cli import User
from tests.lab import Lab, LabUnavailable
from tests.lean import training_python

if TYPE_CHECKING:
    from collections.abc import Iterator

FACTS = ".clusterddp/facts"
KEPT = "CLUSTERDDP_TEST_FACTS"  # the variable with the session's folder of what hosts have kept in their facts folders


@contextlib.contextmanager
def own_lab(hosts: int, **variants: Any) -> Iterator[Lab]:
    """So many hosts, up; the variants are ``Lab``'s."""
    kept = Path(os.environ[KEPT])
    try:
        _ask_once(kept)
        lab = Lab(hosts, home_files=_read(kept), **variants)
        lab.start()
    except LabUnavailable as reason:
        pytest.skip(f"lab: {reason}")
    try:
        yield lab
        _keep(lab, kept)
    finally:
        lab.stop()


def _read(kept: Path) -> dict[str, str]:
    """Texts by path in a home; a file's name is a digest of all it rests on."""
    return {f"{FACTS}/{path.name}": path.read_text() for path in kept.glob("*.json")}


def _keep(lab: Lab, kept: Path) -> None:
    """Keep what the lab's hosts know; a file is there whole or not at all, for others read at any time."""
    for path in lab.folder.glob(f"**/{FACTS}/*.json"):
        if not (kept / path.name).exists():
            part = kept / f"{path.name}.{os.getpid()}"
            part.write_text(path.read_text())
            part.rename(kept / path.name)


def _ask_once(kept: Path) -> None:
    """Have one host ask the torch of both interpreters, if this is the first lab of several processes."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    with (kept / "lock").open("a") as lock, tempfile.TemporaryDirectory() as base:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock.fileno()).st_size:
            return
        print("asked", file=lock, flush=True)
        with Lab(1) as lab:
            both = {"gpu00b": {"clusterddp_python": training_python()}}
            User(Path(base)).up(lab.write_inventory(twice=["gpu00"], more=both))
            _keep(lab, kept)
