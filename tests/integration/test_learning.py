"""What a project's last run had imported is imported before its next: which packages are, which are not, and why.

Small packages are installed beside a torch that is imported in no time; a run is begun from a real warm server, with
fence and supervisor that only sleep. Not here: the command, real ones (test_warm_learning.py).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.worker import learned
from clusterddp.remote.worker.learned import IMPORTED, Learned
from clusterddp.remote.worker.warm_folder import BEGUN_WITH
from tests.integration.fork_spool import LOADED, empty_torch, fork_server, torch_environment
from tests.integration.shim_spool import ShimSpool, make_spool, wait_for
from tests.integration.warm_spool import ask, begun, warm_server

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.torch
SCRIPT = ("-u", "script.py")
# A package that a project imports, by the reason why it is not imported before the fork.
LEFT_OUT = {
    "fails_at_once": ("raise RuntimeError('no licence')", "it cannot be imported: RuntimeError('no licence')"),
    "exits": ("raise SystemExit(3)", "it cannot be imported: SystemExit(3)"),
    "ends": ("import os; os._exit(0)", "importing it ended the process"),
    "crashes": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "importing it ended the process"),
    "prints": ("print('welcome')", "importing it changed the output"),
    "threads": (
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "importing it changed the number of threads",
    ),
    "listens": ("import socket; s = socket.socket(); s.bind(('127.0.0.1', 0))", "importing it changed the open files"),
    "maps": (
        "import mmap; m = mmap.mmap(-1, 4096)",
        "importing it changed the mapped devices",
    ),
    "starts": ("import subprocess; p = subprocess.Popen(['sleep', '600'])", "importing it changed the child processes"),
    "reads_rank": ("import os; rank = int(os.environ.get('RANK', 0))", "it reads RANK when it is imported"),
    "reads_local": ("import os; first = os.getenv('LOCAL_RANK')", "it reads LOCAL_RANK when it is imported"),
    "reads_slurm": ("import os; job = 'SLURM_JOB_ID' in os.environ", "it reads SLURM_JOB_ID when it is imported"),
    "reads_bytes": ("import os; rank = os.environb.get(b'GROUP_RANK')", "it reads GROUP_RANK when it is imported"),
    "reads_all": ("import os; copy = dict(os.environ)", "it reads all variables when it is imported"),
    "sets": ("import os; os.environ['NEW'] = '1'", "importing it changed variables"),
    "remembers": ("import os; here = (os.getcwd(), [])", "a tuple remembers the working folder"),
}  # fmt: skip


def install(folder: Path, packages: Mapping[str, str]) -> str:
    """The packages as a distribution each, installed below the folder; that, for PYTHONPATH."""
    site = folder / "site-packages"
    for name, text in packages.items():
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text(text)
        (site / name / "part.py").write_text("")
        (site / f"{name}-1.0.dist-info").mkdir()
        (site / f"{name}-1.0.dist-info" / "RECORD").write_text(f"{name}/__init__.py,,\n{name}/part.py,,\n")
    return str(site)


TRIED = """
import json, os, sys
sys.path[:0] = sys.argv[1:3]
from clusterddp.remote.worker.import_trial import tried
from clusterddp.remote.worker.learned import Package
packages = [Package(name, (name, name + ".part", name + ".no_more")) for name in sys.argv[4:]]
sys.argv[1:] = []
print(json.dumps({one.name: [one.left_out, one.reads, one.asks] for one in tried(packages, os.getcwd(), "notes")}))
"""


def tried(
    tmp_path: Path, names: list[str], site: str = "", python: str = sys.executable, first: str = ""
) -> dict[str, tuple[str, list[str], list[str]]]:
    """Each package's verdict: why not, what it reads, what it asks for."""
    here = tmp_path / "cwd-0123456789"
    here.mkdir()
    root = str(Path(__file__).parents[2])
    command = [python, "-u", "-c", first + TRIED, root, site, "", *names]
    env = {name: value for name, value in os.environ.items() if name != "RANK"}
    with (tmp_path / "out").open("w+b") as out:
        done = subprocess.run(command, cwd=here, env=env, stdout=out, stderr=out, check=False)
        assert done.returncode == 0, (tmp_path / "out").read_text()
        found: dict[str, tuple[str, list[str], list[str]]] = json.loads(out_of(tmp_path / "out"))
    return found


def out_of(path: Path) -> str:
    return path.read_text().splitlines()[-1]


