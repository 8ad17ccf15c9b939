"""What whoever follows a run is told meanwhile: restarts with their reason, a silence of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, User, nothing_left
from tests.lab.system import wait_until
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab import Lab

need_torch()
pytestmark = pytest.mark.torch

BROKEN, FOLLOWED, FIRST, SECOND = ("/tmp/it has failed once", "/tmp/followed", "/tmp/first go", "/tmp/second go")
FAILS_ONCE = f"""{WAIT}
if os.environ["RANK"] == "1" and not os.path.exists({BROKEN!r}):
    print("first", flush=True)
    wait_for({FOLLOWED!r})
    open({BROKEN!r}, "w").close()
    raise ValueError("loss is NaN")
wait_for({BROKEN!r} if os.environ["RANK"] == "1" else {FIRST!r})
"""
SAYS_LITTLE = f"""{WAIT}
print("one", flush=True)
wait_for({FIRST!r})
print("two", flush=True)
wait_for({SECOND!r})
"""


@pytest.fixture
def user(lab: Lab, tmp_path: Path) -> Iterator[User]:
    user = User(tmp_path)
    lab.write_inventory(user.folder / "inventory.yaml", hosts=["gpu00", "gpu01"])
    user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    user.write("fails.py", FAILS_ONCE)
    user.write("silent.py", SAYS_LITTLE)
    with nothing_left(lab):
        yield user
    for host in lab.hosts[:2]:
        host.run(["rm", "-f", BROKEN, FOLLOWED, FIRST, SECOND])


def test_a_restart_is_told_with_its_reason_and_counted_in_the_end(user: User, lab: Lab) -> None:
    """Also one that prints nothing, and with the lines of another rank only."""
    line = 1 + FAILS_ONCE.splitlines().index('    raise ValueError("loss is NaN")')
    restart = f"restart 1 of 3: rank 1 failed with ValueError: loss is NaN (fails.py:{line})"
    with user.start("run", "--show", "0", "--max-restarts", "3", "fails.py") as live:
        run = live.run
        with user.start("logs", "--follow", run) as other:
            other.wait_for("[1 gpu01:0] first")
            lab.host("gpu01").write(FOLLOWED, "")
            for follower in (live, other):
                follower.wait_for(restart, stream="err")
            lab.host("gpu00").write(FIRST, "")
            done, followed = live.end(), other.end()
    assert (done.code, followed.code) == (0, 0)
    assert done.notes[-1].startswith(f"run {run} succeeded after 1 restart, in ")
    assert followed.notes[-1] == f"run {run}: succeeded after 1 restart"
    for ended in (done, followed):
        assert [note for note in ended.notes if "restart 1" in note or note.startswith("round")] == [restart]
    status = user.status(run)
    assert (status["state"], status["round"], status["verdict"]) == ("succeeded", 1, "succeeded after 1 restart")


def test_a_silence_of_all_ranks_is_told_once_with_what_shows_where_they_are(user: User, lab: Lab) -> None:
    def told() -> list[str]:
        return [line for line in live.text("err").splitlines() if "no rank has printed for " in line]

    with user.start("run", "--silence", "0.3s", "silent.py") as live:
        live.wait_for("[0 gpu00:0] one")
        live.wait_for("[1 gpu01:0] one")
        wait_until("the silence is told", lambda: len(told()) == 1)
        assert told()[0].endswith(f"; `clusterddp why {live.run}` says what they wait for")
        for host in lab.hosts[:2]:
            host.write(FIRST, "")
        wait_until("the next one is told", lambda: len(told()) == 2)
        for host in lab.hosts[:2]:
            host.write(SECOND, "")
        done = live.end()
    assert done.code == 0, done.err
    assert len(told()) == 2
