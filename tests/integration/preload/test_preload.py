"""The packages of clusterddp_preload: which are imported before the fork, which are left out, and why.

Small packages are installed beside a torch that is imported in no time; the forks are real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.fork_server.preload_trial import NO_SUCH
from clusterddp.remote.preload.server_folder import BEGUN_WITH
from clusterddp.remote.shared.run.plan import FORK_SOCKET
from tests.integration.fork_spool import empty_torch, fork_server, torch_environment
from tests.integration.shim_spool import ShimSpool, make_spool
from tests.integration.warm_spool import ask, begun, warm_server

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.torch
SCRIPT = ("-u", "script.py")
# A package by the reason why it is not imported before the fork.
LEFT_OUT = {
    "fails_at_once": ("raise RuntimeError('no licence')", "it cannot be imported: RuntimeError('no licence')"),
    "exits": ("raise SystemExit(3)", "it cannot be imported: SystemExit(3)"),
    "ends": ("import os; os._exit(0)", "importing it ended the process"),
    "crashes": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "importing it ended the process"),
    "prints": ("print('welcome')", "importing it changed the output"),
    "threads": (
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
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


# A package that makes state at its import which forks would share, by a part of the reason; ``draw`` shows it.
SHARED = {
    "attribute": ("import random\nR = random.Random()\ndraw = R.random", "attribute.R, of the type random.Random"),
    "instance": (
        (
            "import random\nclass Pool:\n    def __init__(self):\n        self.made = random.Random()\n"
            "pool = Pool()\ndef draw():\n    return pool.made.random()"
        ),
        "instance.pool, of the type random.Random",
    ),
    "slot": (
        (
            "import random\nclass Pool:\n    __slots__ = ('made',)\n"
            "pool = Pool()\npool.made = random.Random()\ndef draw():\n    return pool.made.random()"
        ),
        "slot.pool, of the type random.Random",
    ),
    "closure": (
        "import random\ndef make():\n    made = random.Random()\n    return lambda: made.random()\ndraw = make()",
        "closure.draw, of the type random.Random",
    ),
    "nested": (
        (
            "import random\nkept = {'a': [(0, {'b': random.Random()})]}\n"
            "def draw():\n    return kept['a'][0][1]['b'].random()"
        ),
        "nested.kept, of the type random.Random",
    ),
    "elsewhere": (
        "import random, json\njson.made = random.Random()\ndef draw():\n    return json.made.random()",
        "a random generator of its own, of the type random.Random",
    ),
    "subclass": (
        "import random\nclass Mine(random.Random):\n    pass\nR = Mine()\ndraw = R.random",
        "subclass.R, of the type subclass.Mine",
    ),
    "inside": ("from inside.deep import R\ndraw = R.random", "of the type random.Random"),
    "numpys": ("import numpy\nR = numpy.random.default_rng()\ndraw = R.random", "numpys."),
    "state": ("import numpy\nR = numpy.random.RandomState()\ndraw = R.random_sample", "state."),
    "of_uuid": ("import uuid\nID = uuid.uuid4()\ndef draw():\n    return str(ID)", "of_uuid.ID is another in each"),
    "tokened": ("import secrets\nTOKEN = secrets.token_hex()\ndef draw():\n    return TOKEN", "tokened.TOKEN is"),
    "clock": ("import time\nT = time.time()\ndef draw():\n    return T", "clock.T is another in each"),
    "stamp": (
        "import time\nNAME = time.strftime('%Y%m%d-%H%M%S')\ndef draw():\n    return NAME", "stamp.NAME is another",
    ),
    "drawn": ("import numpy\nW = numpy.random.rand(3)\ndef draw():\n    return W.tolist()", "drawn.W is another"),
    "pid_text": ("import os\nNAME = f'run-{os.getpid()}'\ndef draw():\n    return NAME", "pid_text.NAME is another"),
    "a_key": ("import uuid\nD = {uuid.uuid4().hex: 1}\ndef draw():\n    return list(D)", "a_key.D is another"),
}  # fmt: skip
# These keep nothing that forks would share.
FINE = {
    "lazily": (
        "import random\nclass Pool:\n    made = None\n    def draw(self):\n"
        "        self.made = self.made or random.Random()\n        return self.made.random()\ndraw = Pool().draw"
    ),
    "of_python": "import random\ndraw = random.random",
    "of_numpy": "import numpy\ndraw = numpy.random.random",
    "of_system": "import random\nR = random.SystemRandom()\ndraw = R.random",
    "folder": "import os\nSRC = {'src': os.path.abspath('src')}\ndraw = lambda: os.urandom(8).hex()",
    "constant": "import uuid, os\nID = uuid.NAMESPACE_DNS\nPID = os.getpid()\ndraw = lambda: uuid.uuid4().hex",
    "by_id": (
        "import os\nclass A: pass\nBY_ID = {id(A): A}\nSET = {A, type('B', (), {}), type('C', (), {})}\n"
        "draw = lambda: os.urandom(8).hex()"
    ),
}


def install(folder: Path, packages: Mapping[str, str]) -> str:
    """The packages as a distribution each, installed below the folder; that, for PYTHONPATH."""
    site = folder / "site-packages"
    for name, text in packages.items():
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text(text)
        (site / name / "deep.py").write_text("import random\nR = random.Random()\n")
        (site / f"{name}-1.0.dist-info").mkdir()
        (site / f"{name}-1.0.dist-info" / "RECORD").write_text(f"{name}/__init__.py,,\n{name}/deep.py,,\n")
    return str(site)


TRIED = """
import json, os, sys, torch
sys.path[:0] = sys.argv[1:3]
from clusterddp.remote.fork_server.preload_trial import try_packages
names, sys.argv[1:] = sys.argv[4:], []
verdicts, _ = try_packages(names, os.getcwd(), lambda: None)
print(json.dumps({one.name: [one.left_out, one.reads, one.asks] for one in verdicts}))
"""


def tried(
    tmp_path: Path, names: list[str], site: str = "", python: str = sys.executable, first: str = ""
) -> dict[str, tuple[str, list[str], list[str]]]:
    """Each package's verdict: why not, what it reads, what it asks for."""
    here = tmp_path / "trial"
    here.mkdir()
    root = str(Path(__file__).parents[3])
    command = [python, "-u", "-c", first + TRIED, root, site, "", *names]
    env = {name: value for name, value in os.environ.items() if name != "RANK"}
    env["PYTHONPATH"] = "" if first else empty_torch(tmp_path)
    with (tmp_path / "out").open("w+b") as out:
        done = subprocess.run(command, cwd=here, env=env, stdout=out, stderr=out, check=False)
        assert done.returncode == 0, (tmp_path / "out").read_text()
        found: dict[str, tuple[str, list[str], list[str]]] = json.loads((tmp_path / "out").read_text().splitlines()[-1])
    assert list(here.iterdir()) == []
    return found


