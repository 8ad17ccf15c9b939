"""A script cannot tell that its process was forked from `python -u SCRIPT`: both are run and what they saw is compared.

What differs by what it is, and is documented in docs/fork-server.md: `sys.modules` holds torch from the first line on
(so the table's script imports the same before it looks), the collector's counters, and the hash seed, which the workers
of a host share. Of the known differences of any worker (test_shim_transparency.py) two are none here: the session's
leader and /proc/self/environ.
"""

from __future__ import annotations

import json
import signal
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.fork_spool import LOADED, fork_server, torch_environment
from tests.integration.real_helper import alive
from tests.integration.shim_spool import PROBES, ShimSpool, make_spool, run_plain, wait_for, without_addresses
from tests.integration.worker.test_shim_transparency import ENDINGS, normal
from tests.lean import WHOLE_TORCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PYTHON = WHOLE_TORCH["clusterddp_python"]
SCRIPT = ("-u", "script.py", "report.json", "--lr", "a b'c\"$(x)\n")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShimSpool]:
    """Forks ``python -u script.py …``, whatever the script is by then."""
    made = make_spool(tmp_path_factory.mktemp("script"))
    with fork_server(made, *SCRIPT) as said:
        assert said.endswith("ready\n"), said
        yield made


def forked(spool: ShimSpool, args: tuple[str, ...], env: Mapping[str, str] | None = None) -> Any:
    """How the script ended in a fork."""
    ended = spool.run(*args, env=env or torch_environment())
    last = spool.events("worker_started")[-1]
    assert last["forked"], spool.events("not_forked")
    return ended


def plain(spool: ShimSpool, args: tuple[str, ...], env: Mapping[str, str] | None = None) -> Any:
    """How it ended when it was started."""
    return run_plain(spool, PYTHON, *args, env=env or torch_environment())


def test_a_forked_script_sees_what_a_started_one_sees(spool: ShimSpool) -> None:
    probe = (PROBES / "looks.py").read_text().replace("import sys\n", f"{LOADED}import sys\n", 1)
    (spool.cwd / "script.py").write_text(probe)
    views = []
    for run in (plain, forked):
        ended = run(spool, SCRIPT)
        assert (ended.returncode, ended.out, ended.err) == (0, b"", b"")
        views.append(seen_by(spool))
    assert_same(*views)


def assert_same(started: dict[str, Any], forked_view: dict[str, Any]) -> None:
    """A started script's view and a forked one's are the same, but for the exit function of our server for traces."""
    expected = {**started, "atexit": started["atexit"] + 1}
    assert {name: (seen, expected[name]) for name, seen in forked_view.items() if seen != expected[name]} == {}


def seen_by(spool: ShimSpool) -> dict[str, Any]:
    """The probe's report, without what importing torch here, behind the script's start, leaves in its process alone."""
    view: dict[str, Any] = json.loads(without_addresses((spool.cwd / "report.json").read_bytes()))
    for name in ("environ", "posix"):
        view[name].pop("TORCHINDUCTOR_CACHE_DIR", None)
    view["environ_order"] = [name for name in view["environ_order"] if name in view["environ"]]
    view["path_cache"] = [path for path in view["path_cache"] if not path.startswith(str(spool.cwd))]
    return view


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_ending_reads_and_counts_the_same(spool: ShimSpool, ending: str) -> None:
    (spool.cwd / "script.py").write_text(textwrap.dedent(ENDINGS[ending]), encoding="utf-8")
    assert normal(forked(spool, SCRIPT)) == normal(plain(spool, SCRIPT))


STATE = """
import json, os, random, sys, threading, logging, torch, numpy, multiprocessing
cmdline, environ = (open("/proc/self/" + name, "rb").read() for name in ("cmdline", "environ"))
print(json.dumps({
    "cmdline": os.fsdecode(cmdline),
    "environ": sorted(os.fsdecode(environ).split("\\0")),
    "own environ": environ.split(b"\\0")[:-1] == [b"%s=%s" % item for item in os.environb.items()],
    "comm": open("/proc/self/comm").read(),
    "exe": os.readlink("/proc/self/exe"),
    "leader": os.getsid(0) == os.getpid() == os.getpgid(0),
    "thread": threading.main_thread().native_id == os.getpid() == threading.get_native_id(),
    "seconds since": logging.LogRecord("n", 1, "p", 1, "m", (), None).relativeCreated < 60000,
    "children": os.popen("env | sort").read(),
}))
drawn = [torch.initial_seed(), random.random(), numpy.random.rand(), multiprocessing.current_process().authkey.hex()]
open(sys.argv[1], "a").write(json.dumps(drawn) + "\\n")
"""


