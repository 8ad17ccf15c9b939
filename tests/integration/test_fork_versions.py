"""Forked workers on the other Pythons, with an empty torch: what is Python's own is the same as in a started one."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.fork_spool import fork_server, torch_environment
from tests.integration.shim_spool import PROBES, interpreter, make_spool, run_plain, without_addresses
from tests.integration.test_shim_transparency import ENDINGS, normal

if TYPE_CHECKING:
    from pathlib import Path

ARGS = ("-u", "script.py", "report.json")
TORCH = """
import ctypes, json, logging, multiprocessing.process, select, signal, socket, threading
class default_generator:
    seed = staticmethod(lambda: 0)
"""
LOADED = "import torch.distributed.run, torch._dynamo\n"


def empty_torch(folder: Path) -> str:
    """A folder for PYTHONPATH."""
    package = folder / "path" / "torch"
    (package / "distributed").mkdir(parents=True)
    (package / "__init__.py").write_text(TORCH)
    for name in ("_dynamo.py", "distributed/__init__.py", "distributed/run.py"):
        (package / name).write_text("")
    return str(package.parent)


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13"])
def test_a_fork_of_every_python_sees_and_ends_as_a_started_one(tmp_path: Path, version: str) -> None:
    python = interpreter(version)
    spool = make_spool(tmp_path, python=python, helper=python)
    env = torch_environment(PYTHONPATH=empty_torch(tmp_path))
    with fork_server(spool, *ARGS, env=env, python=python) as said:
        assert said.endswith("ready\n"), said
        views: list[dict[str, Any]] = []
        (spool.cwd / "script.py").write_text(LOADED + (PROBES / "looks.py").read_text())
        for forked in (False, True):
            ended = spool.run(*ARGS, env=env) if forked else run_plain(spool, python, *ARGS, env=env)
            assert (ended.returncode, ended.out, ended.err) == (0, b"", b"")
            views.append(json.loads(without_addresses((spool.cwd / "report.json").read_bytes())))
            for name in ("modules", "path_cache"):  # torch itself loads what the server has loaded beyond this one
                del views[-1][name]
        assert {name: (seen, views[0][name]) for name, seen in views[1].items() if seen != views[0][name]} == {}
        for ending in ("raises", "exit 3", "atexit order", "interrupted", "pickles in atexit", "kills itself"):
            (spool.cwd / "script.py").write_text(textwrap.dedent(ENDINGS[ending]))
            assert normal(spool.run(*ARGS, env=env)) == normal(run_plain(spool, python, *ARGS, env=env)), ending
    assert all(event["forked"] for event in spool.events("worker_started")), spool.events("not_forked")
