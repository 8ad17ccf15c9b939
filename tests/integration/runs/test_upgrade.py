"""A live run of the version before is followed and stopped, with the proof, by this version; and the other way round.

docs/versions.md promises it. The version before is a commit as long as there is no release; its run control has another
number than ours.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.integration.cli import CLUSTERDDP, WAIT, Done, Live, User, used_before
from tests.lab.system import wait_until
from tests.lean import lean_python
from tests.with_torch import need_torch

need_torch()

BEFORE = "3af9c6326e419d0b7338afd8b4b5138d9d190e20"
ROOT = Path(__file__).parents[3]
SCRIPT = f"""{WAIT}
print("begun", flush=True)
wait_for("on")
print("goes on", flush=True)
wait_for("never")
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The command of the version before, taken from the history, and of this one."""
    argv = ["git", "archive", BEFORE, "clusterddp", "inventories"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"no history here that has {BEFORE[:8]}, the version before")
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as files:
        files.extractall(folder, filter="data")
    start = f"import sys; sys.path.insert(0, {str(folder)!r}); from clusterddp.cli.main import main; main()"
    return {"before": [sys.executable, "-c", start], "now": [CLUSTERDDP]}


@pytest.fixture
def user(tmp_path: Path) -> User:
    """A user without an inventory, who therefore gets two nodes on this machine."""
    made = used_before(User(tmp_path))
    made.env["CLUSTERDDP_PYTHON"] = lean_python()
    made.write("train.py", SCRIPT)
    return made


def processes_of(run: str) -> list[str]:
    """Return the local processes that have the run's id in their command line or environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if run.encode() in (process / "cmdline").read_bytes() + (process / "environ").read_bytes():
                found.append(process.name)
    return found


@pytest.mark.torch
@pytest.mark.parametrize(("starter", "other"), [("before", "now"), ("now", "before")])
def test_a_live_run_of_another_version_is_followed_and_stopped(
    programs: dict[str, list[str]], user: User, starter: str, other: str
) -> None:
    def start(version: str, *words: str) -> contextlib.closing[Live]:
        return contextlib.closing(Live([*programs[version], *words], user.folder, user.env))

    def ask(version: str, *words: str) -> Done:
        with start(version, *words) as live:
            return live.end()

    begun = ask(starter, "run", "--detach", "--name", "night", "train.py")
    assert begun.code == 0, begun.err
    run = begun.out.strip()
    with start(other, "logs", "--follow", "night") as following:
        following.wait_for("begun", times=2)
        (workdir,) = (user.home / "clusterddp").iterdir()
        (workdir / "on").touch()
        following.wait_for("goes on", times=2)
        assert ask(other, "status", "night", "--json").json["state"] == "running"
        assert processes_of(run)
        stopped = ask(other, "stop", "night")
        followed = following.end()
    assert (stopped.code, stopped.err.count("proved empty")) == (0, 2), stopped.err
    assert followed.code == 143, followed.err
    assert [ask(version, "status", "night", "--json").json["state"] for version in programs] == ["stopped"] * 2
    wait_until("nothing of the run is left", lambda: not processes_of(run))