def test_what_leaves_more_than_modules_behind_is_left_out_and_harms_no_other(tmp_path: Path) -> None:
    good = {
        "before": "import os; os.environ.get('HF_HOME')",
        "after": "try:\n    import no_such_one\nexcept ImportError:\n    pass\nimport before",
    }
    site = install(tmp_path, {"before": good["before"], **{n: text for n, (text, _) in LEFT_OUT.items()}, **good})
    found = tried(tmp_path, ["before", *LEFT_OUT, "after"], site)
    assert {name: verdict[0] for name, verdict in found.items()} == {
        "before": "", **{name: reason for name, (_, reason) in LEFT_OUT.items()}, "after": ""
    }  # fmt: skip
    assert found["before"][1] == ["HF_HOME"]
    assert "no_such_one" in found["after"][2]


def test_a_package_that_imports_what_is_not_installed_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine.py").write_text("")
    text = f"import sys; sys.path.append({str(tmp_path / 'elsewhere')!r}); import mine; sys.path.pop()"
    found = tried(tmp_path, ["plugs"], install(tmp_path, {"plugs": text}))
    assert found["plugs"][0] == f"it imports {tmp_path}/elsewhere/mine.py, which is not installed"


FREE_ONES = """
import importlib, json
from clusterddp.remote.worker import environment_reads as reads
reads.mapped_files = set  # libraries name what they read later, too
asked = set()
with reads.noting(asked):
    for name in ("torch", "torch.distributed.run", "torch._dynamo"):
        importlib.import_module(name)
print(json.dumps([len(asked), sorted(name for name in asked if reads.is_free(name))]))
"""


def test_torch_reads_no_variable_at_its_import_that_may_differ() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", FREE_ONES], cwd=root, capture_output=True, text=True, check=True)
    count, free = json.loads(done.stdout)
    assert count > 100
    assert free == []


PROJECT = """
import sys
there = [name for name in ("good", "good.part", "ranked") if name in sys.modules]
import good.part, ranked, helper
print(there, good.NAME, ranked.RANK, helper.NAME)
"""
GOOD = "NAME = 'first'\n"
RANKED = "import os\nRANK = int(os.environ.get('RANK', 0))\n"  # as Lightning's rank_zero_only


def imported(warm: ShimSpool, server: subprocess.Popen[bytes], *packages: str) -> None:
    """Wait until the warm server is ready with these packages."""

    def there() -> bool:
        try:
            told: dict[str, list[str]] = json.loads((warm.folder / BEGUN_WITH).read_text())
            return told["packages"] == list(packages)
        except FileNotFoundError:
            return False

    wait_for(lambda: there() or server.poll() is not None, f"the warm server with {packages}")
    wait_for((warm.folder / "fork.sock").exists, "its socket")


def known(warm: ShimSpool, spool: ShimSpool) -> Learned:
    """What is known of the spool's project."""
    found = learned.find(str(warm.folder.parents[1]), learned.key_of(str(spool.cwd)))
    assert found
    return found


def test_the_next_run_finds_what_the_last_one_had_imported_and_no_rank_is_taken_for_the_first(tmp_path: Path) -> None:
    for name in ("warm", "run"):
        (tmp_path / name).mkdir()
    site = install(tmp_path, {"good": GOOD, "ranked": RANKED})
    env = torch_environment(PYTHONPATH=os.pathsep.join((empty_torch(tmp_path), site)))
    warm, spool = (make_spool(tmp_path / name) for name in ("warm", "run"))
    (spool.cwd / "script.py").write_text(PROJECT)
    (spool.cwd / "helper.py").write_text("NAME = 'one'\n")
    with warm_server(warm, env=env) as server:
        imported(warm, server)
        with begun(warm, spool, *SCRIPT, env=env):
            assert spool.run(*SCRIPT, env=env).out == b"[] first 3 one\n", spool.events("not_forked")
        imported(warm, server, "good")
        record = known(warm, spool)
        assert {one.name: one.reason for one in record.packages} == {
            "good": "", "ranked": "it reads RANK when it is imported"
        }  # fmt: skip
        assert record.named == ("good", "ranked")
        path = learned.path_of(str(warm.folder.parents[1]), learned.key_of(str(spool.cwd)))
        assert Path(path).stat().st_mode & 0o777 == 0o600

        (spool.cwd / "helper.py").write_text("NAME = 'two'\n")  # the project's code is never imported ahead
        with begun(warm, spool, *SCRIPT, env=env):
            assert spool.run(*SCRIPT, env=env).out == b"['good', 'good.part'] first 3 two\n"
        assert [one["forked"] for one in spool.events("worker_started")] == [True, True]

        (tmp_path / "site-packages" / "good" / "__init__.py").write_text("NAME = 'another'\n")
        refused = ask(warm, spool, *SCRIPT, env=env)
        assert refused == {"refused": f"{site}/good/__init__.py has changed since it was started"}
    learned.keep(str(tmp_path / "run"), record)
    assert_own_server_has(spool, env, tmp_path)


