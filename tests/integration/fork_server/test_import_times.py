"""A run's rank 0 puts on record how long it imported installed packages; nothing else of the script notices."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.shared.run.plan import FORK_SOCKET
from tests.integration.fork_spool import empty_torch, fork_server, torch_environment
from tests.integration.preload.test_preload import SCRIPT, folders, install
from tests.integration.warm_spool import begun, warm_server

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch
SLOW = "import time\nuntil = time.perf_counter() + {seconds}\nwhile time.perf_counter() < until:\n    pass\ndel until\n"
IMPORTS = """
import os, sys, json, xml.dom.minidom
from mine import inner
before = sys.modules["_frozen_importlib"]._find_and_load
try:
    import fails
except ValueError as error:
    import traceback
    print(len(traceback.extract_tb(error.__traceback__)), traceback.format_exc().count("importlib"))
"""


def test_rank_0_puts_on_record_what_its_own_imports_of_installed_packages_took(tmp_path: Path) -> None:
    packages = {
        "outer": "import below\n" + SLOW.format(seconds=0.7),
        "below": SLOW.format(seconds=0.6),
        "small": "",
        "fails": "raise ValueError\n",
    }
    site = install(tmp_path, packages)
    (tmp_path / "site-packages" / "outer" / "deep.py").write_text(SLOW.format(seconds=0.2))
    env = torch_environment(PYTHONPATH=os.pathsep.join((empty_torch(tmp_path), site)))
    (spool,) = folders(tmp_path)[1:]
    (spool.cwd / "mine").mkdir()
    (spool.cwd / "mine" / "__init__.py").write_text(SLOW.format(seconds=0.3))
    (spool.cwd / "mine" / "inner.py").write_text("import outer, small, json, outer.deep\n")
    (spool.cwd / "script.py").write_text(IMPORTS)
    with fork_server(spool, *SCRIPT, env=env):
        outs = [spool.run(*SCRIPT, env={**env, "RANK": rank}).out for rank in ("1", "0")]
        assert outs == [b"2 0\n"] * 2  # the frames that Python shows without us: the script's and the package's
        (told,) = spool.events("slow_imports")
        assert told["modules"] == ["outer", "outer.deep"]
        assert 1.5 <= told["seconds"] < 5
        assert (told["start"], told["local_rank"]) == (1, 0)
        (spool.cwd / "script.py").write_text("import below, sys, os\nos._exit(0)\n")
        spool.run(*SCRIPT, env={**env, "RANK": "0"})
        (spool.cwd / "script.py").write_text("import below\n")  # it takes less than a second
        spool.run(*SCRIPT, env={**env, "RANK": "0"})
        assert len(spool.events("slow_imports")) == 1


def test_what_is_preloaded_or_cannot_be_is_not_put_on_record(tmp_path: Path) -> None:
    packages = {"outer": SLOW.format(seconds=1.2), "left": "import secrets\nT = secrets.token_hex()\n"}
    packages["left"] += SLOW.format(seconds=1.2)
    site = install(tmp_path, packages)
    env = torch_environment(PYTHONPATH=os.pathsep.join((empty_torch(tmp_path), site)), RANK="0")
    warm, spool = folders(tmp_path, ("outer", "left"))
    (spool.cwd / "script.py").write_text("import outer, left\n")
    with fork_server(spool, *SCRIPT, env=env) as said:
        assert said.startswith("preloaded outer\nleft left: left.T is another"), said
        assert spool.run(*SCRIPT, env=env).returncode == 0
    (spool.folder / FORK_SOCKET).unlink()
    with warm_server(warm, env=env, preload=("outer", "left")), begun(warm, spool, *SCRIPT, env=env):
        assert spool.run(*SCRIPT, env=env).returncode == 0
    assert [one["forked"] for one in spool.events("worker_started")] == [True, True]
    assert spool.events("slow_imports") == []
