"""What the startup hook does beyond being invisible: the record of an exception, stacks on a signal, a full disk."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.processes.stacks import STACK_SIGNAL
from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.system import disk_space
from clusterddp.remote.worker.hook import sitecustomize as hook
from tests.integration.shim_spool import (
    ShimSpool,
    environment,
    make_spool,
    run_plain,
    wait_for,
)
from tests.pythons import INTERPRETERS, interpreter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SPAWNS = """
from multiprocessing import get_context
if __name__ == "__main__":
    child = get_context("spawn").Process(target=exec, args=("1/0",))
    child.start()
    child.join()
"""
EMPTY = {"TORCHELASTIC_ERROR_FILE": ""}


@pytest.fixture(params=INTERPRETERS)
def spool(tmp_path: Path, request: pytest.FixtureRequest) -> ShimSpool:
    """A spool whose workers run on each interpreter."""
    python = interpreter(request.param)
    return make_spool(tmp_path, python=python, helper=python)


def write(spool: ShimSpool, name: str, text: str) -> Path:
    path = spool.cwd / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def record_of(spool: ShimSpool, text: str, *, env: dict[str, str] | None = None, code: int = 1) -> dict[str, Any]:
    """The record that a script leaves."""
    write(spool, "train.py", text)
    assert spool.run("-u", "train.py", env=env).returncode == code
    record: dict[str, Any] = json.loads((spool.folder / "errors" / "0.0.json").read_text())
    return record


def test_a_record_names_the_exception_and_its_place(spool: ShimSpool) -> None:
    before = time.time_ns()
    record = record_of(
        spool, "def step(x):\n    raise ValueError(f'loss is {x} \\u2713 \\U0001f525 \"q\" \\\\')\n\nstep('NaN')"
    )
    text = 'loss is NaN ✓ 🔥 "q" \\'
    assert (record["exc_type"], record["exc_message"]) == ("ValueError", text)
    assert (record["file"], record["line"]) == (str(spool.cwd / "train.py"), 2)
    assert before < record["time_ns"] < time.time_ns()
    message = record["message"]
    assert message["message"] == f"ValueError: {text}"
    assert message["extraInfo"]["timestamp"] == str(record["time_ns"] // 10**9)
    assert message["extraInfo"]["py_callstack"] == (spool.folder / "logs" / "0.0.err").read_text(encoding="utf-8")


def test_both_ends_of_a_long_record_are_kept(spool: ShimSpool) -> None:
    """`load_state_dict` names each key that is missing: a hundred thousand letters of them."""
    record = record_of(spool, "raise RuntimeError('begin' + ' lost.key' * 15_000 + ' end')")
    for text in (record["exc_message"], record["message"]["extraInfo"]["py_callstack"]):
        assert (len(text), text.count("…")) == (64 * 1024 + 1, 1)
    assert record["exc_message"][:5] + record["exc_message"][-4:] == "begin end"
    stack = record["message"]["extraInfo"]["py_callstack"]
    assert stack.startswith("Traceback (most recent call last):\n")
    assert stack.endswith(" lost.key end\n")


def test_the_users_own_frame_is_named_rather_than_a_librarys(spool: ShimSpool) -> None:
    write(spool, "lib/site-packages/library.py", "def go(f): return f()")
    write(spool, "pkg/model.py", "import json\ndef bad(): return json.loads('{')")
    text = "import sys; sys.path.append('lib/site-packages')\nimport library, pkg.model\nlibrary.go(pkg.model.bad)"
    record = record_of(spool, text)
    assert (record["file"], record["line"]) == (str(spool.cwd / "pkg" / "model.py"), 2)
    assert record["exc_type"] == "json.decoder.JSONDecodeError"


def test_a_syntax_error_is_at_its_own_line(spool: ShimSpool) -> None:
    write(spool, "model.py", "x = 1\ny = = 2\n")
    record = record_of(spool, "import model")
    assert (record["file"], record["line"], record["exc_type"]) == (str(spool.cwd / "model.py"), 2, "SyntaxError")


@pytest.mark.parametrize(("text", "kind", "code"), [
    ("raise KeyboardInterrupt", "KeyboardInterrupt", -2),
    ("class E(Exception):\n    def __str__(self): raise KeyError\nraise E", "E", 1),
    ("raise BaseException(chr(0xdc80))", "BaseException", 1),
    ("import sys\nsys.stderr.close()\nraise ValueError", "ValueError", 1),
    ("import sys\nfor n in ('json', 'traceback', 'time'): sys.modules[n] = None\nraise ValueError", None, 1),
    ("import sys\np = sys.excepthook\nsys.excepthook = lambda *a: p(*a)\nraise ValueError", "ValueError", 1),
])  # fmt: skip
def test_odd_exceptions_are_recorded_where_they_can_be(
    spool: ShimSpool, text: str, kind: str | None, code: int
) -> None:
    write(spool, "train.py", text)
    assert spool.run("-u", "train.py").returncode == code
    files = list((spool.folder / "errors").iterdir())
    assert [json.loads(path.read_text())["exc_type"] for path in files] == ([kind] if kind else [])


@pytest.mark.parametrize("text", [
    "raise SystemExit(3)",
    "import threading; t = threading.Thread(target=lambda: 1/0); t.start(); t.join()",
    "import os\nif not os.fork(): 1/0\nos.wait()",
    "import subprocess, sys; subprocess.call([sys.executable, '-c', '1/0'])",
    SPAWNS,
], ids=["exit", "thread", "fork", "subprocess", "spawn"])  # fmt: skip
def test_what_does_not_end_the_worker_by_an_exception_is_not_recorded(spool: ShimSpool, text: str) -> None:
    write(spool, "train.py", text)
    spool.run("-u", "train.py")
    assert list((spool.folder / "errors").iterdir()) == []


def test_torchruns_error_file_gets_the_same_record(spool: ShimSpool) -> None:
    file = spool.cwd / "error.json"
    record = record_of(spool, "1/0", env=environment(TORCHELASTIC_ERROR_FILE=str(file)))
    assert json.loads(file.read_text()) == record


def test_torchs_own_record_is_left_as_it_is(spool: ShimSpool) -> None:
    file = spool.cwd / "error.json"
    text = "import os\nopen(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('{\"message\": \"torch\"}')\n1/0"
    record = record_of(spool, text, env=environment(TORCHELASTIC_ERROR_FILE=str(file)))
    assert json.loads(file.read_text()) == {"message": "torch"}
    assert record["exc_type"] == "ZeroDivisionError"


def test_torchs_own_record_is_kept_when_the_script_then_ends_by_itself(spool: ShimSpool) -> None:
    file = spool.cwd / "error.json"
    text = "import os\nopen(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('{\"message\": \"torch\"}')\nos._exit(4)"
    assert record_of(spool, text, env=environment(TORCHELASTIC_ERROR_FILE=str(file)), code=4) == {"message": "torch"}


def test_without_torchruns_error_file_record_has_one_in_the_spool(spool: ShimSpool) -> None:
    text = "import os\nopen(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('{\"message\": \"torch\"}')\nos._exit(4)"
    assert record_of(spool, text, env=environment(**EMPTY), code=4) == {"message": "torch"}


def test_the_hosts_own_excepthook_is_kept(spool: ShimSpool) -> None:
    own = write(spool, "own/sitecustomize.py", "import sys\nsys.excepthook = lambda *a: print('host', a[0].__name__)")
    record = record_of(spool, "1/0", env=environment(PYTHONPATH=str(own.parent)))
    assert record["exc_type"] == "ZeroDivisionError"
    assert (spool.folder / "logs" / "0.0.out").read_text() == "host ZeroDivisionError\n"


def test_stacks_of_all_threads_go_to_the_spool_on_the_signal_and_the_worker_goes_on(spool: ShimSpool) -> None:
    text = "import signal, threading\ndone = threading.Event()\nsignal.signal(10, lambda *a: done.set())\n"
    text += "def waits(): done.wait()\nt = threading.Thread(target=waits); t.start(); print('ready')\n"
    write(spool, "train.py", text + "t.join(); print('on')")
    out, err = (spool.folder / "logs" / f"0.0.{name}" for name in ("out", "err"))
    with spool.popen("-u", "train.py") as process:
        wait_for(lambda: out.exists() and out.read_text() == "ready\n", "the script")
        pid = spool.event("worker_started")["pid"]
        os.kill(pid, STACK_SIGNAL)
        dump = spool.folder / "stacks" / "0.0"
        wait_for(lambda: "train.py" in dump.read_text() and "in waits" in dump.read_text(), "stacks")
        assert process.poll() is None
        process.send_signal(signal.SIGUSR1)
        assert process.wait(10) == 0
    assert (out.read_text(), err.read_text()) == ("ready\non\n", "")


def test_hook_and_supervisor_mean_the_same_signal() -> None:
    assert signal.SIGRTMIN + hook.STACK_SIGNAL_OFFSET == STACK_SIGNAL


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB; without the right to mount one the test is skipped."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no right to mount a small disk: {made.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


FILLER = """
import os, sys
def fill():
    with open(sys.argv[1] + "/filler", "ab", 0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass
"""


def on_small_disk(spool: ShimSpool, disk: Path) -> None:
    """Move logs and events of the spool to the small disk."""
    for name in ("logs", "errors"):
        (spool.folder / name).rmdir()
        (disk / name).mkdir()
        (spool.folder / name).symlink_to(disk / name)
    (disk / "events.jsonl").touch()
    (spool.folder / "events.jsonl").symlink_to(disk / "events.jsonl")


def test_a_full_disk_kills_no_worker_and_what_was_lost_is_counted(spool: ShimSpool, small_disk: Path) -> None:
    text = "fill()\nfor i in range(5): print('lost' + 'x' * 9000)\nprint('e' * 5000, file=sys.stderr)\n"
    text += "os.truncate(sys.argv[1] + '/filler', 0)\nprint('back')\nprint('back', file=sys.stderr)\n"
    on_small_disk(spool, small_disk)
    write(spool, "train.py", FILLER + text)
    ended = spool.run("-u", "train.py", str(small_disk))
    assert ended.returncode == 0
    assert ended.out.endswith(b"back\n")
    assert ended.err.endswith(b"back\n")
    lost = spool.events("output_lost")  # the first one at once, where the events' last block had room for it
    assert "out" in {event["stream"] for event in lost}  # the little on stderr may find room in its last block
    assert 5 * 9005 - 8192 <= sum(event["bytes"] for event in lost if event["stream"] == "out") <= 5 * 9005
    assert {(event["start"], event["local_rank"]) for event in lost} == {(0, 0)}
    assert spool.event("worker_exited")["exit_code"] == 0


def test_a_loss_is_told_while_the_disk_is_full_where_room_was_kept_for_events(
    spool: ShimSpool, small_disk: Path
) -> None:
    on_small_disk(spool, small_disk)
    assert disk_space.preallocate(str(small_disk / "events.jsonl"), 1 << 16)
    write(spool, "train.py", FILLER + "fill()\nfor i in range(5): print('x' * 8999)\nos.kill(os.getpid(), 9)")
    assert spool.run("-u", "train.py", str(small_disk)).returncode == -9
    first = spool.events("output_lost")[0]
    assert 0 < first["bytes"] <= 9000  # the rest of the first line; told at once, for nobody knows when it ends
    assert spool.event("worker_exited")["signal"] == 9


@pytest.mark.parametrize("unbuffered", [True, False])
def test_a_disk_that_stays_full_changes_no_exit_code(spool: ShimSpool, small_disk: Path, unbuffered: bool) -> None:  # noqa: FBT001
    on_small_disk(spool, small_disk)
    write(
        spool, "train.py", FILLER + "fill()\nprint('x' * 9000)\nprint('y' * 9000, file=sys.stderr)\nraise SystemExit(6)"
    )
    arguments = ["-u"] * unbuffered + ["train.py", str(small_disk)]
    assert run_plain(spool, json.loads((spool.folder / "plan.json").read_text())["python"], *arguments).returncode == 6
    (small_disk / "filler").unlink()
    assert spool.run(*arguments).returncode == 6


def test_a_worker_starts_and_fails_as_ever_where_the_disk_is_already_full(spool: ShimSpool, small_disk: Path) -> None:
    on_small_disk(spool, small_disk)
    error_file = small_disk / "torch.json"
    write(spool, "fill.py", FILLER + "fill()")
    run_plain(spool, interpreter(INTERPRETERS[0]), "fill.py", str(small_disk))
    write(spool, "train.py", "raise ValueError('x' * 9000)")
    ended = spool.run("-u", "train.py", env=environment(TORCHELASTIC_ERROR_FILE=str(error_file)))
    assert ended.returncode == 1
    assert not error_file.exists()  # half a record would end the agent
    assert list((small_disk / "errors").iterdir()) == []


@pytest.fixture
def failing_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that turns read-only once it is told that its disk fails; skipped where none can be mounted."""
    folder, image = tmp_path / "disk", tmp_path / "image"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(8 << 20)
    if not shutil.which("mkfs.ext4", path="/usr/sbin:/sbin"):
        pytest.skip("no mkfs.ext4")
    subprocess.run(["/usr/sbin/mkfs.ext4", "-q", str(image)], check=True)
    argv = ["mount", "-o", "loop,errors=remount-ro", str(image), str(folder)]
    made = subprocess.run(argv, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"no right to mount a disk: {made.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("unbuffered", [True, False])
def test_a_disk_that_turns_read_only_changes_no_exit_code(
    spool: ShimSpool,
    failing_disk: Path,
    unbuffered: bool,  # noqa: FBT001
) -> None:
    on_small_disk(spool, failing_disk)
    fails = "import subprocess, sys\nprint('before', flush=True)\n"
    fails += "subprocess.run(['mount', '-o', 'remount,abort', sys.argv[1]], check=True)\n"
    write(spool, "train.py", fails + "print('x' * 9000)\nprint('y' * 9000, file=sys.stderr)\nraise SystemExit(6)")
    assert spool.run(*["-u"] * unbuffered, "train.py", str(failing_disk)).returncode == 6
    assert (failing_disk / "logs" / "0.0.out").read_text() == "before\n"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_and_a_used_up_quota_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A quota cannot be made here, so the write itself says so; what follows is the hook's own."""
    (tmp_path / "events.jsonl").touch()
    monkeypatch.setattr(hook, "SPOOL", str(tmp_path))
    room_left = [40, 0, 10**6]

    def write(data: bytes) -> int:
        if not room_left[0]:
            room_left.pop(0)
            raise OSError(number, os.strerror(number))
        return min(len(data), room_left.pop(0))

    surviving = hook._surviving(write, "0.3", "err", hook.StreamOrder("0.3"))
    assert surviving(b"x" * 100) == 100  # 40 fit; the rest is lost
    assert surviving(b"y" * 50) == 50
    (event,) = Spool(str(tmp_path)).events()
    assert (event.kind, event.bytes, event.more["local_rank"], event.more["stream"]) == ("output_lost", 60, 3, "err")


def test_an_error_other_than_a_full_disk_is_raised_as_ever(spool: ShimSpool) -> None:
    write(spool, "train.py", "import os, sys\nos.close(1)\ntry: print('x')\nexcept OSError as e: sys.exit(e.errno)")
    assert spool.run("-u", "train.py").returncode == 9