def test_what_leaves_more_than_modules_behind_is_left_out_and_harms_no_other(tmp_path: Path) -> None:
    good = {
        "before": "import os; os.environ.get('HF_HOME')",
        "after": "try:\n    import no_such_one\nexcept ImportError:\n    pass\nimport before",
    }
    site = install(tmp_path, {"before": good["before"], **{n: text for n, (text, _) in LEFT_OUT.items()}, **good})
    found = tried(tmp_path, ["before", *LEFT_OUT, "missing", "after"], site)
    assert {name: verdict[0] for name, verdict in found.items()} == {
        "before": "", **{name: reason for name, (_, reason) in LEFT_OUT.items()}, "missing": NO_SUCH, "after": ""
    }  # fmt: skip
    assert found["before"][1] == ["HF_HOME"]
    assert "no_such_one" in found["after"][2]
    assert "missing" in found["missing"][2]


def test_what_makes_a_generator_or_an_id_at_its_import_is_left_out_and_what_does_not_is_not(tmp_path: Path) -> None:
    site = install(tmp_path, {**{name: text for name, (text, _) in SHARED.items()}, **FINE})
    found = {name: verdict[0] for name, verdict in tried(tmp_path, [*FINE, *SHARED], site).items()}
    assert {name: found[name] for name in FINE} == dict.fromkeys(FINE, "")
    wrong = {name: found[name] for name, (_, reason) in SHARED.items() if reason not in found[name]}
    assert wrong == {}


