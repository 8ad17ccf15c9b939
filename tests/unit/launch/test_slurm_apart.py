"""A run's code for nodes that share no folder: what its script may carry, and what is refused."""

from __future__ import annotations

import base64
import io
import tarfile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import UsageError
from clusterddp.hosts.zipapp import bundle
from clusterddp.inventory import HostEntry
from clusterddp.launch.options import RunOptions
from clusterddp.launch.slurm_apart import carried_code, refuse_together, refuse_too_large
from clusterddp.remote.shared.slurm_job import SlurmJob
from clusterddp.remote.slurm.code import place_code
from clusterddp.sync.files import scan
from tests.unit.plan_made import PLAN
from tests.unit.sync_help import project_at

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = RunOptions(script="train.py")


def login(home: Path, config: str = "") -> Any:
    host = SimpleNamespace(entry=HostEntry(name="login", address="login"), hello={"home": str(home)})
    return SimpleNamespace(host=host, command=lambda *_: (0, config, ""))


def test_what_a_script_carries_is_the_projects_code_as_it_was_and_our_own(tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / "pkg").mkdir(parents=True)
    (root / "train.py").write_text("print(1)\n")
    (root / "pkg" / "large.bin").write_bytes(bytes(range(256)) * 40_000)
    project, tree = project_at(root), scan(project_at(root))
    carried = carried_code(login(tmp_path / "home"), project, tree, SCRIPT, "", dry=False)
    node, state = tmp_path / "node", tmp_path / "state"
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(carried.packed))) as archive:
        for name in archive.getnames():
            node.mkdir(exist_ok=True)
            (node / name).write_bytes(archive.extractfile(name).read())  # type: ignore[union-attr]
    assert (node / "clusterddp.pyz").read_bytes() == bundle().code
    sent = carried.sent._replace(workdir=str(tmp_path / "work"))
    state.mkdir(mode=0o700)
    job = SlurmJob(state=str(state), plan=PLAN, apart=sent)
    placed = place_code(job, sent, str(node / "code"))
    assert placed == str(tmp_path / "work")
    assert (tmp_path / "work" / "train.py").read_text() == "print(1)\n"
    assert (tmp_path / "work" / "pkg" / "large.bin").read_bytes() == (root / "pkg" / "large.bin").read_bytes()
    assert place_code(job, sent._replace(digest=""), "") == placed  # as it is there


def test_a_dry_run_packs_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    project = project_at(tmp_path)
    assert carried_code(login(tmp_path), project, scan(project), SCRIPT, "", dry=True).packed == ""


def test_a_script_larger_than_slurm_takes_is_refused(tmp_path: Path) -> None:
    refuse_too_large(login(tmp_path), 3 << 20)
    with pytest.raises(UsageError, match=r"the job's script 5\.24 MB, and Slurm takes 4\.19 MB; keep data out of it"):
        refuse_too_large(login(tmp_path), 5 << 20)
    said = "SchedulerParameters     = bf_interval=2,max_script_size=9000000\n"
    refuse_too_large(login(tmp_path, said), 5 << 20)


def test_what_needs_a_shared_folder_is_refused_with_its_remedy() -> None:
    refuse_together(SCRIPT, inside="")
    with pytest.raises(UsageError, match="--array: a job whose nodes share no folder is one run; start them"):
        refuse_together(RunOptions(script="train.py", array="0-3"), inside="")
    with pytest.raises(UsageError, match=r"this shell is in Slurm's job 77, and .*; `unset SLURM_JOB_ID` submits one"):
        refuse_together(SCRIPT, inside="77")
