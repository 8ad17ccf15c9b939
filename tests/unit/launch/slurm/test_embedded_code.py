"""A run's code for nodes that share no folder: what its script may carry, and what is refused."""

from __future__ import annotations

import base64
import io
import random
import tarfile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import UsageError
from clusterddp.hosts.zipapp import bundle
from clusterddp.inventory import HostEntry
from clusterddp.launch.options import RunOptions
from clusterddp.launch.slurm.embedded_code import (
    MAX_SCRIPT_BYTES,
    embed_code,
    refuse_detached,
    refuse_shared_folder_options,
)
from clusterddp.remote.shared.slurm.job_record import SentCode, SlurmJob
from clusterddp.remote.slurm.code_delivery import install_code, keep_code
from clusterddp.remote.slurm.job_folder import JobFolder
from clusterddp.sync.project_files.project_tree import scan
from tests.unit.plan_made import PLAN
from tests.unit.sync_help import project_at

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = RunOptions(script="train.py")


def login(home: Path, config: str = "") -> Any:
    host = SimpleNamespace(
        entry=HostEntry(name="login", address="login"), hello=SimpleNamespace(home=str(home)), name="login"
    )
    return SimpleNamespace(host=host, command=lambda *_: (0, config, ""))


def test_what_a_script_carries_is_the_projects_code_as_it_was_and_our_own(tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / "pkg").mkdir(parents=True)
    (root / "train.py").write_text("print(1)\n")
    (root / "pkg" / "large.bin").write_bytes(bytes(range(256)) * 40_000)
    project, tree = project_at(root), scan(project_at(root))
    carried = embed_code(login(tmp_path / "home"), project, tree, SCRIPT, "", print, dry=False)
    node, state = tmp_path / "node", tmp_path / "state"
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(carried.packed))) as archive:
        for name in archive.getnames():
            node.mkdir(exist_ok=True)
            (node / name).write_bytes(archive.extractfile(name).read())  # type: ignore[union-attr]
    assert (node / "clusterddp.pyz").read_bytes() == bundle().code
    sent = SentCode(carried.sent.order._replace(workdir=str(tmp_path / "work")))
    state.mkdir(mode=0o700)
    job = SlurmJob(state=str(state), plan=PLAN, sent_code=sent)
    placed = install_code(job, sent, str(node / "code"))
    assert placed == str(tmp_path / "work")
    assert (tmp_path / "work" / "train.py").read_text() == "print(1)\n"
    assert (tmp_path / "work" / "pkg" / "large.bin").read_bytes() == (root / "pkg" / "large.bin").read_bytes()
    assert install_code(job, SentCode(sent.order._replace(digest="")), "") == placed  # as it is there


def test_a_dry_run_packs_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    project = project_at(tmp_path)
    assert embed_code(login(tmp_path), project, scan(project), SCRIPT, "", print, dry=True).packed == ""


def test_code_that_is_more_than_a_script_holds_is_for_the_login_host_to_send(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(random.Random(1).randbytes(MAX_SCRIPT_BYTES))  # compresses to no less
    project = project_at(tmp_path)
    tree = scan(project)
    carried = embed_code(login(tmp_path), project, tree, SCRIPT, "", print, dry=False)
    assert carried.sent.broadcast
    assert _names(carried.packed) == ["clusterddp.pyz"]
    sent = SentCode(carried.sent.order._replace(workdir=f"{tmp_path}/work"), broadcast=True)
    job = SlurmJob(state=str(tmp_path / "state"), plan=PLAN, sent_code=sent)
    (tmp_path / "state").mkdir(mode=0o700)
    folder = JobFolder.of(job.state, PLAN.run)
    keep_code(folder, carried.code)
    assert job.sent_code
    install_code(job, job.sent_code, folder.file("code"))
    assert (tmp_path / "work" / "data.bin").read_bytes() == (tmp_path / "data.bin").read_bytes()
    with pytest.raises(
        UsageError, match=r"nobody could bring TOKEN, the code, more than a job's script holds, to nodes"
    ):
        refuse_detached(job, {"TOKEN": "x"})
    said = "SchedulerParameters     = bf_interval=2,max_script_size=9000000\n"
    carried = embed_code(login(tmp_path, said), project, tree, SCRIPT, "", print, dry=False)
    assert not carried.sent.broadcast
    assert _names(carried.packed) == ["clusterddp.pyz", "code"]
    refuse_detached(job._replace(sent_code=carried.sent), {})


def _names(packed: str) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(packed))) as archive:
        return archive.getnames()


def test_what_needs_a_shared_folder_is_refused_with_its_remedy() -> None:
    refuse_shared_folder_options(SCRIPT, inside="")
    with pytest.raises(UsageError, match="--array: a job whose nodes share no folder is one run; start them"):
        refuse_shared_folder_options(RunOptions(script="train.py", array="0-3"), inside="")
    with pytest.raises(UsageError, match=r"this shell is in Slurm's job 77, and .*; `unset SLURM_JOB_ID` submits one"):
        refuse_shared_folder_options(SCRIPT, inside="77")
