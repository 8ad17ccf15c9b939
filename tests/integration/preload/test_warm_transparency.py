"""A worker whose fork server comes from a warm server is the one of `python -u SCRIPT` all the same.

The warm server began as another command line, in another folder, with fewer variables. Only what hangs on these is
looked at again here; the rest is test_fork_transparency.py's.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from clusterddp.remote.shared.run.plan import FORK_SOCKET
from clusterddp.remote.worker.fork_client import connect
from tests.integration.fork_server.test_fork_transparency import STATE, assert_same, forked, plain, seen_by
from tests.integration.fork_server.test_fork_versions import assert_both_see_the_same
from tests.integration.fork_spool import LOADED, empty_torch, torch_environment
from tests.integration.shim_spool import PROBES, ShimSpool, make_spool
from tests.integration.warm_spool import ask, begun, warm_server
from tests.integration.worker.test_shim_transparency import ENDINGS, normal
from tests.lab.system import wait_until
from tests.pythons import interpreter

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.torch
SCRIPT = ("-u", "script.py", "report.json", "--lr", "a b'c\"$(x)\n", "ä\udce4")
FOLDERS = """
import gc, json, os, sys, ctypes
from multiprocessing import get_context
count, words = ctypes.c_int(), ctypes.POINTER(ctypes.c_wchar_p)()
ctypes.pythonapi.Py_GetArgcArgv(ctypes.byref(count), ctypes.byref(words))
def names():
    return [sys.argv, sys.orig_argv, __file__, sys.path[0]]
if __name__ == "__main__":
    import torch, torch.distributed.run, torch._dynamo
    gc.unfreeze()
    remembered = [str(one) for holder in gc.get_objects() for one in gc.get_referents(holder) if type(one) is str]
    with get_context("spawn").Pool(1) as pool:
        child = pool.apply(names)
    print(ascii([names(), child[0], child[2:], [words[at] for at in range(count.value)], os.getcwd()]))
    print(torch._dynamo.config.debug_dir_root, sorted({one for one in remembered if "cwd-0123" + "456789" in one}))
"""


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShimSpool]:
    """A warm server's folder."""
    made = make_spool(tmp_path_factory.mktemp("warm"))
    with warm_server(made):
        yield made


def test_a_script_sees_what_a_started_one_sees(warm: ShimSpool, tmp_path: Path) -> None:
    spool = make_spool(tmp_path)
    probe = (PROBES / "looks.py").read_text().replace("import sys\n", f"{LOADED}import sys\n", 1)
    views = []
    with begun(warm, spool, *SCRIPT):
        (spool.cwd / "script.py").write_text(probe)  # it names os.environ, so that there would be no fork server
        for run in (plain, forked):
            ended = run(spool, SCRIPT)
            assert (ended.returncode, ended.out, ended.err) == (0, b"", b"")
            views.append(seen_by(spool))
    assert_same(*views)


def test_names_of_the_script_and_the_folder_are_the_runs_everywhere(warm: ShimSpool, tmp_path: Path) -> None:
    spool = make_spool(tmp_path)
    env = torch_environment(NCCL_DEBUG="WARN", CLUSTERDDP_HOST="other")
    with begun(warm, spool, *SCRIPT, env=env):
        assert_first_to_go_alone(warm, spool)
        (spool.cwd / "script.py").write_text(FOLDERS)
        assert normal(forked(spool, SCRIPT, env)) == normal(plain(spool, SCRIPT, env))
        (spool.cwd / "script.py").write_text(STATE)
        seen = [json.loads(run(spool, SCRIPT, env).out) for run in (plain, forked, forked)]
        assert seen[1] == seen[2] == seen[0]
        for ending in ("raises", "exit 3", "atexit order", "kills itself"):
            (spool.cwd / "script.py").write_text(textwrap.dedent(ENDINGS[ending]), encoding="utf-8")
            assert normal(forked(spool, SCRIPT, env)) == normal(plain(spool, SCRIPT, env)), ending