def test_what_imports_a_package_that_is_left_out_is_left_out_too(tmp_path: Path) -> None:
    packages = {"on_top": "import token_of\n", "token_of": SHARED["tokened"][0]}
    found = tried(tmp_path, ["token_of", "on_top"], install(tmp_path, packages))
    assert found["token_of"][0].startswith("token_of.TOKEN is another")
    assert found["on_top"][0].startswith("token_of.TOKEN is another")


def test_a_package_that_imports_what_is_not_installed_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine.py").write_text("")
    text = f"import sys; sys.path.append({str(tmp_path / 'elsewhere')!r}); import mine; sys.path.pop()"
    found = tried(tmp_path, ["plugs"], install(tmp_path, {"plugs": text}))
    assert found["plugs"][0] == f"it imports {tmp_path}/elsewhere/mine.py, which is not installed"


FREE_ONES = """
import importlib, json
from clusterddp.remote.fork_server import environ_reads as reads
reads.mapped_files = set  # libraries name what they read later, too
asked = set()
with reads.record_reads(asked):
    for name in ("torch", "torch.distributed.run", "torch._dynamo"):
        importlib.import_module(name)
print(json.dumps([len(asked), sorted(name for name in asked if reads.is_free(name))]))
"""


def test_torch_reads_no_variable_at_its_import_that_may_differ() -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", FREE_ONES], cwd=root, capture_output=True, text=True, check=True)
    count, free = json.loads(done.stdout)
    assert count > 100
    assert free == []


DRAWS = """
import json, os, sys
there = sorted(name for name in {names!r} if name in sys.modules)
import importlib
drawn = {{name: importlib.import_module(name).draw() for name in {names!r}}}
print(json.dumps([there, drawn]))
"""


def draws(spool: ShimSpool, env: dict[str, str], rank: str) -> tuple[list[str], dict[str, Any]]:
    """What a worker of that rank found imported at its first line, and what it drew from each package."""
    ended = spool.run(*SCRIPT, env={**env, "RANK": rank})
    assert ended.returncode == 0, ended.err.decode()
    assert spool.events("worker_started")[-1]["forked"], spool.events("not_forked")
    there, drawn = json.loads(ended.out)
    return there, drawn


def folders(tmp_path: Path, preload: tuple[str, ...] = ()) -> tuple[ShimSpool, ShimSpool]:
    """The folders of a warm server and of a run."""
    for name in ("warm", "run"):
        (tmp_path / name).mkdir()
    return make_spool(tmp_path / "warm"), make_spool(tmp_path / "run", preload=preload)


def test_two_ranks_and_later_runs_draw_from_streams_of_their_own_whatever_is_named(tmp_path: Path) -> None:
    names = [*FINE, "closure", "slot", "numpys", "of_uuid"]
    site = install(tmp_path, {**{name: SHARED[name][0] for name in names if name in SHARED}, **FINE})
    env = torch_environment(PYTHONPATH=os.pathsep.join((empty_torch(tmp_path), site)))
    warm, spool = folders(tmp_path, tuple(names))
    (spool.cwd / "script.py").write_text(DRAWS.format(names=names) + f"import {', '.join(names)}\n")
    seen = []
    with warm_server(warm, env=env, preload=tuple(names)):
        for _ in range(2):
            with begun(warm, spool, *SCRIPT, env=env):
                seen += [draws(spool, env, rank) for rank in ("0", "1")]
    with fork_server(spool, *SCRIPT, env=env) as said:  # on a busy machine the trial takes longer than this run waits
        assert said.endswith("\nready\n"), said
    with fork_server(spool, *SCRIPT, env=env) as said:
        assert said.startswith(f"preloaded {', '.join(FINE)}\n"), said
        seen += [draws(spool, env, rank) for rank in ("0", "1")]
    assert [sorted(there) for there, _ in seen] == [sorted(FINE)] * 6
    for name in names:
        drawn = [json.dumps(values[name]) for _, values in seen]
        assert len(set(drawn)) == 6, (name, drawn)


