"""What the start-up hook marks of the order of stdout and stderr, and that nothing else notices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.shim_spool import ShimSpool, make_spool
from tests.pythons import INTERPRETERS, interpreter
from tests.unit.spool_writer import read

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=INTERPRETERS)
def spool(tmp_path: Path, request: pytest.FixtureRequest) -> ShimSpool:
    """A spool whose workers run on each interpreter."""
    python = interpreter(request.param)
    return make_spool(tmp_path, python=python, helper=python)


def write(spool: ShimSpool, name: str, text: str) -> None:
    (spool.cwd / name).write_text(text, encoding="utf-8")


def shown(spool: ShimSpool) -> list[str]:
    """The worker's lines in the order in which a reader shows them."""
    (spool.folder / "exit.json").write_text('{"state": "succeeded", "exit_code": 0, "reason": ""}')
    tail = read(spool)
    return b"".join(frame.body for frame in tail.data).decode().splitlines()


ALTERNATES = """
import logging, os, subprocess, sys, threading
def both(first, last):
    for number in range(first, last):
        print(number, file=(sys.stdout, sys.stderr)[number % 3 == 0], flush=True)
"""


@pytest.mark.parametrize("unbuffered", [True, False])
def test_lines_of_both_streams_are_shown_in_the_order_in_which_python_wrote_them(
    spool: ShimSpool,
    unbuffered: bool,  # noqa: FBT001
) -> None:
    text = "both(0, 40)\nlogging.warning('40')\nprint('4', end='', flush=True); logging.warning('41'); print('2')\n"
    text += "sys.stdout.flush()\nt = threading.Thread(target=both, args=(43, 60)); t.start(); t.join()\n"
    text += "sys.stdout.buffer.write(b'60\\n'); sys.stdout.flush(); print(61, file=sys.stderr, flush=True)\n"
    text += "os.kill(os.getpid(), 9)"
    write(spool, "train.py", ALTERNATES + text)
    assert spool.run(*["-u"] * unbuffered, "train.py").returncode == -9
    found = [line.removeprefix("WARNING:root:") for line in shown(spool)]
    assert found == [str(number) for number in range(62)]
    (marks,) = (spool.folder / "logs").glob("*.order*")
    assert marks.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("text", "code"), [
    ("1/0", 1),
    ("import faulthandler; faulthandler.enable(); os.kill(os.getpid(), 11)", -11),
    ("os.write(2, b'Error: by C\\n')", 0),
    ("subprocess.run(['sh', '-c', 'echo Error: of a child >&2'])", 0),
    ("os.fork() or (print('Error: of a fork', file=sys.stderr), os._exit(0)); os.wait()", 0),
], ids=["exception", "faulthandler", "c", "child", "fork"])  # fmt: skip
def test_what_python_did_not_write_is_shown_after_what_it_wrote_before(spool: ShimSpool, text: str, code: int) -> None:
    write(spool, "train.py", f"{ALTERNATES}both(0, 8)\n{text}")
    assert spool.run("-u", "train.py").returncode == code
    found = shown(spool)
    assert found[:8] == [str(number) for number in range(8)]
    assert "rror: " in "".join(found[8:])


@pytest.mark.parametrize("text", [
    "os.dup2(os.open('mine', os.O_WRONLY | os.O_CREAT), 1)",
    "os.dup2(2, 1)",
    "os.closerange(3, 1000); own = [open('mine', 'ab', 0) for _ in range(300)]",
    "os.close(2)\nsys.stderr = sys.stdout",
    "os.fork() or both(50, 60) or os._exit(0)\nos.wait()",
    "os.umask(0o777); os.chdir('/')",
    "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
    "sys.addaudithook(lambda name, args: 1/0 if name == 'open' else None)",
], ids=["dup2", "both", "closed", "no stderr", "fork", "umask", "no descriptors", "audit"])  # fmt: skip
def test_marks_never_reach_what_is_the_scripts_and_no_line_is_lost(spool: ShimSpool, text: str) -> None:
    before = "both(0, 20)\n" if "resource" not in text and "audit" not in text else ""
    script = f"{ALTERNATES}{before}{text}\nboth(20, 40)\nos._exit(7)"
    write(spool, "train.py", script)
    ended = spool.run("-u", "train.py")
    assert ended.returncode == 7, ended.err
    mine = spool.cwd / "mine"
    lines = (ended.out + ended.err).split() + (mine.read_bytes().split() if mine.exists() else [])
    known = {str(number).encode() for number in range(60)}
    assert set(lines) <= known
    assert len([line for line in lines if int(line) < 40]) == (40 if before else 20)
    assert sorted(shown(spool)) == sorted((ended.out + ended.err).decode().split())


def test_the_marks_of_a_long_run_are_bounded_and_the_newest_are_kept(spool: ShimSpool) -> None:
    text = "import gc\nhook = [one for one in gc.get_objects() if type(one).__name__ == 'StreamOrder'][0]\n"
    text += "type(hook).change.__globals__['MARKS_LIMIT'] = 4000\nboth(0, 3000)\n"
    write(spool, "train.py", ALTERNATES + text)
    assert spool.run("-u", "train.py").returncode == 0
    sizes = {path.name: path.stat().st_size for path in (spool.folder / "logs").glob("*.order*")}
    assert set(sizes) == {"0.0.order.idx", "0.0.order.old.idx"}
    assert max(sizes.values()) < 4100
    assert shown(spool)[-300:] == [str(number) for number in range(2700, 3000)]
