"""The example's fabfile, run by the real `fab` on real hosts; and the tasks over a Group."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fabric import SerialGroup

from clusterddp import tasks
from tests.integration.cli import EXAMPLES, nothing_left
from tests.lean import lean_python
from tests.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab import Lab

TRAIN = "import sys, threading\nprint(*sys.argv[1:], flush=True)\nthreading.Event().wait(float(sys.argv[2]))\n"
FAB = Path(sys.executable).with_name("fab")


@pytest.fixture
def folder(tmp_path: Path, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the example's fabfile, and a home whose ssh knows the lab's hosts."""
    ssh = tmp_path / "home" / ".ssh"
    ssh.mkdir(parents=True)
    (ssh / "known_hosts").write_text((lab.folder / "known_hosts").read_text())
    user, key = lab.hosts[0].users[0].name, f"{lab.folder}/id_ed25519"
    blocks = [f"Host {one.name}\n HostName {one.address}\n User {user}\n IdentityFile {key}\n" for one in lab.hosts]
    (ssh / "config").write_text("".join(blocks))
    monkeypatch.setenv("HOME", str(ssh.parent))
    project = tmp_path / "project"
    project.mkdir()
    shutil.copy(EXAMPLES / "fabfile.py", project)
    (project / "fabric.yaml").write_text(f"clusterddp: {{python: {lean_python()}}}\n")
    (project / "train.py").write_text(TRAIN)
    monkeypatch.chdir(project)
    return project


def fab(*words: str, code: int = 0) -> list[str]:
    """What it wrote on stdout, a line each."""
    done = subprocess.run([str(FAB), *words], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout.splitlines()


@contextlib.contextmanager
def keys_known_elsewhere() -> Iterator[str]:
    """An ssh_config of the project's own; the home's knows no host while it is used."""
    ssh, keys = Path.home() / ".ssh", Path("own_keys").resolve()
    own = Path("ssh_config")
    own.write_text(f"{(ssh / 'config').read_text()}Host *\n UserKnownHostsFile {keys}\n")
    (ssh / "known_hosts").rename(keys)
    yield str(own)
    keys.rename(ssh / "known_hosts")


@pytest.mark.usefixtures("folder")
def test_fab_does_the_days_work_once_for_all_hosts(lab: Lab) -> None:
    hosts = ("-H", "gpu00,gpu01")
    alone = subprocess.run([str(FAB), "clusterddp.facts"], capture_output=True, text=True, check=False, timeout=120)
    (told,) = remedy("api/fabfile.py", "clusterddp: no host is given; write `fab -H gpu00,gpu01 …`").commands(
        alone.stderr
    )
    assert (alone.returncode, told.split()[1:3]) == (2, [*hosts])
    with nothing_left(lab):
        assert [line.split(",")[0] for line in fab(*hosts, "clusterddp.facts")] == ["gpu00: gpu00", "gpu01: gpu01"]
        assert fab(*hosts, "clusterddp.doctor", "--only=connection,shm") == []
        assert fab(*hosts, "clusterddp.sync")[0].endswith(" is on 2 hosts")
        with keys_known_elsewhere() as config:
            said = fab("-S", config, *hosts, "clusterddp.exec", "hostname; exit 3", code=3)
        assert said == ["[gpu00] gpu00", "[gpu01] gpu01"]
        (run,) = fab(*hosts, "clusterddp.start", "train.py", "--args=for 600")
        status = json.loads("\n".join(fab(*hosts, "clusterddp.status", f"--run={run}")))
        assert (status["run"], [host["name"] for host in status["hosts"]]) == (run, ["gpu00", "gpu01"])
        stopped = fab("-H", "gpu01", "clusterddp.stop", run)
        assert any("gpu01" in line and "proved empty" in line for line in stopped)
        assert fab(*hosts, "clusterddp.pull", "--what=train.py", "--to=pulled") == ["1 file is in ."]
        assert Path("pulled").read_text() == TRAIN
        said = fab(*hosts, "clusterddp.logs", f"--run={run}")
        workers = sorted(line for line in said if not line.startswith("[agent "))
        assert workers == ["[0 gpu00:0] for 600", "[1 gpu01:0] for 600"]
        assert fab(*hosts, "clusterddp.stop", "nothing", code=1) == []


@pytest.mark.usefixtures("folder")
def test_tasks_work_over_a_group(lab: Lab) -> None:
    variables = {"python": lean_python()}
    with nothing_left(lab), SerialGroup("gpu00", "gpu01") as group:
        assert {name: one.hostname for name, one in tasks.facts(group, **variables).items()} == {
            "gpu00": "gpu00", "gpu01": "gpu01",
        }  # fmt: skip
        run = tasks.start(group, "train.py", ["for", "0"], options={"name": "short"}, **variables)
        ranks = [line.rank for line in tasks.logs(group, run, follow=True, **variables)]
        assert sorted(rank for rank in ranks if rank is not None) == [0, 1]
        assert tasks.status(group, "short", **variables)["state"] == "succeeded"
        assert [end.code for end in tasks.exec(group, "true", **variables)] == [0, 0]
        assert all(connection.is_connected for connection in group)
