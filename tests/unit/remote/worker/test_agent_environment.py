"""The environment of commands that run as a worker would."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.shared.probes.facts_records import PythonQuery
from clusterddp.remote.shared.shell.command_records import WorkerPlace
from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.worker.agent_environment import agent_environment, worker_like
from tests.unit.plan_made import PLAN, changed

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("own", "others", "first"),
    [
        (["python3.11", "python"], ["python"], True),
        (["python3.11"], ["python3.11"], True),
        (["python3.11"], ["python"], False),
        (["python3.11", "python"], [], False),
    ],
)
def test_python_is_the_workers(tmp_path: Path, own: list[str], others: list[str], *, first: bool) -> None:
    for folder, names in (("own", own), ("other", others)):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).touch(mode=0o755)
    path = f"{tmp_path}/other{os.pathsep}{tmp_path}/own"
    job = PythonQuery(setup=(), env={}, python=f"{tmp_path}/own/python3.11", workdir="")
    found = worker_like(WorkerPlace(job=job, host="gpu00", subfolder=""), {"PATH": path})["PATH"]
    assert found == (f"{tmp_path}/own{os.pathsep}{path}" if first else path)


def test_pwd_is_the_workers_folder_and_not_the_logins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PWD", "/home/alice/source")
    monkeypatch.setenv("OLDPWD", "/home/alice")
    found = agent_environment(changed(PLAN, setup=()), Spool(str(tmp_path)))
    assert (found["PWD"], "OLDPWD" in found) == (PLAN.cwd, False)