def assert_own_server_has(spool: ShimSpool, env: dict[str, str], tmp_path: Path) -> None:
    """A run's own fork server imports what was learned, where the script names it and all is as it was tried."""
    ranked = "left ranked: it reads RANK when it is imported\n"
    (tmp_path / "path" / "results.csv").write_text("")  # any file may come into a folder of the search path
    with fork_server(spool, *SCRIPT, env=env) as said:
        assert said == ranked + "ahead good\nready\n"
        assert spool.run(*SCRIPT, env=env).out == b"['good', 'good.part'] another 3 two\n"
    assert spool.events("worker_started")[-1]["forked"]
    with fork_server(spool, "-u", "helper.py", env=env) as said:
        assert said == "ready\n"  # this script names none of it

    script = spool.cwd / "script.py"
    script.write_text("import helper\n")
    (spool.cwd / "helper.py").write_text("def later():\n    import good.part as part\n")
    package = tmp_path / "site-packages" / "good" / "__init__.py"
    package.write_text("import atexit, threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n")
    for said_now in (
        "refused good: importing it changed the number of threads\n",
        "left good: importing it changed the number of threads\nready\n",
    ):
        with fork_server(spool, *SCRIPT, env=env) as said:
            assert said == said_now
    package.write_text("")
    (tmp_path / "site-packages" / "good-1.0.dist-info").rename(tmp_path / "site-packages" / "good-2.0.dist-info")
    with fork_server(spool, *SCRIPT, env=env) as said:
        assert said == "ready\n"  # another version is tried first


def test_what_a_project_no_longer_names_is_forgotten_and_learned_anew(tmp_path: Path) -> None:
    for name in ("warm", "run"):
        (tmp_path / name).mkdir()
    site = install(tmp_path, {"good": GOOD, "other": ""})
    env = torch_environment(PYTHONPATH=os.pathsep.join((empty_torch(tmp_path), site)))
    warm, spool = (make_spool(tmp_path / name) for name in ("warm", "run"))
    with warm_server(warm, env=env) as server:
        for script, packages in (("import good, other", ("good", "other")), ("import other", ()), ("", ("other",))):
            if script:
                (spool.cwd / "script.py").write_text(script)
            with begun(warm, spool, *SCRIPT, env=env):
                assert spool.run(*SCRIPT, env=env).returncode == 0
            imported(warm, server, *packages)


def test_code_that_would_make_another_thing_of_a_package_means_a_start_without_it(tmp_path: Path) -> None:
    for name in ("warm", "run"):
        (tmp_path / name).mkdir()
    hub = "import os\nHOME = os.environ.get('HF_HOME')\ntry:\n    import datasets\nexcept ImportError:\n    pass\n"
    site = install(tmp_path, {"hub": hub})
    env = torch_environment(PYTHONPATH=os.pathsep.join((empty_torch(tmp_path), site)))
    warm, spool = (make_spool(tmp_path / name) for name in ("warm", "run"))
    script = spool.cwd / "script.py"
    script.write_text("import hub\n")
    with warm_server(warm, env=env) as server:
        with begun(warm, spool, *SCRIPT, env=env):
            assert spool.run(*SCRIPT, env=env).returncode == 0
        imported(warm, server, "hub")
        script.write_text("import os\nos.environ['HF_HOME'] = '/mine'\nimport hub\n")
        said = ask(warm, spool, *SCRIPT, env=env)["refused"]
        assert said == f"{script}:2 sets HF_HOME, which is read when it is imported"
        script.write_text("import hub\n")
        (spool.cwd / "datasets").mkdir()
        said = ask(warm, spool, *SCRIPT, env=env)["refused"]
        assert said == f"{spool.cwd}/datasets would be imported in place of an installed module"
        (spool.cwd / "datasets").rmdir()
        with begun(warm, spool, *SCRIPT, env=env):
            assert spool.run(*SCRIPT, env=env).returncode == 0


def test_a_worker_that_is_killed_or_forks_tells_nothing_wrong(tmp_path: Path) -> None:
    for name in ("warm", "run"):
        (tmp_path / name).mkdir()
    env = torch_environment(PYTHONPATH=empty_torch(tmp_path))
    warm, spool = (make_spool(tmp_path / name) for name in ("warm", "run"))
    forks = "import os, sys\nif not os.fork():\n    sys.exit()\nos.wait()\nprint(flush=True)\nos.kill(os.getpid(), 9)\n"
    (spool.cwd / "script.py").write_text(forks)
    with warm_server(warm, env=env), begun(warm, spool, *SCRIPT, env=env):
        assert spool.run(*SCRIPT, env=env).returncode == -signal.SIGKILL
        assert not (spool.folder / IMPORTED).exists()
        (spool.cwd / "script.py").write_text(LOADED + "raise ValueError\n")
        assert spool.run(*SCRIPT, env=env).returncode == 1
        assert "torch" in learned.decode_imported((spool.folder / IMPORTED).read_bytes())