def test_names_are_modules_or_distributions_and_one_that_is_neither_is_said_and_harms_nothing(tmp_path: Path) -> None:
    site = Path(install(tmp_path, {"good": "NAME = 'good'\n"}))
    (site / "good-1.0.dist-info").rename(site / "Well_Made-1.0.dist-info")
    env = torch_environment(PYTHONPATH=os.pathsep.join((empty_torch(tmp_path), str(site))))
    (spool,) = folders(tmp_path, ("no-such-one", "well-made", "good.deeper"))[1:]
    (site / "good" / "deeper.py").write_text("")
    (spool.cwd / "script.py").write_text(
        "import sys\nprint([n for n in sys.modules if n.startswith('good')])\nimport good\n"
    )
    with fork_server(spool, *SCRIPT, env=env) as said:
        assert said == f"preloaded well-made, good.deeper\nleft no-such-one: {NO_SUCH}\nready\n"
        assert spool.run(*SCRIPT, env=env).out == b"['good', 'good.deeper']\n"


def test_a_trial_is_made_once_and_again_when_a_file_that_it_read_is_another(tmp_path: Path) -> None:
    count = tmp_path / "count"
    counting = f"import os\nwith open({str(count)!r}, 'a') as file:\n    file.write('x')\n"
    site = install(tmp_path, {"good": counting, "tokened": SHARED["tokened"][0]})
    env = torch_environment(PYTHONPATH=os.pathsep.join((empty_torch(tmp_path), site)))
    (spool,) = folders(tmp_path, ("good", "tokened"))[1:]
    (spool.cwd / "script.py").write_text("import good\n")

    def imports() -> tuple[int, str]:
        before = count.stat().st_size if count.exists() else 0
        with fork_server(spool, *SCRIPT, env=env) as said:
            return count.stat().st_size - before, said.split(":")[0]

    once, again = (
        (1, "preloaded good\nleft tokened"),
        (5, "preloaded good\nleft tokened"),
    )  # four times in trials, since the other is then left out
    assert [imports(), imports()] == [again, once]
    (tmp_path / "path" / "results.csv").write_text("")  # any file may come into a folder of the search path
    assert imports() == once
    ((kept),) = (tmp_path / "run" / "preload" / os.uname().nodename).iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    of_run = str(spool.folder)  # its files go with the run, and verdicts that hang on one would not hold in the next
    assert [path for path in json.loads(kept.read_text())["paths"] if path.startswith(of_run)] == []
    kept.write_text("{}")
    assert imports() == again
    (Path(site) / "good" / "__init__.py").write_text(counting + "import threading, time\n")
    assert imports() == again
    (Path(site) / "tokened" / "__init__.py").write_text("TOKEN = 1\n")
    assert imports() == (3, "preloaded good, tokened\nready\n")


def test_a_package_that_is_not_as_it_was_tried_is_left_out_from_then_on(tmp_path: Path) -> None:
    text = f"import os, threading\nif os.path.exists({str(tmp_path / 'now')!r}):\n    print('welcome')\n"
    site = install(tmp_path, {"good": text})
    env = torch_environment(PYTHONPATH=os.pathsep.join((empty_torch(tmp_path), site)))
    (spool,) = folders(tmp_path, ("good",))[1:]
    (spool.cwd / "script.py").write_text("import good\n")
    said_each_time = []
    for _ in range(3):
        with fork_server(spool, *SCRIPT, env=env) as said:
            said_each_time.append(said)
        (tmp_path / "now").write_text("")
    assert said_each_time == [
        "preloaded good\nready\n",
        "refused good: importing it changed the output\n",
        "left good: importing it changed the output\nready\n",
    ]


