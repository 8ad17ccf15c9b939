"""Streams that cannot encode every sign of ours, and files that cannot be written."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import resource
import signal
import subprocess
import sys
import termios
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.checks.model import CheckResult
from clusterddp.cli.doctor_tables import print_doctor
from clusterddp.cli.output import replace_unencodable, say, write_file, writer
from clusterddp.cli.run_lines import fold_if_many_ranks
from clusterddp.logs.render import TextRenderer
from tests.lab.system import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from clusterddp.logs.fold import Fold


def result(verdict: str, message: str) -> CheckResult:
    return CheckResult(name="shm", category="machine", verdict=verdict, hosts=("gpu00",), message=message)  # type: ignore[arg-type]


def test_signs_that_an_ascii_terminal_cannot_show_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.BytesIO(), io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="ascii"))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(err, encoding="ascii"))
    replace_unencodable()
    print_doctor([result("fail", "a → b…"), result("pass", "5 × 3")], verbose=True)
    say("host gpü00 – 3 ± 1")
    sys.stdout.flush()
    sys.stderr.flush()
    assert "[x] machine" in out.getvalue().decode("ascii")
    assert "a -> b..." in out.getvalue().decode("ascii")
    assert err.getvalue() == b"clusterddp: host gp\\xfc00 - 3 +- 1\n"


@pytest.mark.parametrize(
    ("terminal", "world", "shown", "wanted", "folds"),
    [
        (True, 9, None, None, True),
        (True, 8, None, None, False),
        (True, 64, (0, 1), None, False),
        (True, 9, tuple(range(99)), None, True),
        (True, 9, None, False, False),
        (True, None, None, None, False),
        (False, 64, None, None, False),
        (False, 2, None, True, True),
    ],
)
def test_lines_fold_on_a_terminal_with_more_than_eight_ranks_or_as_the_user_says(
    monkeypatch: pytest.MonkeyPatch,
    *,
    terminal: bool,
    world: int | None,
    shown: tuple[int, ...] | None,
    wanted: bool | None,
    folds: bool,
) -> None:
    asked: list[Fold] = []
    renderer = TextRenderer()
    monkeypatch.setattr(renderer, "fold", asked.append)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    run: Any = SimpleNamespace(record=SimpleNamespace(world_size=world))
    fold_if_many_ranks(renderer, run, shown, wanted)
    assert bool(asked) == folds


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_command_ends_well_whatever_the_streams_encoding(encoding: str) -> None:
    argv = [sys.executable, "-m", "clusterddp.cli.main", "doctor", "--list"]
    done = subprocess.run(argv, env={**os.environ, "PYTHONIOENCODING": encoding}, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode(encoding)


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Let no file grow over 100 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_new_file_is_not_left_where_it_cannot_be_written_whole(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(OSError, match="too large"):
        write_file(tmp_path / "new", "x" * 200)
    assert not [*tmp_path.iterdir()]
    write_file(tmp_path / "new", "x" * 200)
    assert (tmp_path / "new").read_text() == "x" * 200


def test_what_was_there_stays_where_it_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        with full_disk(), pytest.raises(OSError, match="too large"):
            write_file(tmp_path / name, "x" * 200)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link"}


def interrupt_once_the_pipe_holds(pipe: int, size: int) -> None:
    """Press Ctrl-C once so many bytes wait for the pipe's reader."""

    def held() -> int:
        return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)

    wait_until("a full pipe", lambda: held() == size)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("size", [100, 100_000])
def test_ctrl_c_while_a_batch_is_written_neither_loses_nor_repeats_a_byte(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The reader of a pipe has paused; it reads on once Ctrl-C has come."""
    text = b"".join(b"line %d\n" % number for number in range(size))
    renderer: Any = TextRenderer()
    monkeypatch.setattr(renderer, "draw", lambda _events: text)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "w") as output, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", output)
        taken = 1 << 16 if len(text) > 1 << 16 else 0  # what the pipe holds
        drawn: list[int] = []
        with contextlib.suppress(KeyboardInterrupt), writer(renderer, note_drawn=lambda: drawn.append(1)) as write:
            threading.Thread(target=interrupt_once_the_pipe_holds, args=(reading, taken or len(text))).start()
            write([])
            threading.Event().wait(30)  # where it was written at once
        assert drawn == [1]
        assert len(renderer.unwritten) == (len(text) - taken if taken else 0)
        got: list[bytes] = []
        thread = threading.Thread(target=lambda: got.append(reader.read()))
        thread.start()
        with writer(renderer):
            pass
        output.close()
        thread.join()
    assert got == [text]
