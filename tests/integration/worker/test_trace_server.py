"""The server for traces in a worker: there where torch.distributed is, unseen, and no danger to the worker."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.processes.worker_server import ask, is_open
from clusterddp.remote.spool.layout import Spool
from tests.integration.cli import User
from tests.integration.fork_spool import fork_server, torch_environment
from tests.integration.shim_spool import Ended, ShimSpool, make_spool, wait_for
from tests.integration.warm_spool import begun, warm_server
from tests.lean import lean_python
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

need_torch()
pytestmark = pytest.mark.torch

ARGUMENTS = ("-u", "script.py")
# A module beside the worker's script, which asks as an outsider does; answers() is None where no server was made.
ASKS = """
import os, socket, sys
spool = os.path.dirname(os.path.dirname(os.readlink("/proc/self/fd/1")))
folder = os.path.join(spool, "traces")
def server():
    made = sorted(os.listdir(folder), key=lambda name: int(name.split(".")[0]))
    start = os.path.basename(os.readlink("/proc/self/fd/1")).split(".")[0]
    return os.path.join(folder, made[-1]) if made and made[-1].split(".")[0] == start else None
def answers():
    path = server()
    if path is None:
        return None
    handle = os.open(path, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect("/proc/self/fd/%d" % handle)
        os.close(handle)
        connection.sendall(b"POST /handler/ping HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
        said = b""  # not to its end: the server keeps a connection for seconds
        while not said.endswith(b"pong") and (more := connection.recv(4096)):
            said += more
        return said.endswith(b"pong")
"""


@pytest.fixture
def spool(tmp_path: Path) -> ShimSpool:
    """A spool whose workers can ask their own server; it is the real one, in a torch without tensors."""
    return with_asks(make_spool(tmp_path, python=lean_python()))


@pytest.fixture
def whole(tmp_path: Path) -> ShimSpool:
    """The same with the whole torch, whose import takes a second."""
    return with_asks(make_spool(tmp_path))


def with_asks(spool: ShimSpool) -> ShimSpool:
    (spool.cwd / "asks.py").write_text(ASKS)
    return spool


def run(spool: ShimSpool, text: str, **environ: str) -> Ended:
    """Run a script that may use ``asks``."""
    (spool.cwd / "script.py").write_text(textwrap.dedent(text))
    return spool.run(*ARGUMENTS, env=torch_environment(**environ))


def quiet(ended: Ended, out: str) -> None:
    """Assert that the script exited with 0 and that stdout and stderr hold nothing but its own lines."""
    assert (ended.returncode, ended.out.decode(), ended.err.decode()) == (0, out, "")


ANSWERS = "from asks import answers\nimport torch.distributed, gc\ngc.collect()\nprint(answers(), answers())\n"
ANSWERS += "import signal; assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())\n"


def test_a_server_answers_from_the_import_on(whole: ShimSpool) -> None:
    quiet(run(whole, "import asks\nprint(asks.answers())\n" + ANSWERS), "None\nTrue True\n")


def test_a_script_without_torch_has_none(spool: ShimSpool) -> None:
    quiet(run(spool, "import asks, json\nprint(asks.answers())"), "None\n")


def test_a_forked_worker_has_one_from_its_first_line_on(whole: ShimSpool) -> None:
    with fork_server(whole, *ARGUMENTS) as said:
        assert said.endswith("ready\n"), said
        for _ in range(2):
            quiet(run(whole, "import asks\nprint(asks.answers())"), "True\n")
            assert whole.events("worker_started")[-1]["forked"]
    assert sorted(path.name for path in (whole.folder / "traces").iterdir()) == ["0.0", "1.0"]


def test_a_worker_from_a_warm_server_has_one_in_its_own_runs_spool(tmp_path: Path) -> None:
    for name in ("warm", "run"):
        (tmp_path / name).mkdir()
    warm, spool = make_spool(tmp_path / "warm"), with_asks(make_spool(tmp_path / "run"))
    with warm_server(warm), begun(warm, spool, *ARGUMENTS):
        quiet(run(spool, "import asks\nprint(asks.answers())"), "True\n")
        assert spool.events("worker_started")[-1]["forked"]
    assert not list((warm.folder / "traces").iterdir())


FORKS = """
import asks, os, sys
def fork():
    pid = os.fork()
    if not pid:
        import torch.distributed
        sys.exit()
    os.waitpid(pid, 0)
    return os.listdir(asks.folder)
print(fork())
import torch.distributed
print(asks.answers())
inode = os.stat(asks.server()).st_ino
print(fork(), os.stat(asks.server()).st_ino == inode, asks.answers())
"""
SPAWNS = """
import asks, multiprocessing, os
def load():
    import torch.distributed
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=load)
    child.start()
    child.join()
    print(child.exitcode, os.listdir(asks.folder))
"""


def test_forked_children_of_a_worker_have_none_and_leave_the_workers_alone(spool: ShimSpool) -> None:
    quiet(run(spool, FORKS), "[]\nTrue\n['0.0'] True True\n")


def test_spawned_children_of_a_worker_have_none(spool: ShimSpool) -> None:
    quiet(run(spool, SPAWNS), "0 []\n")


def test_lines_of_other_threads_are_not_lost_and_it_adds_none(whole: ShimSpool) -> None:
    text = """
    import os, sys, threading
    done, lines = threading.Event(), 0
    def write():
        global lines
        while not done.is_set():
            lines += 1
            os.write(2, b"%d\\n" % lines)
    thread = threading.Thread(target=write)
    thread.start()
    import torch.distributed
    done.set()
    thread.join()
    from asks import answers
    print(lines, answers())
    """
    ended = run(whole, text)
    lines, answered = ended.out.split()
    assert answered == b"True"
    assert ended.err == b"".join(b"%d\n" % number for number in range(1, int(lines) + 1))


OWN_FINDER = """
import sys
class Own:
    find_spec = staticmethod(lambda *arguments: Python.find_spec(*arguments))
Python = sys.meta_path[-1]
sys.meta_path[:] = sys.meta_path[:-1] + [Own]
"""
FAILS_FIRST = """
import sys
sys.modules["ctypes"] = None
try:
    import torch
except ImportError:
    del sys.modules["ctypes"]
"""
TAKEN = "import os, asks\nopen(os.path.join(asks.folder, '0.0'), 'w').close()\nasks.server = lambda: None"
OBSTACLES = {
    "closed stderr": ("import os; os.close(2)", "True True\n"),
    "finders replaced": ("import sys; sys.meta_path = [sys.meta_path[-1]] + sys.meta_path", "True True\n"),
    "finders of its own": (OWN_FINDER, "True True\n"),
    "caches cleared": ("import sys; sys.path_importer_cache.clear()", "True True\n"),
    "taken path": (TAKEN, "None None\n"),
    "folder removed": ("import os, asks\nos.rmdir(asks.folder)\nasks.server = lambda: None", "None None\n"),
}  # fmt: skip
AT_IMPORT = {  # what matters here is all that the whole torch imports
    "another thread": "import threading as t\nt = t.Thread(target=__import__, args=('torch',)); t.start(); t.join()",
    "reload": "import torch.distributed as d, importlib\nimportlib.reload(d.distributed_c10d)",
    "failed import first": FAILS_FIRST,
}


@pytest.mark.parametrize(("before", "out"), OBSTACLES.values(), ids=OBSTACLES)
def test_scripts_that_stand_in_its_way_are_served_or_left_alone(spool: ShimSpool, before: str, out: str) -> None:
    quiet(run(spool, f"{before}\n{ANSWERS}"), out)


@pytest.mark.parametrize("before", AT_IMPORT.values(), ids=AT_IMPORT)
def test_however_torch_is_imported_there_is_one(whole: ShimSpool, before: str) -> None:
    quiet(run(whole, f"{before}\n{ANSWERS}"), "True True\n")


# A finder that sets limits at the moment when the server is made, and lifts them when the next module is looked for.
LIMITS = """
import ctypes, multiprocessing, os, resource, sys, asks
class Limits:
    held = []
    def find_spec(name, path=None, target=None):
        if name == "torch.distributed.distributed_c10d":
            limit()
        else:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
            while Limits.held:
                os.close(Limits.held.pop())
sys.meta_path.insert(0, Limits)
def no_memory():
    most = int(open("/proc/self/statm").read().split()[0]) * 4096 + (60 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
def no_descriptors(most, free):
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        while True:
            Limits.held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        for _ in range(free):
            os.close(Limits.held.pop())
"""


@pytest.mark.parametrize(("most", "free"), [(100, 2), (800, 2)])
def test_where_descriptors_are_short_it_takes_none(spool: ShimSpool, most: int, free: int) -> None:
    text = f"def limit(): no_descriptors({most}, {free})\nimport torch.distributed\n"
    ended = run(spool, LIMITS + text + "print(asks.answers(), len(os.listdir('/proc/self/fd')) < 12)")
    quiet(ended, "None True\n")


def test_without_room_for_its_threads_there_is_none(spool: ShimSpool) -> None:
    quiet(run(spool, LIMITS + "limit = no_memory\nimport torch.distributed\nprint(asks.answers())"), "None\n")


FAKE = {
    "torch/__init__.py": "import ctypes, torch.distributed\n",
    "torch/distributed/__init__.py": "from torch.distributed import distributed_c10d\n",
    "torch/distributed/distributed_c10d.py": "",
    "torch/_C/__init__.py": "",
}
LATER = {**FAKE, "torch/_C/_distributed_c10d.py": "def _WorkerServer(path): raise RuntimeError(path)\n"}
LATER["torch/__init__.py"] = "import ctypes, torch._C._distributed_c10d, torch.distributed\n"


@pytest.mark.parametrize("files", [FAKE, LATER], ids=["no server", "a server that fails"])
def test_another_torch_is_left_alone(spool: ShimSpool, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = spool.cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    quiet(run(spool, ANSWERS), "None None\n")


def test_signals_are_the_scripts_own(whole: ShimSpool) -> None:
    text = """
    import os, signal, asks
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    def ignored():
        return [line for line in open("/proc/self/status") if line.startswith(("SigIgn", "SigBlk", "SigPnd"))]
    before = ignored()
    import torch.distributed as dist
    print(ignored() == before)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])
    for one in (signal.SIGTERM, signal.SIGUSR1):  # by a thread that does not block it, this would end the worker
        os.kill(os.getpid(), one)
        print(signal.sigwait([one]) is one)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for _ in range(1500):  # a trace that no socket's buffer has room for
        dist.all_reduce(torch.ones(1)) if "torch" in globals() else exec("import torch")
    import socket, time
    with socket.socket(socket.AF_UNIX) as connection:  # a peer that leaves
        handle = os.open(asks.server(), os.O_PATH)
        connection.connect("/proc/self/fd/%d" % handle)
        connection.sendall(b"POST /handler/fr_trace_json HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 0\\r\\n\\r\\n")
        print(len(connection.recv(10)))
    time.sleep(0.3)
    print(asks.answers())
    """
    quiet(run(whole, text), "True\nTrue\nTrue\n10\nTrue\n")


def test_its_socket_has_none_of_the_scripts_descriptors_and_is_not_inherited(spool: ShimSpool) -> None:
    text = """
    import os, torch.distributed
    links = {number: os.readlink("/proc/self/fd/%d" % number) for number in range(100, 300)
             if os.path.lexists("/proc/self/fd/%d" % number)}
    (own,) = [number for number, link in links.items() if link.startswith("socket:")]
    with open("mine", "w") as file:
        print(file.fileno(), own > 250, os.get_inheritable(own), os.dup2(file.fileno(), 4))
    """
    quiet(run(spool, text), "3 True False 4\n")


def test_a_spool_whose_path_is_longer_than_a_sockets_address(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    spool = with_asks(make_spool(folder, python=lean_python()))
    quiet(run(spool, ANSWERS), "True True\n")
    assert len(str(spool.folder)) > 108


def test_who_closes_all_descriptors_is_not_asked(spool: ShimSpool) -> None:
    (spool.cwd / "script.py").write_text(
        "import os, threading, torch.distributed\nprint('there', flush=True)\nos.read(0, 1)\n"
        "os.closerange(3, 512)\nprint('closed', flush=True)\nos.read(0, 1)\n"
    )
    out, path = spool.folder / "logs" / "0.0.out", str(spool.folder / "traces" / "0.0")
    reading, writing = os.pipe()
    with spool.popen(*ARGUMENTS, env=torch_environment(), stdin=reading) as process:
        wait_for(lambda: out.exists() and out.read_text() == "there\n", "the server")
        pid = spool.event("worker_started")["pid"]
        assert is_open(pid, path)
        assert ask(path, "ping", timeout=20, limit=4096).startswith(b"pong")
        os.write(writing, b"x")
        wait_for(lambda: out.read_text().endswith("closed\n"), "the closing")
        assert not is_open(pid, path)  # to connect would abort it
        os.write(writing, b"x")
        assert process.wait(20) == 0
    os.close(reading)
    os.close(writing)


def test_the_end_of_the_spool_removes_the_sockets(spool: ShimSpool) -> None:
    run(spool, ANSWERS)
    assert (spool.folder / "traces").stat().st_mode & 0o777 == 0o700
    assert (spool.folder / "traces" / "0.0").is_socket()
    Spool(str(spool.folder)).write_exit("succeeded", 0, "all workers ended")
    assert not (spool.folder / "traces").exists()


def test_a_spool_without_the_folder_has_no_server_and_no_watched_finder(tmp_path: Path) -> None:
    spool = make_spool(tmp_path, python=lean_python(), comm_trace=False)
    text = "import sys, os\nprint(sys.meta_path[-1].find_spec.__func__.__code__.co_freevars)\n"
    ended = run(spool, text + "import torch.distributed\nprint(len(os.listdir('/proc/self/task')))")
    assert ended.err == b""
    assert ended.out.split(b"\n")[0] == b"()"
    assert int(ended.out.split()[-1]) < 9


LOOKS = """
import os
spool = os.path.dirname(os.path.dirname(os.readlink("/proc/self/fd/1")))
print(os.path.isdir(os.path.join(spool, "traces")))
"""


def test_a_run_has_the_folder_unless_told_otherwise(tmp_path: Path) -> None:
    user = User(tmp_path)
    user.write("train.py", LOOKS)
    for variables, options, there in (
        ("", (), "True"),
        ("", ("--no-comm-trace",), "False"),
        (", clusterddp_comm_trace: false", (), "False"),
    ):
        host = f"{{ansible_connection: local, clusterddp_nproc: 1, clusterddp_python: {lean_python()}{variables}}}"
        user.write("inventory.yaml", f"all: {{hosts: {{here: {host}}}}}\n")
        done = user.run("run", "-i", "inventory.yaml", "--no-doctor", "--no-fork-server", *options, "train.py")
        assert (done.code, done.lines) == (0, [f"[0 here:0] {there}"]), done.err