def test_proc_shows_what_it_shows_of_a_started_process_and_no_seed_is_shared(spool: ShimSpool) -> None:
    (spool.cwd / "script.py").write_text(STATE)
    report = spool.cwd / "report.json"
    report.unlink(missing_ok=True)
    seen = [json.loads(run(spool, SCRIPT).out) for run in (plain, forked, forked)]
    assert seen[1] == seen[2] == seen[0]
    assert seen[0]["own environ"]
    assert seen[0]["leader"]
    drawn = [json.loads(line) for line in report.read_text().splitlines()]
    assert all(len(set(values)) == len(drawn) for values in zip(*drawn, strict=True))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_every_start_method_are_those_of_a_started_process(spool: ShimSpool, method: str) -> None:
    text = (PROBES / "children.py").read_text().replace("sys.argv[1]", repr(method))
    loaded = "import faulthandler\n" if method == "fork" else ""  # torch does so, and such a child has what is loaded
    (spool.cwd / "script.py").write_text(loaded + text)
    seen = [run(spool, SCRIPT) for run in (plain, forked)]
    assert seen[0].returncode == 0, seen[0].err
    assert (seen[1].returncode, seen[1].err) == (0, seen[0].err)
    assert json.loads(seen[1].out) == json.loads(seen[0].out)


COMPILED = """
import torch
@torch.compile(backend="eager")
def double(x):
    return x * 2
model = torch.nn.Linear(3, 1)
loss = model(double(torch.ones(2, 3))).sum()
loss.backward()
loader = torch.utils.data.DataLoader(list(range(8)), batch_size=4, num_workers=2)
print(model.weight.grad.tolist(), [batch.tolist() for batch in loader])
"""


def test_autograd_compilation_and_loaders_work_in_a_fork(spool: ShimSpool) -> None:
    (spool.cwd / "script.py").write_text(COMPILED)
    assert normal(forked(spool, SCRIPT)) == normal(plain(spool, SCRIPT))


def test_a_worker_ends_when_its_shim_is_killed_and_so_does_its_keeper(spool: ShimSpool) -> None:
    (spool.cwd / "script.py").write_text(
        "import os, threading\nprint(os.getpid(), os.getppid(), flush=True)\nthreading.Event().wait(600)\n"
    )
    before = len(spool.events("worker_started"))
    with spool.popen(*SCRIPT, env=torch_environment()) as shim:
        wait_for(lambda: len(spool.events("worker_started")) > before, "the start")
        out = spool.folder / "logs" / f"{spool.events('worker_started')[-1]['start']}.0.out"
        wait_for(lambda: out.read_bytes().endswith(b"\n"), "its first line")
        worker, keeper = map(int, out.read_text().split())
        assert spool.events("worker_started")[-1]["forked"]
        shim.kill()
    wait_for(lambda: not alive(worker) and not alive(keeper), "their end")


def test_signals_reach_a_forked_worker_and_its_end_is_recorded(spool: ShimSpool) -> None:
    (spool.cwd / "script.py").write_text("import threading\nprint('here', flush=True)\nthreading.Event().wait(600)\n")
    before = len(spool.events("worker_started"))
    with spool.popen(*SCRIPT, env=torch_environment()) as shim:
        wait_for(lambda: len(spool.events("worker_started")) > before, "the start")
        out = spool.folder / "logs" / f"{spool.events('worker_started')[-1]['start']}.0.out"
        wait_for(lambda: out.read_bytes() == b"here\n", "its first line")
        shim.terminate()
        assert shim.wait() == -signal.SIGTERM
    ended = spool.events("worker_exited")[-1]
    assert (ended["signal"], ended["signals_received"][0][0]) == (signal.SIGTERM, signal.SIGTERM)
    assert ended["maxrss_kib"] > 1000