def assert_first_to_go_alone(warm: ShimSpool, spool: ShimSpool) -> None:
    """The idle server goes first when memory is short, none of the run's processes do; it has no port and no folder."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        server = Path("/proc", str(connect(sock, str(warm.folder))))
    assert (server / "oom_score_adj").read_text() == "1000\n"
    assert (server / "cwd").readlink() == Path("/")
    assert (warm.folder / FORK_SOCKET).stat().st_mode & 0o777 == 0o600

    def sockets() -> int:
        held = []
        for link in (server / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                held.append(str(link.readlink()))
        return len([name for name in held if name.startswith("socket:")])

    wait_until("it has only the socket that it listens on", lambda: sockets() == 1, timeout=20)  # ours was one more

    def processes() -> list[Path]:
        found = []
        for one in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has just ended
                found += [one] if os.fsencode(spool.folder) in (one / "cmdline").read_bytes() else []
        return found

    # The fork server has the warm one's name until it has taken the run's.
    wait_until("fence, supervisor and fork server", lambda: len(processes()) == 3, timeout=20)
    ours = processes()
    assert {(one / "oom_score_adj").read_text() for one in ours} == {Path("/proc/self/oom_score_adj").read_text()}


@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13"])
def test_every_python_from_310_on_runs_another_script_or_module_than_it_was_begun_with(
    tmp_path: Path, version: str
) -> None:
    python = interpreter(version)
    for name in ("warm", "run"):
        (tmp_path / name).mkdir()
    env = torch_environment(PYTHONPATH=empty_torch(tmp_path))
    made, spool = (make_spool(tmp_path / name, python=python, helper=python) for name in ("warm", "run"))
    (spool.cwd / "pkg").mkdir()
    (spool.cwd / "pkg" / "__init__.py").write_text("")
    script = ("-u", "script.py", "report.json", "ä")
    module = ("-u", "-m", "pkg.script", "report.json", "ä")
    with warm_server(made, env=env, python=python):
        for args, place in ((script, "script.py"), (module, "pkg/script.py")):
            with begun(made, spool, *args, env=env, python=python):
                (spool.cwd / place).write_text(LOADED + (PROBES / "looks.py").read_text())
                assert_both_see_the_same(spool, args, env, python)
                (spool.cwd / place).unlink()


@pytest.mark.parametrize("version", ["3.10", "3.13"])
@pytest.mark.parametrize("variable", ["PYTHONDEVMODE=1", "PYTHONMALLOC=debug"])
def test_a_python_that_checks_its_memory_ends_as_ever(tmp_path: Path, version: str, variable: str) -> None:
    python = interpreter(version)
    for name in ("warm", "run"):
        (tmp_path / name).mkdir()
    made, spool = (make_spool(tmp_path / name, python=python, helper=python) for name in ("warm", "run"))
    env = torch_environment(PYTHONPATH=empty_torch(tmp_path), **dict([variable.split("=")]))
    (spool.cwd / "script.py").write_text("print('the end')\n")
    with warm_server(made, env=env, python=python), begun(made, spool, *SCRIPT, env=env, python=python):
        ended = spool.run(*SCRIPT, env=env)
        assert (ended.returncode, ended.out, ended.err) == (0, b"the end\n", b"")
        assert spool.event("worker_started")["forked"], spool.events("not_forked")


def test_a_package_that_has_changed_since_is_refused_and_other_files_may_come_and_go(tmp_path: Path) -> None:
    for name in ("warm", "run"):
        (tmp_path / name).mkdir()
    path = empty_torch(tmp_path)
    made, spool = (make_spool(tmp_path / name) for name in ("warm", "run"))
    env = torch_environment(PYTHONPATH=path)
    with warm_server(made, env=env):
        (tmp_path / "path" / "results.csv").write_text("")
        with begun(made, spool, *SCRIPT, env=env):
            pass
        (tmp_path / "path" / "numpy.py").write_text("")
        assert ask(made, spool, *SCRIPT, env=env) == {"refused": f"{path} has changed since it was started"}


class UserSite(NamedTuple):
    """What ``user_site`` has made."""

    python: str
    warm: ShimSpool
    spool: ShimSpool
    env: dict[str, str]
    path: Path

    def asked(self) -> dict[str, Any]:
        """Ask the process that has already imported torch to start the run; return its answer."""
        return ask(self.warm, self.spool, *SCRIPT, env=self.env, python=self.python)

    @property
    def changed(self) -> dict[str, str]:
        """Return the warm server's reason for refusing the run."""
        return {"refused": f"{self.path} has changed since it was started"}


@pytest.fixture
def user_site(tmp_path: Path) -> UserSite:
    """Folders of a warm server and of a run, whose interpreter has a user's own site-packages, not made yet."""
    python = interpreter("3.13")
    for name in ("warm", "run"):
        (tmp_path / name).mkdir()
    made, spool = (make_spool(tmp_path / name, python=python, helper=python) for name in ("warm", "run"))
    env = torch_environment(PYTHONPATH=empty_torch(tmp_path), PYTHONUSERBASE=str(tmp_path / "base"))
    return UserSite(python, made, spool, env, tmp_path / "base" / "lib" / "python3.13" / "site-packages")


def test_an_editable_installation_that_leads_to_another_clone_since_is_refused(user_site: UserSite) -> None:
    user_site.path.mkdir(parents=True)
    (user_site.path / "project.pth").write_text("/clone/a\n")
    with warm_server(user_site.warm, env=user_site.env, python=user_site.python):
        (user_site.path / "project.pth").write_text("/clone/b\n")
        assert user_site.asked() == user_site.changed


def test_a_folder_of_packages_that_was_made_since_is_refused(user_site: UserSite) -> None:
    with warm_server(user_site.warm, env=user_site.env, python=user_site.python):
        user_site.path.mkdir(parents=True)
        assert user_site.asked() == user_site.changed


@pytest.mark.parametrize("name", ["sitecustomize.py", "usercustomize.py"])
def test_start_up_code_that_has_come_since_is_refused(user_site: UserSite, name: str) -> None:
    user_site.path.mkdir(parents=True)
    with warm_server(user_site.warm, env=user_site.env, python=user_site.python):
        (user_site.path / name).write_text("")
        assert user_site.asked() == user_site.changed


def test_checkpoints_in_a_folder_of_the_search_path_may_come_and_go(user_site: UserSite) -> None:
    user_site.path.mkdir(parents=True)
    args = (user_site.warm, user_site.spool, *SCRIPT)
    with warm_server(user_site.warm, env=user_site.env, python=user_site.python):
        (Path(user_site.env["PYTHONPATH"]) / "epoch-1.pth").write_text("")
        with begun(*args, env=user_site.env, python=user_site.python):
            pass
