"""Which labs exist on this machine: numbers, owners, and clearing away what the dead left.

A lab is a folder `clusterddp-labs/<number>` with an owner.json; its number names everything
else it has.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from typing import TYPE_CHECKING

from tests.lab import network, stalls
from tests.lab.options import disk_root
from tests.lab.system import LabError, ProcessId

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HIGHEST = 250


def root() -> Path:
    """The folder of all labs; only root may look inside, for private keys lie there."""
    folder = disk_root() / "clusterddp-labs"
    folder.mkdir(mode=0o711, exist_ok=True)
    return folder


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """One process at a time, so that nobody clears away a lab that is just being entered."""
    with (root() / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def allocate(*, kept: bool) -> tuple[int, Path]:
    """Take a free number and make its folder, after clearing away labs of dead owners.

    Args:
        kept: The lab outlives this process, until `down`.
    """
    with _locked():
        for number in numbers():
            if owner(number) == "dead":
                _clear(number)
        number = next((n for n in range(1, HIGHEST) if not _used(n)), 0)
        if not number:
            raise LabError(f"{HIGHEST} labs are running: python -m tests.lab down")
        folder = root() / str(number)
        folder.mkdir(mode=0o711)
        me = ProcessId.of(os.getpid())
        assert me is not None
        record = {"kept": kept, "pid": me.pid, "start_ticks": me.start_ticks}
        (folder / "owner.json").write_text(json.dumps(record))
        return number, folder


def _used(number: int) -> bool:
    return (root() / str(number)).exists() or bool(network.remains(number))


def numbers() -> list[int]:
    """The labs that have a folder."""
    return sorted(int(path.name) for path in root().iterdir() if path.name.isdigit())


def owner(number: int) -> str:
    """`kept` (until `down`), `alive` (a process holds it) or `dead`."""
    try:
        record = json.loads((root() / str(number) / "owner.json").read_text())
    except (OSError, ValueError):
        return "dead"
    if record["kept"]:
        return "kept"
    return "alive" if ProcessId(pid=record["pid"], start_ticks=record["start_ticks"]).alive else "dead"


def remove(number: int) -> None:
    """Remove a lab whole: processes, namespaces, cables, disks. Twice is no error."""
    with _locked():
        _clear(number)


def remove_all() -> list[int]:
    """Remove every lab that no process holds; their numbers. Judged under the lock: one may just be made."""
    with _locked():
        removed = [number for number in numbers() if owner(number) != "alive"]
        for number in removed:
            _clear(number)
    return removed


def _clear(number: int) -> None:
    stalls.thaw(network.prefix(number))
    network.remove_all(number)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(root() / str(number))
