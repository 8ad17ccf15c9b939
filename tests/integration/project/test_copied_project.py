"""A project that is copied or renamed while it has a live run: whose run `stop` ends."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests.integration.cli import WAIT, User
from tests.lean import lean_python
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

need_torch()


def workdirs_of(user: User) -> list[str]:
    return sorted(path.name for path in (user.home / "clusterddp").iterdir())


def test_a_copy_never_stops_its_originals_run_and_the_renamed_original_does(tmp_path: Path) -> None:
    user = User(tmp_path)
    user.env["CLUSTERDDP_PYTHON"] = lean_python()
    user.write("wait.py", WAIT + "print('begun', flush=True)\nwait_for('/nowhere')\n")
    with user.start("run", "--no-doctor", "wait.py") as live:
        run = live.run
        live.wait_for("begun", times=2)
        workdirs = workdirs_of(user)
        assert workdirs
        shutil.copytree(user.folder, tmp_path / "copy")

        stopped = user.run("stop", cwd=str(tmp_path / "copy"))
        assert stopped.code != 0
        (line,) = [note for note in stopped.notes if "this project is a copy of" in note]
        assert line == (
            f"this project is a copy of {user.folder} and gets an id of its own now, "
            "so it shares none of its runs and workdirs"
        )
        assert "is a copy" not in user.run("status", cwd=str(tmp_path / "copy")).err
        assert user.status(run)["state"] == "running"

        renamed = user.folder.rename(tmp_path / "renamed")
        user.folder = renamed
        ended = user.run("stop")
        assert ended.code == 0, ended.err
        assert live.end().code != 0
    assert user.run("sync").code == 0
    assert workdirs_of(user) == workdirs
