"""Removing environments beside those who build them, and wheels that went bad on a disk."""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from clusterddp.remote.environment import install_operations, removal
from clusterddp.remote.environment.folders import BuiltEnvironment, EnvironmentStore
from clusterddp.remote.environment.removal import FRESH_TIMEOUT, environments, remove_environments
from clusterddp.remote.helper.request import Request
from clusterddp.remote.system.bootstrap import Refused

IDENT = "a" * 64


def asked(state: Path, **args: Any) -> Request:
    return Request(0, {"state": str(state), **args}, -1, -1)


def half_built(store: EnvironmentStore) -> Path:
    store.make()
    place = Path(store.folder_of(IDENT))
    (place / "bin").mkdir(parents=True)
    return place


def test_an_environment_that_is_being_built_is_told_and_stays(tmp_path: Path) -> None:
    store = EnvironmentStore(str(tmp_path))
    place = half_built(store)
    with store.locked(IDENT):
        assert [one["building"] for one in environments(asked(tmp_path))] == [True]
        assert remove_environments(asked(tmp_path, idents=[IDENT]))["removed"] == 0
        assert place.is_dir()
    assert [one["building"] for one in environments(asked(tmp_path))] == [False]
    assert remove_environments(asked(tmp_path, idents=[IDENT]))["removed"] == 1
    assert [path.name for path in Path(store.folder).iterdir()] == ["wheels"]


