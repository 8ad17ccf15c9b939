"""A cgroup of little memory, in which the kernel really kills."""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab.system import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_numbers = itertools.count()


@contextlib.contextmanager
def little_memory(limit: int) -> Iterator[tuple[str, ...]]:
    """The beginning of a command line: what stands behind it shares ``limit`` bytes."""
    own = _own_group()
    if own is None or not os.access(own, os.W_OK):
        pytest.skip("no memory cgroup (version 1) that we may write to")
    small = own / f"clusterddp-test-{os.getpid()}-{next(_numbers)}"
    small.mkdir()
    (small / "memory.limit_in_bytes").write_text(str(limit))
    try:
        yield ("sh", "-c", f'echo $$ >"{small}/cgroup.procs" && exec "$@"', "sh")
    finally:
        wait_until("the cgroup is empty", lambda: not (small / "cgroup.procs").read_text())
        small.rmdir()


def _own_group() -> Path | None:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            return Path("/sys/fs/cgroup/memory", path.strip("/"))
    return None
