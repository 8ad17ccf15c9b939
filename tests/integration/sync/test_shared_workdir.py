"""A workdir on a home that hosts share, with states apart as on a file server: no sync changes a live run's code."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, User, helpers, nothing_left
from tests.lab.system import kill_and_wait, wait_until
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab import Lab

need_torch()
pytestmark = pytest.mark.torch

LONG = f"""{WAIT}
print("started", flush=True)
wait_for(sys.argv[1])
from late import VERSION
print("late code is", VERSION, flush=True)
"""
SHORT = "from late import VERSION; import os; print(VERSION, os.getcwd(), flush=True)\n"
OLD_BEAT = 3600.0  # seconds


@pytest.fixture(scope="module")
def shared() -> Iterator[Lab]:
    from tests.own_lab import own_lab  # noqa: PLC0415 - where no lab can be, the test is skipped

    with own_lab(2, shared_home=True, connect_timeout=2) as lab:
        yield lab


@pytest.fixture
def both(shared: Lab, tmp_path: Path) -> Iterator[tuple[User, User]]:
    """Two people with clones of one project; where the last test's folder was is none."""
    people = []
    for name in ("ann", "bob"):
        (tmp_path / name).mkdir()
        user = User(tmp_path / name)
        user.env["CLUSTERDDP_PROJECT"] = tmp_path.name
        user.write("long.py", LONG)
        user.write("short.py", SHORT)
        user.write("late.py", f"VERSION = '{name}'\n")
        states = {host.name: {"clusterddp_state": "/var/tmp/state"} for host in shared.hosts}
        shared.write_inventory(user.folder / "inventory.yaml", more=states)
        people.append(user)
    with nothing_left(shared):
        yield people[0], people[1]


def run(host: str, *words: str) -> list[str]:
    return ["run", "-i", "inventory.yaml", "--limit", host, *words]


def place(shared: Lab) -> Path:
    """The dotted folder of the one workdir whose lock is there."""
    (found,) = (shared.folder / "home").glob("*/clusterddp/*/.clusterddp-live/id")
    return found.parent


@pytest.fixture(autouse=True)
def _folders_removed(shared: Lab, both: tuple[User, User]) -> Iterator[None]:
    assert both
    yield
    shared.host("gpu00").run(["rm", "-rf", "clusterddp"])


def test_a_sync_by_another_person_to_another_host_leaves_a_live_runs_code_alone(
    shared: Lab, both: tuple[User, User]
) -> None:
    ann, bob = both
    with ann.start(*run("gpu00", "long.py", "/tmp/go")) as first:
        first.wait_for("started")
        second = bob.run(*run("gpu01", "short.py"))
        assert second.code == 125
        assert f"run {first.run} is live in" in second.notes[-1]
        shared.host("gpu00").write("/tmp/go", "")
        done = first.end()
    assert [said.text for said in done.workers] == ["started", "late code is ann"]
    third = bob.run(*run("gpu01", "short.py"))  # the marker went with the run
    assert [said.text.split()[0] for said in third.workers] == ["bob"]


@pytest.mark.parametrize("silent_for_long", [False, True])
def test_a_host_that_lost_its_power_protects_its_code_until_it_is_back_or_long_silent(
    shared: Lab, both: tuple[User, User], *, silent_for_long: bool
) -> None:
    ann, bob = both
    dead = shared.host("gpu00")
    with ann.start(*run("gpu00", "long.py", "/tmp/never")) as first:
        first.wait_for("started")
        dead.power_off()
    main = place(shared)
    refused = bob.run(*run("gpu01", "short.py"))
    assert refused.code == 125
    assert "is live in" in refused.notes[-1]
    if silent_for_long:
        (marker,) = main.glob("run.*")
        beat = marker.stat().st_mtime - OLD_BEAT
        os.utime(marker, (beat, beat))
    dead.boot()
    done = bob.run(*run("gpu01", "short.py")) if silent_for_long else ann.run(*run("gpu00", "short.py"))
    assert done.code == 0, done.err


def test_a_sync_that_was_killed_is_mended_from_another_host(shared: Lab, both: tuple[User, User]) -> None:
    ann, bob = both
    for user in both:
        user.write("late.py", "VERSION = 'first'\n")
    assert bob.run(*run("gpu01", "short.py")).code == 0
    ann.write("late.py", "VERSION = 'ann'\n")
    (ann.folder / "weights.bin").write_bytes(os.urandom(60 << 20))
    workdir = place(shared).parent
    with ann.start(*run("gpu00", "short.py")) as cut:
        wait_until("contents come", lambda: any(workdir.glob(".clusterddp-live/parts/*")))
        # The newest first: a sync gives its lock back when its helper has ended.
        kill_and_wait(helpers(shared.host("gpu00"))[::-1])
        assert cut.end().code == 125
    (held,) = place(shared).glob("lock.held.*")
    beat = held.stat().st_mtime - OLD_BEAT
    os.utime(held, (beat, beat))
    bob.write("late.py", "VERSION = 'bob'\n")
    done = bob.run(*run("gpu01", "short.py"))
    assert done.code == 0, done.err
    assert [said.text.split()[0] for said in done.workers] == ["bob"]
    assert not any("kept" in note for note in done.notes)
    assert [path.name for path in workdir.glob(".clusterddp*")] == [".clusterddp-live"]
