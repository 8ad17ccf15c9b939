"""Room that was kept behind a file's end is given back only where nobody else has the file open."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.system import disk_space

if TYPE_CHECKING:
    from pathlib import Path

ROOM = 256 << 10
APPENDS = """
import os, sys
for number in range(2000):
    handle = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
    os.write(handle, b"%d\\n" % number)
    os.close(handle)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"a line\n")
    if not disk_space.preallocate(str(path), ROOM) or path.stat().st_blocks * 512 < ROOM:
        pytest.skip("this file system preallocates nothing")
    return path


def test_it_is_given_back_and_what_was_written_stays(file: Path) -> None:
    disk_space.free_preallocated(str(file))
    assert file.stat().st_blocks * 512 <= 8192
    assert file.read_bytes() == b"a line\n"


@pytest.mark.parametrize("mode", ["rb", "ab"])
def test_while_somebody_has_it_open_it_stays(file: Path, mode: str) -> None:
    with file.open(mode):
        disk_space.free_preallocated(str(file))
        assert file.stat().st_blocks * 512 >= ROOM


def test_no_line_is_lost_that_is_appended_meanwhile(file: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", APPENDS, str(file)]) as writer:
        try:
            deadline = time.monotonic() + 60
            while writer.poll() is None and time.monotonic() < deadline:
                disk_space.preallocate(str(file), ROOM)
                disk_space.free_preallocated(str(file))
            assert writer.poll() == 0
        finally:
            writer.kill()
    assert file.read_bytes() == b"a line\n" + b"".join(b"%d\n" % number for number in range(2000))


def test_a_file_that_is_gone_is_passed_over(tmp_path: Path) -> None:
    disk_space.free_preallocated(str(tmp_path / "none"))
    assert list(tmp_path.iterdir()) == []
