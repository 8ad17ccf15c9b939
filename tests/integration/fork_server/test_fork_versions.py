"""Forked workers on the other Pythons, with an empty torch: what is Python's own is the same as in a started one."""

from __future__ import annotations

import json
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.fork_spool import empty_torch, fork_server, torch_environment
from tests.integration.shim_spool import PROBES, ShimSpool, make_spool, run_plain, without_addresses
from tests.integration.worker.test_shim_transparency import ENDINGS, normal
from tests.pythons import interpreter

if TYPE_CHECKING:
    from pathlib import Path

ARGS = ("-u", "script.py", "report.json")
LOADED = "import torch.distributed.run, torch._dynamo\n"


def assert_both_see_the_same(spool: ShimSpool, args: tuple[str, ...], env: dict[str, str], python: str) -> None:
    """Run the probe plainly and forked, and compare what it has seen."""
    views: list[dict[str, Any]] = []
    for forked in (False, True):
        ended = spool.run(*args, env=env) if forked else run_plain(spool, python, *args, env=env)
        assert (ended.returncode, ended.out, ended.err) == (0, b"", b"")
        views.append(json.loads(without_addresses((spool.cwd / "report.json").read_bytes())))
        for name in ("modules", "path_cache"):  # torch itself loads what the server has loaded beyond this one
            del views[-1][name]
    assert {name: (seen, views[0][name]) for name, seen in views[1].items() if seen != views[0][name]} == {}
    assert all(event["forked"] for event in spool.events("worker_started")), spool.events("not_forked")


def test_a_forked_module_sees_what_a_started_one_sees(tmp_path: Path) -> None:
    spool = make_spool(tmp_path)
    env = torch_environment(PYTHONPATH=empty_torch(tmp_path))
    args = ("-u", "-m", "pkg.script", "report.json")
    (spool.cwd / "pkg").mkdir()
    (spool.cwd / "pkg" / "__init__.py").write_text("")
    with fork_server(spool, *args, env=env) as said:
        assert said.endswith("ready\n"), said
        (spool.cwd / "pkg" / "script.py").write_text(LOADED + (PROBES / "looks.py").read_text())
        assert_both_see_the_same(spool, args, env, sys.executable)


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13"])
def test_a_fork_of_every_python_sees_and_ends_as_a_started_one(tmp_path: Path, version: str) -> None:
    python = interpreter(version)
    spool = make_spool(tmp_path, python=python, helper=python)
    env = torch_environment(PYTHONPATH=empty_torch(tmp_path))
    with fork_server(spool, *ARGS, env=env, python=python) as said:
        assert said.endswith("ready\n"), said
        (spool.cwd / "script.py").write_text(LOADED + (PROBES / "looks.py").read_text())
        assert_both_see_the_same(spool, ARGS, env, python)
        for ending in ("raises", "exit 3", "atexit order", "interrupted", "pickles in atexit", "kills itself"):
            (spool.cwd / "script.py").write_text(textwrap.dedent(ENDINGS[ending]))
            assert normal(spool.run(*ARGS, env=env)) == normal(run_plain(spool, python, *ARGS, env=env)), ending
    assert all(event["forked"] for event in spool.events("worker_started")), spool.events("not_forked")
