"""The pipe over a child process, once it is closed."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from clusterddp.hosts.ssh import pipes
from clusterddp.hosts.ssh.pipes import ChildPipe

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path


def test_a_closed_pipe_whose_stderr_is_held_open_reads_no_other_s_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child of the child holds it; the number of our end becomes that of another connection."""
    monkeypatch.setattr(pipes, "TERM_TIMEOUT", 0.2)
    os.mkfifo(tmp_path / "go")
    before = set(threading.enumerate())
    holder = f"exec < '{tmp_path}/go'; read line; echo late >&2; cat"  # it ends with this process at the latest
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


def test_a_pipe_that_is_closed_during_a_write_writes_no_bytes_to_another_s_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host takes nothing more, so the connection is given up; the number becomes that of another's file."""
    pipe = ChildPipe(["/bin/sh", "-c", "head -c 1; exec sleep 600"])
    number, end = pipe._stdin, pipes.end
    file = (tmp_path / "file").open("wb")

    def take_number_and_end(process: subprocess.Popen[bytes], timeout: float) -> None:
        os.dup2(file.fileno(), number)
        end(process, timeout)

    monkeypatch.setattr(pipes, "end", take_number_and_end)
    with file, ThreadPoolExecutor(1) as pool:
        written = pool.submit(pipe.write, b"x" * (1 << 20))
        assert pipe.read(1) == b"x"  # the rest does not fit into the pipe: the writer waits
        pipe.close()
        with pytest.raises(BrokenPipeError):
            written.result()
        os.close(number)
    assert (tmp_path / "file").read_bytes() == b""
