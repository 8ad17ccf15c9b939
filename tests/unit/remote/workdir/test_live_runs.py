"""Which runs count as live in a folder that hosts share: all but those proved dead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterddp.remote.system import procfs
from clusterddp.remote.workdir import live_runs as liveness
from clusterddp.remote.workdir.folder_lock import LIVE_FOLDER, make_live_folder
from clusterddp.remote.workdir.live_runs import live_runs
from clusterddp.remote.workdir.lock_owner import LockOwner, owner_of
from clusterddp.remote.workdir.run_markers import mark
from tests.lab.system import wait_until

STRANGER = LockOwner("f" * 16, "e" * 16, 1, 1)
BEATS = "import sys; from clusterddp.remote.workdir import heartbeat as beat; beat.BEAT = 0.02; beat.main(sys.argv[1:])"


@pytest.fixture
def root(root: Path) -> Path:
    make_live_folder(os.fsencode(root))
    return root


def found(state: str, root: Path) -> list[str]:
    return [one.run for one in live_runs(state, os.fsencode(root))]


def markers(root: Path) -> list[Path]:
    return sorted((root / os.fsdecode(LIVE_FOLDER)).glob("run.*"))


def marked(root: Path, owner: LockOwner, seconds_ago: float = 0.0) -> Path:
    place = root / os.fsdecode(LIVE_FOLDER)
    path = place / f"run.{owner}.r1.gpu01.example.org"
    path.touch()
    beat = path.stat().st_mtime - seconds_ago
    os.utime(path, (beat, beat))
    return path


def test_a_run_of_a_live_supervisor_is_live_however_old_its_beat(state: str, root: Path) -> None:
    marked(root, owner_of(state, os.getpid()), 10 * liveness.STALE_TIMEOUT)
    assert live_runs(state, os.fsencode(root)) == [("r1", "gpu01.example.org")]


def test_a_run_whose_supervisor_is_gone_is_over_and_its_marker_goes(state: str, root: Path) -> None:
    with subprocess.Popen(["true"]) as child:
        owner = owner_of(state, child.pid)
    marked(root, owner)
    assert found(state, root) == []
    assert markers(root) == []


def test_a_run_whose_supervisor_has_ended_but_was_not_waited_for_is_over(state: str, root: Path) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        marked(root, owner_of(state, child.pid))
        assert found(state, root) == ["r1"]
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert found(state, root) == []


def test_a_pid_that_another_process_has_now_proves_nothing(state: str, root: Path) -> None:
    mine = owner_of(state, os.getpid())
    marked(root, mine._replace(ticks=mine.ticks + 1))
    assert found(state, root) == []


def test_a_run_of_this_hosts_earlier_boot_is_over(state: str, root: Path) -> None:
    marked(root, owner_of(state, os.getpid())._replace(boot="e" * 16))
    assert found(state, root) == []


def test_another_hosts_run_is_live_until_its_beat_is_old_by_the_folders_clock(state: str, root: Path) -> None:
    marker = marked(root, STRANGER, liveness.STALE_TIMEOUT - 30)
    assert found(state, root) == ["r1"]
    beat = marker.stat().st_mtime - 60
    os.utime(marker, (beat, beat))
    assert found(state, root) == []
    assert markers(root) == []


@pytest.mark.parametrize(
    "name", ["run.", "run.x", "run.a-b-c-d.r1.h", "run.a-b-1-2", "run.a-b-1-2.r1", "run.²-²-²-².r.h"]
)
def test_a_name_that_is_no_marker_is_left_alone(state: str, root: Path, name: str) -> None:
    path = root / os.fsdecode(LIVE_FOLDER) / name
    path.touch()
    assert found(state, root) == []
    assert path.exists()


def test_a_marker_beats_while_the_supervisor_lives_and_goes_with_it(state: str, root: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as supervisor:
        marker = Path(os.fsdecode(mark(state, os.fsencode(root), "r1", "gpu01", supervisor.pid)))
        os.utime(marker, (1, 1))
        ticks = procfs.start_ticks(supervisor.pid)
        argv = [sys.executable, "-c", BEATS, str(marker), str(supervisor.pid), str(ticks)]
        with subprocess.Popen(argv) as beating:
            wait_until("the marker is new", lambda: marker.stat().st_mtime > 1, 60)
            marker.unlink()  # another host took it for dead while this one stood still
            wait_until("the marker is there", marker.exists, 60)
            supervisor.kill()
            supervisor.wait()
            assert beating.wait(60) == 0
    assert markers(root) == []
