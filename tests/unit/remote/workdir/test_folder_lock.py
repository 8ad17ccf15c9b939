"""One sync at a time in a folder, whoever dies in the middle, on this host or on another that shares it."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.system.bootstrap import Refused
from clusterddp.remote.workdir import folder_lock
from clusterddp.remote.workdir.folder_lock import LIVE_FOLDER, FolderLock, folder_id, make_live_folder
from clusterddp.remote.workdir.lock_owner import LockOwner, owner_of

if TYPE_CHECKING:
    from pathlib import Path

COUNTS = """
import os, sys
from clusterddp.remote.workdir.folder_lock import FolderLock
for _ in range(15):
    with FolderLock(sys.argv[1], os.fsencode(sys.argv[2])):
        count = int(open(sys.argv[3]).read())
        with open(sys.argv[3], "w") as stream:
            stream.write(str(count + 1))
"""
HOLDS = """
import os, sys
from clusterddp.remote.workdir.folder_lock import FolderLock
with FolderLock(sys.argv[1], os.fsencode(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.read()
"""
STRANGER = LockOwner("f" * 16, "e" * 16, 1, 1)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "LOCK_TIMEOUT", 0.1)


def of(state: str, root: Path) -> FolderLock:
    return FolderLock(state, os.fsencode(root))


def held_by(root: Path, owner: LockOwner, seconds_ago: float = 0.0) -> Path:
    """The lock, held by another whose last beat was so long ago by the folder's clock."""
    make_live_folder(os.fsencode(root))
    place = root / os.fsdecode(LIVE_FOLDER)
    beat = (place / "id").stat().st_mtime - seconds_ago
    held = (place / "lock.free").rename(place / f"lock.held.{owner}.abc")
    os.utime(held, (beat, beat))
    return held


def locks(root: Path) -> list[str]:
    return sorted(path.name.split(".")[1] for path in (root / os.fsdecode(LIVE_FOLDER)).glob("lock.*"))


def test_processes_take_turns_from_the_first_use_on(state: str, root: Path, tmp_path: Path) -> None:
    counter = tmp_path / "count"
    counter.write_text("0")
    argv = [sys.executable, "-c", COUNTS, state, str(root), str(counter)]
    started = [subprocess.Popen(argv) for _ in range(4)]
    assert [one.wait(60) for one in started] == [0] * 4
    assert counter.read_text() == "60"
    assert locks(root) == ["free"]
    assert sorted(path.name for path in root.iterdir()) == [".clusterddp-live"]


def test_a_holder_that_is_killed_holds_nothing(state: str, root: Path) -> None:
    argv = [sys.executable, "-c", HOLDS, state, str(root)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"held\n"
        assert locks(root) == ["held"]
        holder.kill()
    with of(state, root):
        assert locks(root) == ["held"]
    assert locks(root) == ["free"]


@pytest.mark.usefixtures("impatient")
def test_a_live_holder_is_waited_for_and_then_named(state: str, root: Path) -> None:
    with of(state, root), pytest.raises(Refused, match="another sync holds"):
        of(state, root).__enter__()


def test_hosts_that_take_turns_are_waited_for_however_many_they_are(
    state: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, clock = [held_by(root, STRANGER)], [0.0]

    def pass_on(_: float) -> None:
        """Time in which one host's turn ends and the next one's begins; after the last the lock is free."""
        clock.append(clock[-1] + 0.75 * folder_lock.LOCK_TIMEOUT)
        name = f"lock.held.{STRANGER}.{len(held)}" if len(held) < 8 else "lock.free"
        held.append(held[-1].rename(held[-1].with_name(name)))

    monkeypatch.setattr(folder_lock, "time", SimpleNamespace(monotonic=lambda: clock[-1], sleep=pass_on))
    with of(state, root):
        assert locks(root) == ["held"]
    assert len(held) == 9


@pytest.mark.usefixtures("impatient")
def test_another_hosts_holder_counts_until_its_beat_is_old(state: str, root: Path) -> None:
    held = held_by(root, STRANGER, folder_lock.STALE_TIMEOUT - 10)
    with pytest.raises(Refused, match="another sync holds"):
        of(state, root).__enter__()
    beat = held.stat().st_mtime - 20
    os.utime(held, (beat, beat))
    with of(state, root):
        assert locks(root) == ["held"]


def test_a_holder_of_this_hosts_earlier_boot_is_dead(state: str, root: Path) -> None:
    held_by(root, owner_of(state, os.getpid())._replace(boot="e" * 16))
    with of(state, root):
        assert locks(root) == ["held"]


def test_of_many_that_take_over_a_dead_ones_lock_one_has_it(state: str, root: Path) -> None:
    held_by(root, STRANGER, 2 * folder_lock.STALE_TIMEOUT)
    inside: list[int] = []

    def enter(_: int) -> int:
        with of(state, root):
            inside.append(1)
            most = len(inside)
            inside.pop()
        return most

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(enter, range(40))) == {1}
    assert locks(root) == ["free"]


def test_who_stood_still_for_so_long_that_another_took_over_changes_nothing_more(
    state: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_lock, "HEARTBEAT_INTERVAL", 0.0)
    with of(state, root) as slow:
        slow.check()
        (held,) = (root / os.fsdecode(LIVE_FOLDER)).glob("lock.held.*")
        held.rename(held.with_name(f"lock.held.{STRANGER}.abc"))
        with pytest.raises(Refused, match="stood still"):
            slow.check()
    assert locks(root) == ["held"]  # the other's


@pytest.mark.usefixtures("impatient")
def test_a_lock_removed_by_hand_is_said_and_an_emptied_folder_mends_itself(state: str, root: Path) -> None:
    make_live_folder(os.fsencode(root))
    place = root / os.fsdecode(LIVE_FOLDER)
    (place / "lock.free").unlink()
    with pytest.raises(Refused, match=r"the lock in .* was removed") as raised:
        of(state, root).__enter__()
    assert "remove that folder" in raised.value.remedy
    for path in place.iterdir():
        path.unlink()
    place.rmdir()
    with of(state, root):
        assert locks(root) == ["held"]


def test_a_folder_is_known_by_a_word_that_stays(state: str, root: Path) -> None:
    assert folder_id(os.fsencode(root)) is None
    with of(state, root):
        known = folder_id(os.fsencode(root))
    with of(state, root):
        assert folder_id(os.fsencode(root)) == known
    assert known