def test_hosts_that_share_a_state_folder_list_an_environment_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each looks at its lock at the same moment."""
    place = half_built(EnvironmentStore(str(tmp_path)))
    Path(f"{place}.lock").touch()
    both, flock = threading.Barrier(2), fcntl.flock

    def together(handle: int, flags: int) -> None:
        try:
            flock(handle, flags)
        finally:
            both.wait(30)

    monkeypatch.setattr(fcntl, "flock", together)
    with ThreadPoolExecutor(2) as pool:
        listed = [*pool.map(lambda _: environments(asked(tmp_path)), range(2))]
    assert [[one["building"] for one in host] for host in listed] == [[False], [False]]


@pytest.mark.parametrize("made", [True, False])
def test_a_build_that_was_killed_is_listed_and_removed_whole(tmp_path: Path, *, made: bool) -> None:
    store = EnvironmentStore(str(tmp_path))
    place = half_built(store)
    cache = Path(f"{place}.work") / "cache"
    cache.mkdir(parents=True)
    (cache / "torch").write_bytes(b"x" * 100_000)
    if not made:
        (place / "bin").rmdir()
        place.rmdir()
    (listed,) = environments(asked(tmp_path))
    assert listed["bytes"] >= 100_000
    assert remove_environments(asked(tmp_path, idents=[IDENT]))["removed"] == 1
    assert [path.name for path in Path(store.folder).iterdir()] == ["wheels"]


def test_who_waits_for_a_lock_that_a_removal_takes_away_still_holds_the_one_there_is(tmp_path: Path) -> None:
    store = EnvironmentStore(str(tmp_path))
    half_built(store)
    held, done = threading.Event(), threading.Event()

    def build() -> None:
        with store.locked(IDENT):
            held.set()
            done.wait(30)

    builder = threading.Thread(target=build)
    with store.locked(IDENT):
        builder.start()
        os.unlink(store.folder_of(IDENT) + ".lock")  # noqa: PTH108 - as a removal does, whose lock it is
    assert held.wait(30)
    with store.locked(IDENT, wait=False) as free:
        assert not free
    done.set()
    builder.join()


def test_the_wheels_of_a_build_to_come_stay(tmp_path: Path) -> None:
    store = EnvironmentStore(str(tmp_path))
    store.make()
    wheels = {hashlib.sha256(data).hexdigest(): len(data) for data in (b"wanted", b"old")}
    wanted, old = wheels
    for digest, size in wheels.items():
        Path(store.wheel(digest)).write_bytes(b"x" * size)
        os.utime(store.wheel(digest), (time.time() - 2 * FRESH_TIMEOUT,) * 2)
    assert install_operations.environment_lacks(asked(tmp_path, wheels={wanted: 6}, room=1)) == []
    remove_environments(asked(tmp_path, idents=[]))
    assert (os.path.exists(store.wheel(wanted)), os.path.exists(store.wheel(old))) == (True, False)  # noqa: PTH110


def test_the_wheels_of_an_environment_go_with_it_unless_another_is_to_be_built_of_them(tmp_path: Path) -> None:
    store = EnvironmentStore(str(tmp_path))
    (half_built(store) / "bin" / "python").touch(mode=0o700)
    own, shared = "b" * 64, "c" * 64
    for digest in (own, shared):
        Path(store.wheel(digest)).write_bytes(b"x")
    made = BuiltEnvironment(digest="d", lock="uv.lock", built=time.time_ns(), wheels=(own, shared))
    store.complete(IDENT, made)
    assert install_operations.environment_lacks(asked(tmp_path, wheels={shared: 1}, room=1)) == []
    os.utime(store.wheel(shared), ns=(made.built + 1,) * 2)  # the same, by a clock that is fine enough
    assert remove_environments(asked(tmp_path, idents=[IDENT]))["removed"] == 1
    assert [path.name for path in Path(store.folder, "wheels").iterdir()] == [shared]


@pytest.mark.parametrize("gone", ["b" * 64, "c" * 64])
def test_a_build_whose_wheel_was_removed_meanwhile_says_so(tmp_path: Path, gone: str) -> None:
    """By a `down --environments` after the wheels were sent to this host, and before they were on all."""
    store = EnvironmentStore(str(tmp_path))
    store.make()
    for digest in {"b" * 64, "c" * 64} - {gone}:
        Path(store.wheel(digest)).write_bytes(b"x")
    build = {"ident": IDENT, "lock": "uv.lock", "project": "p", "python": "python3", "requirements": "", "setup": []}
    with pytest.raises(Refused, match="has removed wheels") as refused:
        install_operations.environment_build(asked(tmp_path, **build, wheels={"x.whl": "b" * 64}, uv="c" * 64))
    assert refused.value.remedy == "run again"


def test_hosts_that_share_a_state_folder_remove_its_wheels_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = EnvironmentStore(str(tmp_path))
    store.make()
    for digest in ("b" * 64, "c" * 64):
        Path(store.wheel(digest)).write_bytes(b"x")
        os.utime(store.wheel(digest), (time.time() - 2 * FRESH_TIMEOUT,) * 2)

    def listed_before_another_host_removes(folder: str) -> list[str]:
        names = os.listdir(folder)  # noqa: PTH208 - as what it stands for
        if folder.endswith("wheels"):
            os.unlink(store.wheel("b" * 64))  # noqa: PTH108 - the same
        return names

    monkeypatch.setattr(removal, "names_in", listed_before_another_host_removes)
    assert remove_environments(asked(tmp_path, idents=[])) == {"removed": 0, "bytes": 1}
    assert [*Path(store.folder, "wheels").iterdir()] == []


def test_a_wheel_that_went_bad_on_the_hosts_disk_is_removed_and_sent_again(tmp_path: Path) -> None:
    store = EnvironmentStore(str(tmp_path))
    store.make()
    Path(store.wheel(IDENT)).write_bytes(b"not uv")
    args = {"ident": IDENT, "uv": IDENT, "wheels": {}, "requirements": "", "python": "python3", "setup": []}
    with pytest.raises(Refused, match=r"1 wheels in .* were damaged and are removed"):
        install_operations.environment_build(asked(tmp_path, **args, lock="uv.lock", project="p"))
    assert install_operations.environment_lacks(asked(tmp_path, wheels={IDENT: 6}, room=1)) == [IDENT]
