"""What could come out otherwise in a fork is started plainly, and why is on record."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.fork_spool import empty_torch, fork_server, torch_environment
from tests.integration.shim_spool import ShimSpool, make_spool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ARGS = ("-u", "script.py", "one")
# What a driver does when a process begins with it: a device is opened, and stays open, or stays in memory alone.
DRIVER = """
import ctypes, os
def begin(mapped):
    device = os.open("/dev/zero", os.O_RDWR)
    if mapped:
        mmap = ctypes.CDLL(None).mmap
        word = ctypes.c_size_t
        mmap.argtypes = word, word, *[ctypes.c_int] * 3, word
        assert mmap(0, 4096, 3, 1, device, 0) != -1
        os.close(device)
"""
ENV: dict[str, str] = {}  # with an empty torch, by the fixture
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShimSpool]:
    """A fork server for ``python -u script.py one``."""
    folder = tmp_path_factory.mktemp("refused")
    made = make_spool(folder)
    ENV.update(torch_environment(PYTHONPATH=empty_torch(folder)))
    with fork_server(made, *ARGS, env=ENV) as said:
        assert said == "ready\n"
        (made.cwd / "script.py").write_text("print('here')")
        yield made


def refused(spool: ShimSpool, *args: str, env: dict[str, str] | None = None) -> str:
    """The script runs, plainly; why."""
    before = len(spool.events("not_forked"))
    ended = spool.run(*args, env={**ENV, **(env or {})})
    assert (ended.returncode, ended.out, ended.err) == (0, b"here\n", b"")
    assert spool.events("worker_started")[-1]["forked"] is False
    reasons = [event["reason"] for event in spool.events("not_forked")[before:]]
    assert len(reasons) == 1
    return str(reasons[0])


def test_as_it_was_begun_it_is_forked(spool: ShimSpool) -> None:
    assert spool.run(*ARGS, env=ENV).out == b"here\n"
    assert spool.events("worker_started")[-1]["forked"]


def test_another_command_line(spool: ShimSpool) -> None:
    assert refused(spool, "-u", "script.py", "two").startswith("its command line is another: ")


@pytest.mark.parametrize("env", [{"OMP_NUM_THREADS": "2"}, {"ANY_NAME": "1"}])
def test_a_variable_that_is_not_one_of_torchruns(spool: ShimSpool, env: dict[str, str]) -> None:
    assert refused(spool, *ARGS, env=env).endswith(" is set for this worker alone")


@pytest.mark.parametrize("name", ["numpy.py", "queue", "dill.py", "mine.egg-info"])
def test_a_folder_of_the_script_that_provides_what_was_looked_for(spool: ShimSpool, name: str) -> None:
    shadow = spool.cwd / name
    shadow.mkdir()
    try:
        assert str(shadow) in refused(spool, *ARGS)
    finally:
        shadow.rmdir()


def test_another_limit_than_the_servers(spool: ShimSpool) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    lower = 4096 if soft == 0 else 0
    resource.setrlimit(resource.RLIMIT_CORE, (min(lower, hard) if hard >= 0 else lower, hard))
    try:
        assert refused(spool, *ARGS) == "the fork server's set of limits is another"
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def test_another_working_folder(spool: ShimSpool, tmp_path: Path) -> None:
    before = len(spool.events("not_forked"))
    ended = spool.run(*ARGS, env=ENV, cwd=tmp_path)
    assert ended.returncode == 2
    assert spool.events("not_forked")[before]["reason"] == "the fork server's working folder is another"


def said_at_once(tmp_path: Path, *, env: dict[str, str] | None = None, **files: str) -> str:
    spool = make_spool(tmp_path)
    for name, text in files.items():
        (spool.cwd / f"{name}.py").write_text(text)
    with fork_server(spool, *ARGS, env=env) as said:
        return said


def test_a_project_that_sets_what_torch_reads_has_no_server(tmp_path: Path) -> None:
    said = said_at_once(tmp_path, script="import os\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch\n")
    assert said.endswith("/work/script.py:2 sets OMP_NUM_THREADS, which torch may read when it is imported\n")


def test_a_script_without_a_suffix_is_examined_too(tmp_path: Path) -> None:
    spool = make_spool(tmp_path)
    (spool.cwd / "train").write_text("import os\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch\n")
    with fork_server(spool, "-u", "train") as said:
        assert said.endswith("/work/train:2 sets OMP_NUM_THREADS, which torch may read when it is imported\n")


def test_an_interpreter_with_start_up_code_of_its_own_has_no_server(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys")
    said = said_at_once(tmp_path, env=torch_environment(PYTHONPATH=str(own)))
    assert said == f"refused the interpreter has a sitecustomize of its own: {own}/sitecustomize.py\n"


def test_an_interpreter_whose_start_up_code_leaves_a_thread_has_no_server(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (packages,) = venv.glob("lib/*/site-packages")
    (packages / "agent.pth").write_text("import agent\n")
    leaves_a_thread = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    (packages / "agent.py").write_text(leaves_a_thread)
    with fork_server(make_spool(tmp_path), *ARGS, python=str(venv / "bin" / "python")) as said:
        assert said == "refused the interpreter's start-up code has left a thread\n"


@pytest.mark.usefixtures("spool")
def test_another_folder_that_the_code_puts_first_and_that_provides_what_was_looked_for(tmp_path: Path) -> None:
    spool = make_spool(tmp_path)
    (spool.cwd / "src").mkdir()
    (spool.cwd / "src" / "queue.py").touch()
    (spool.cwd / "script.py").write_text("import sys\nsys.path.insert(0, 'src')\nprint('here')\n")
    with fork_server(spool, *ARGS, env=ENV) as said:
        assert said == "ready\n"
        assert refused(spool, *ARGS) == f"{spool.cwd}/src/queue.py would be imported in place of an installed module"


@pytest.mark.parametrize(
    ("torch", "reason"),
    [
        ("raise OSError('no libcuda')", "torch cannot be imported: OSError('no libcuda')"),
        ("print('hello')", "importing torch, torch.distributed.run changed the output"),
        ("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()", "threads"),
        ("import os; os.open('/dev/null', os.O_RDONLY)", "changed the open files"),
        (f"{DRIVER}begin(mapped=True)", "changed the mapped devices"),
        (f"{DRIVER}begin(mapped=False)", "changed the open files"),
        ("import os; os.environ['NEW'] = '1'", "changed variables"),
        ("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)", "changed signal handlers"),
    ],
)
def test_a_torch_whose_import_leaves_more_than_modules_has_no_server(tmp_path: Path, torch: str, reason: str) -> None:
    package = tmp_path / "torch" / "torch"
    (package / "distributed").mkdir(parents=True)
    (package / "__init__.py").write_text(torch)
    (package / "distributed" / "__init__.py").write_text("")
    (package / "distributed" / "run.py").write_text("")
    said = said_at_once(tmp_path, env=torch_environment(PYTHONPATH=str(package.parent)))
    assert said.startswith("refused ")
    assert reason in said


def test_an_interpreter_that_passes_over_the_hook_runs_no_script(tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -E "$@"\n')
    wrapper.chmod(0o755)
    spool = make_spool(tmp_path)
    (spool.cwd / "script.py").write_text("open('ran', 'w')")
    with fork_server(spool, *ARGS, python=str(wrapper)) as said:
        assert said == ""
    assert not (spool.cwd / "ran").exists()


def test_a_server_that_fails_runs_no_script(tmp_path: Path) -> None:
    spool = make_spool(tmp_path)
    (spool.cwd / "script.py").write_text("open('ran', 'w')")
    (spool.folder / "remote.pyz").unlink()
    with fork_server(spool, *ARGS) as said:
        assert said == ""
    assert not (spool.cwd / "ran").exists()