def test_code_that_would_make_another_thing_of_a_package_means_a_start_without_it(tmp_path: Path) -> None:
    hub = "import os\nHOME = os.environ.get('HF_HOME')\ntry:\n    import datasets\nexcept ImportError:\n    pass\n"
    site = install(tmp_path, {"hub": hub})
    env = torch_environment(PYTHONPATH=os.pathsep.join((empty_torch(tmp_path), site)))
    warm, spool = folders(tmp_path, ("hub",))
    script = spool.cwd / "script.py"
    with warm_server(warm, env=env, preload=("hub",)) as server:
        script.write_text("import os\nos.environ['HF_HOME'] = '/mine'\nimport hub\n")
        reason = f"{script}:2 sets HF_HOME, which is read when it is imported"
        assert ask(warm, spool, *SCRIPT, env=env) == {"refused": reason}
        with fork_server(spool, *SCRIPT, env=env) as said:
            assert said == f"left hub: {reason}\nready\n"
        (spool.folder / FORK_SOCKET).unlink()
        script.write_text("import hub\n")
        (spool.cwd / "datasets").mkdir()
        said = ask(warm, spool, *SCRIPT, env=env)["refused"]
        assert said == f"{spool.cwd}/datasets would be imported in place of an installed module"
        (spool.cwd / "datasets").rmdir()
        with begun(warm, spool, *SCRIPT, env=env):
            assert spool.run(*SCRIPT, env=env).returncode == 0
        (tmp_path / "site-packages" / "hub" / "__init__.py").write_text("NAME = 'another'\n")
        refused = ask(warm, spool, *SCRIPT, env=env)
        assert refused == {"refused": f"{site}/hub/__init__.py has changed since it was started"}
        assert server.poll() is None


def test_a_warm_server_that_such_a_project_has_left_serves_it_and_gives_way_to_another(tmp_path: Path) -> None:
    hub = "import os\nHOME = os.environ.get('HF_HOME')\n"
    site = install(tmp_path, {"hub": hub})
    env = torch_environment(PYTHONPATH=os.pathsep.join((empty_torch(tmp_path), site)))
    warm, spool = folders(tmp_path, ("hub",))
    script = spool.cwd / "script.py"
    script.write_text("import os\nos.environ['HF_HOME'] = '/mine'\nimport hub\n")
    with warm_server(warm, env=env, preload=("hub",), run=(str(spool.cwd), sys.executable, *SCRIPT)):
        for _ in range(3):
            with begun(warm, spool, *SCRIPT, env=env):
                assert spool.run(*SCRIPT, env=env).returncode == 0
        reason = f"{script}:2 sets HF_HOME, which is read when it is imported"
        script.write_text("import hub\n")
        said = ask(warm, spool, *SCRIPT, env=env)["refused"]
        assert said == f"it has no packages, since for another run {reason}"


def test_a_warm_server_imports_nothing_that_reads_a_secret(tmp_path: Path) -> None:
    site = install(tmp_path, {"hub": "import os\nKEY = os.environ.get('HUB_KEY')\n", "good": ""})
    env = torch_environment(PYTHONPATH=os.pathsep.join((empty_torch(tmp_path), site)))
    warm, _ = folders(tmp_path)
    with warm_server(warm, env=env, preload=("hub", "good"), secrets=("HUB_KEY",)):
        told = json.loads((warm.folder / BEGUN_WITH).read_text())
    assert told["packages"] == ["good"]
    assert told["left_out"] == ["hub: it reads HUB_KEY, a secret, when it is imported"]


def test_nothing_can_be_kept_where_nothing_can_be_written_and_the_run_goes_on(tmp_path: Path) -> None:
    site = install(tmp_path, {"good": ""})
    env = torch_environment(PYTHONPATH=os.pathsep.join((empty_torch(tmp_path), site)))
    (spool,) = folders(tmp_path, ("good",))[1:]
    (tmp_path / "run" / "preload").write_text("no folder")
    (spool.cwd / "script.py").write_text("import good\n")
    with fork_server(spool, *SCRIPT, env=env) as said:
        assert said.startswith("left good: it cannot be tried: ")
        assert said.endswith("\nready\n")
        assert spool.run(*SCRIPT, env=env).returncode == 0
