"""An environment of a lock on two hosts: built once, proved equal, used by every worker."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User
from tests.wheels_made import make_lean_torch, make_wheel, need_uv, project_with_lock
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab import Lab

need_torch()
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("lab_left_clean")]

SCRIPT = """
import os, sys
import tiny, small, toy
from torch.distributed.elastic import metrics
print(tiny.X, small.Y, toy.Z, sys.prefix == os.environ["VIRTUAL_ENV"], flush=True)
"""


@pytest.fixture
def user(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> User:
    user = User(tmp_path)
    user.env["XDG_CACHE_HOME"] = str(need_uv(monkeypatch))
    store = tmp_path / "wheels"
    make_wheel(store, "tiny", "1.0", {"tiny/__init__.py": "X = 1\n"})
    make_wheel(store, "small", "2.0", {"small.py": "Y = 2\n"})
    make_lean_torch(store)
    project_with_lock(user.folder, store, "tiny", "torch", gpu="small==2.0")
    user.write("src/toy/__init__.py", "Z = 3\n")
    user.write("train.py", SCRIPT)
    names = [host.name for host in lab.hosts[:2]]
    more: dict[str, dict[str, object]] = {name: {"clusterddp_environment": "uv.lock[gpu]"} for name in names}
    lab.write_inventory(user.folder / "inventory.yaml", hosts=names, more=more)
    return user


def test_hosts_get_the_locked_environment_once_and_workers_run_in_it(lab: Lab, user: User, tmp_path: Path) -> None:
    up = user.run("up", "inventory.yaml")
    assert up.code == 0, up.err
    told = re.search(r"environment ([0-9a-f]{4}) \(building on 2\)", up.err)
    assert told, up.err
    assert up.err.count("the project itself is not installed: src/ is on PYTHONPATH") == 1
    run = user.run("run", "train.py")
    assert run.code == 0, run.err
    assert {said.text for said in run.workers} == {"1 2 3 True"}
    assert f"environment {told[1]} (ready on 2)" in run.err
    assert re.search(rf"code [0-9a-f]{{6}} \(\d files\), environment {told[1]}\n", run.err)
    assert user.status(run.run)["environment"].startswith(told[1])
    assert user.run("runs").lines[0].split()[8:10] == ["code", "environment"]

    # What was cut short is built anew there, and nowhere else.
    lab.hosts[1].run(["sh", "-c", "rm .clusterddp/environments/*/ready"])
    again = user.run("exec", "--", "python", "-c", "import tiny; print(tiny.__file__)")
    assert again.code == 0, again.err
    assert f"environment {told[1]} (ready on 1, building on 1)" in again.err
    assert all("/.clusterddp/environments/" in line for line in again.lines)

    # What somebody installs there besides is found.
    assert user.run("doctor", "--only", "locked-environment").code == 0
    record = (
        lab.hosts[0].run(["sh", "-c", "ls .clusterddp/environments/*/lib/*/site-packages/tiny*/RECORD"]).stdout.strip()
    )
    lab.hosts[0].run(["sh", "-c", f"cp {record} kept && echo more.py,sha256=x,1 >> {record}"])
    changed = user.run("doctor", "--only", "locked-environment")
    assert changed.code == 1
    assert "gpu00: packages were changed in the environment of uv.lock[gpu] since it was built" in changed.out
    lab.hosts[0].run(["sh", "-c", f"cp kept {record}"])

    # What is no longer used goes, after a yes.
    project_with_lock(user.folder, tmp_path / "wheels", "tiny", "torch", gpu="tiny==1.0")
    assert user.run("exec", "--", "python", "-c", "import torch").code == 0
    down = user.run("down", "--environments", "--yes")
    assert down.code == 0, down.err
    assert re.search(
        rf"will be removed: gpu00, gpu01: environment {told[1]} of uv.lock\[gpu\] \(\S+ \S+, used today\)", down.err
    )
    assert re.search(r"stays: .*: this project used it last", down.err)
    assert re.search(r"gpu00,gpu01 +removed +\S+ +1 environment\n", down.err)
    assert re.search(
        r"gpu00,gpu01 +stays +\S+ +environment \S+ of uv.lock\[gpu\]: this project used it last; ", down.err
    )
    kept = lab.hosts[0].run(["sh", "-c", "ls -d .clusterddp/environments/*/ready"]).stdout.split()
    assert len(kept) == 1
    assert user.run("down", "--environments", "--purge", "--yes").code == 0
    assert lab.hosts[0].run(["sh", "-c", "ls -d .clusterddp/environments/*/ready || true"]).stdout == ""

    # A lock without torch is refused with what is missing.
    project_with_lock(user.folder, tmp_path / "wheels", "tiny", gpu="small==2.0")
    refused = user.run("run", "train.py")
    assert refused.code == 125
    assert "No module named 'torch'" in refused.err
    assert "add torch to what uv.lock locks, and lock it again" in refused.err
