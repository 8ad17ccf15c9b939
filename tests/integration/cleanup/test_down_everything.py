"""`clusterddp down --everything` on a borrowed host: as it was before, and nothing of anybody else is touched."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User
from tests.lab.system import wait_until
from tests.wheels_made import make_lean_torch, make_wheel, need_uv, project_with_lock
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.conftest import MakeLab
    from tests.lab.host import LabHost

need_torch()
pytestmark = pytest.mark.torch

SAVES = """
import os, tiny
os.makedirs("ckpt", exist_ok=True)
with open("ckpt/last.pt", "wb") as out:
    out.write(os.urandom(3000))
with open(os.path.join(os.environ["CLUSTERDDP_RUN_DIR"], "result"), "w") as out:
    out.write("done")
print("saved", flush=True)
"""
WAITS = "import threading\nprint('here', flush=True)\nthreading.Event().wait(600)\n"


def owned(host: LabHost) -> list[str]:
    """Every file and folder of the operator's account on a host, but what a login shell writes."""
    name = host.users[0].name
    places = "/home /tmp /var /dev/shm /run /etc /opt /srv"
    found = host.run(["sh", "-c", f"find {places} -user {name} -printf '%y %p\\n' 2>/dev/null || true"], user="root")
    return sorted(line for line in found.stdout.splitlines() if "_history" not in line)


def borrowed(hosts: Sequence[LabHost]) -> dict[str, list[str]]:
    """What each host's account owns before anything of ours is there; a later lab's hosts begin with known facts."""
    for host in hosts:
        host.run(["rm", "-rf", f"/home/{host.users[0].name}/.clusterddp"], user="root")
    return {host.name: owned(host) for host in hosts}


def has_none_of_ours(host: LabHost) -> bool:
    """Whether no process on a host is clusterddp's, or a run's."""
    return not any("clusterddp" in " ".join(seen.cmdline) for seen in host.processes())


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> User:
    user = User(tmp_path)
    user.env["XDG_CACHE_HOME"] = str(need_uv(monkeypatch))
    store = tmp_path / "wheels"
    make_wheel(store, "tiny", "1.0", {"tiny/__init__.py": "X = 1\n"})
    make_lean_torch(store)
    project_with_lock(user.folder, store, "tiny", "torch")
    user.write("train.py", SAVES)
    user.write("waits.py", WAITS)
    return user


def test_nothing_is_left_after_runs_an_environment_a_warm_server_and_a_push(make_lab: MakeLab, user: User) -> None:
    lab = make_lab(2)
    before = borrowed(lab.hosts)
    more: dict[str, dict[str, object]] = {
        host.name: {"clusterddp_environment": "uv.lock", "clusterddp_warm": "10m"} for host in lab.hosts
    }
    inventory = lab.write_inventory(user.folder / "inventory.yaml", more=more)
    assert user.up(inventory).code == 0
    assert user.run("run", "train.py").code == 0
    assert user.run("run", "--workdir", "beside", "train.py").code == 0
    user.write("data/set.bin", "x" * 5000)
    assert user.run("push", "data").code == 0
    assert all(len(owned(host)) > len(before[host.name]) for host in lab.hosts)

    run = user.run("run", "--detach", "waits.py").lines[0]
    user.hear(run, "here")
    refused = user.run("down", "--everything", "--yes")
    assert refused.code == 1
    assert refused.notes[-1].endswith(f"and nothing is removed then; `clusterddp stop {run}` ends it")
    assert refused.notes[-1].startswith(f"run {run} (")
    assert user.run("stop", run).code == 0

    off_terminal = user.run("down", "--everything")
    assert (off_terminal.code, off_terminal.notes[-1].endswith("nobody is here; give --yes")) == (2, True)
    with user.start("down", "--everything", terminal=True) as asked:
        asked.wait_for("remove all of it?")
        asked.key("n\n")
        done = asked.end()
    assert done.code == 130
    assert "ckpt/last.pt" in done.out

    gone = user.run("down", "--everything", "--yes")
    assert gone.code == 0, gone.err
    assert "nothing of clusterddp is left" in gone.err
    assert f"{inventory} is forgotten" in gone.notes[-1]
    for host in lab.hosts:
        wait_until(f"no process of ours is on {host.name}", partial(has_none_of_ours, host), 30)
        assert owned(host) == before[host.name]
    assert user.run("status").notes[0].startswith("cluster: none configured")

    # All of it can begin anew.
    assert user.up(inventory).code == 0
    assert user.run("run", "train.py").code == 0


def test_links_mounts_and_other_users_files_lead_no_removal_elsewhere(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(1)
    (host,) = lab.hosts
    home = f"/home/{host.users[0].name}"
    user = User(tmp_path)
    user.write("train.py", "print('done')\n")
    inventory = lab.write_inventory(user.folder / "inventory.yaml")
    assert user.up(inventory).code == 0
    assert user.run("run", "train.py").code == 0
    (workdir,) = host.run(["sh", "-c", "ls -d ~/clusterddp/*"]).stdout.split()
    host.run(["sh", "-c", "mkdir -p ~/thesis ~/mounted && echo text >~/thesis/text && echo data >~/mounted/data"])
    host.run(["sh", "-c", f"cd {workdir} && ln -s ~/thesis folder && ln -s ~/thesis/text file && mkdir mount deep"])
    host.run(["sh", "-c", f"cd {workdir} && mkdir closed && touch closed/file && chmod 0 closed"])
    host.run(["sh", "-c", "ln -s ~/thesis ~/.clusterddp/runs/link; ln -s ~/thesis ~/.clusterddp/rundirs"])
    host.run(["sh", "-c", f"ln -s ~/thesis {workdir}/../planted; touch ~/.clusterddp/mine"])
    host.run(["sh", "-c", f"touch {workdir}/theirs; mount --bind {home}/mounted {workdir}/mount"], user="root")
    done = user.run("down", "--everything", "--yes")
    assert done.code == 1, done.err
    assert f"{workdir}/theirs: it belongs to another user" in done.err
    assert f"{workdir}/mount: something is mounted there" in done.err
    assert f"{home}/.clusterddp: it holds what is not ours: " in done.err
    assert host.run(["cat", "thesis/text", "mounted/data"]).stdout == "text\ndata\n"
    left = host.run(["sh", "-c", f"cd {workdir} && ls -A"], user="root").stdout.split()
    assert left == [".clusterddp-live", "mount", "theirs"]

    host.run(["sh", "-c", f"umount {workdir}/mount; rm {workdir}/theirs"], user="root")
    host.run(["rm", f"{home}/.clusterddp/mine"])
    again = user.run("down", "--everything", "--yes", "-i", str(inventory))
    assert again.code == 0, again.err
    assert host.run(["sh", "-c", "ls -A ~/clusterddp"]).stdout.split() == ["planted"]
    assert host.run(["sh", "-c", "ls -d ~/.clusterddp* || true"]).stdout == ""
    assert host.run(["cat", "thesis/text", "mounted/data"]).stdout == "text\ndata\n"


def test_a_home_that_hosts_share_is_cleared_once_and_by_all(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(2, shared_home=True)
    user = User(tmp_path)
    user.write("train.py", "print('done')\n")
    before = borrowed(lab.hosts)
    assert user.up(lab.write_inventory(user.folder / "inventory.yaml")).code == 0
    assert user.run("run", "train.py").code == 0
    gone = user.run("down", "--everything", "--yes")
    assert gone.code == 0, gone.err
    assert {host.name: owned(host) for host in lab.hosts} == before
