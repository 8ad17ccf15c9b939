"""The pipe over a child process, once it is closed."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from clusterddp.hosts.ssh import pipes
from clusterddp.hosts.ssh.pipes import ChildPipe

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_closed_pipe_whose_stderr_is_held_open_reads_no_other_s_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child of the child holds it; the number of our end becomes that of another connection."""
    monkeypatch.setattr(pipes, "TERM_TIMEOUT", 0.2)
    os.mkfifo(tmp_path / "go")
    before = set(threading.enumerate())
    holder = f"read line < '{tmp_path}/go'; echo late >&2; cat '{tmp_path}/go'"
    pipe = ChildPipe(["/bin/sh", "-c", f'setsid sh -c "{holder}" & cat > /dev/null'])
    (reader,) = set(threading.enumerate()) - before
    number = pipe._stderr
    go = os.open(tmp_path / "go", os.O_WRONLY)  # once the holder reads
    ours, others = os.pipe()
    os.set_blocking(ours, False)
    try:
        pipe.close()
        assert reader.is_alive()
        os.dup2(ours, number)
        os.write(others, b"of another host")
        os.write(go, b"\n")
        reader.join(60)
        assert os.read(number, 100) == b"of another host"
        assert pipe.stderr() == "late\n"
    finally:
        for descriptor in (go, ours, others, number):
            os.close(descriptor)
