"""The checks before a run, on real hosts: what would hang is refused with its cause; a smaller run takes who passes.

Which checks those are, and judgements over made facts: tests/unit/launch/test_preflight.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, Done, User, nothing_left
from tests.integration.complaint import one_line
from tests.integration.doctor.test_doctor import dropped_in, no_new_ephemeral, small_shm
from tests.remedies import remedy
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from tests.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.torch]
need_torch()
SICK = "gpu01"
GO_ON = remedy("launch/preflight.py", "{}; or go on all the same: --skip {}")


@pytest.fixture(scope="module")
def user(three: Lab, tmp_path_factory: pytest.TempPathFactory) -> User:
    made = User(tmp_path_factory.mktemp("user"))
    made.write("hosts.py", "import os; print(os.environ['CLUSTERDDP_HOST'])\n")
    made.up(three.inventory)
    return made


def planned(done: Done) -> list[str]:
    """The hosts that a dry run would start."""
    assert done.code == 0, done.err
    return [line.split()[-1] for line in done.lines if line.startswith("# node ")]


def test_a_firewall_is_named_in_place_of_a_hang(three: Lab, user: User) -> None:
    assert planned(user.run("run", "--dry-run", "hosts.py")) == [host.name for host in three.hosts]
    with nothing_left(three), no_new_ephemeral(three.host(SICK)):
        holds = (f"{SICK}: gpu00 → {SICK}, gpu02 → {SICK} on ephemeral ports: no answer", "--skip network")
        why = one_line(user.run("run", "hosts.py"), 125, *holds)
        assert planned(user.run("run", "--dry-run", "--skip", GO_ON.printed(why)[1], "hosts.py"))
        assert planned(user.run("run", "--dry-run", "--no-doctor", "hosts.py"))
    with dropped_in(three.host(SICK)):
        one_line(user.run("run", "hosts.py"), 125, f"{SICK}: gpu00 → {SICK}, gpu02 → {SICK} on 29400-29499: no answer")


def test_a_check_that_fails_refuses_and_a_skipped_one_does_not(three: Lab, user: User) -> None:
    with small_shm(three.host(SICK)):
        done = user.run("run", "hosts.py")
        why = one_line(done, 125, f"{SICK}: only 64 MiB are free in /dev/shm", "--skip shm")
        refused = one_line(user.run("up", str(three.inventory)), 1)  # no host is ready that a run would refuse
        assert refused.replace(f" -i {three.inventory}", "") == why
        taken = user.run("up", str(three.inventory), "--skip", "shm")
        assert (taken.code, taken.notes[-1].partition(":")[0]) == (0, "ready but for what --skip shm leaves out")
        assert planned(user.run("run", "--dry-run", "--skip", "shm", "hosts.py"))
    one_line(user.run("run", "--skip", "sshm", "hosts.py"), 125, "'sshm' is no check", "doctor --list")


def test_a_host_that_run_would_refuse_does_not_join_either_until_its_check_is_skipped(three: Lab, user: User) -> None:
    user.write("waits.py", WAIT + "print(os.environ['WORLD_SIZE'], flush=True)\nwait_for('/never')\n")
    both = ("run", "--limit", f"gpu00,{SICK}")
    with (
        nothing_left(three),
        small_shm(three.host(SICK)),
        user.start("run", "--limit", "gpu00", "--nnodes", "1:2", "--max-restarts", "1", "waits.py") as live,
    ):
        live.wait_for("1")
        why = one_line(user.run(*both, "hosts.py"), 125, f"{SICK}: only 64 MiB are free in /dev/shm", "--skip shm")
        assert one_line(user.run(*both, "--join", live.run), 125) == why
        assert user.run(*both, "--join", live.run, "--skip", "shm").code == 0
        live.wait_for("[0 gpu00:0] 2")
        user.run("stop", live.run, "--grace", "0")
        live.end()


def test_a_smaller_run_takes_the_first_hosts_that_pass(three: Lab, user: User) -> None:
    done = user.run("run", "--dry-run", "--nnodes", "2", "hosts.py")
    assert (planned(done), done.notes[-1]) == (["gpu00", "gpu01"], "not used: gpu02")
    with nothing_left(three), small_shm(three.host(SICK)):
        done = user.run("run", "--nnodes", "2", "hosts.py")
        assert (done.code, sorted(line.text for line in done.workers)) == (0, ["gpu00", "gpu02"])
        assert f"left out: {SICK}: only 64 MiB are free in /dev/shm" in done.notes
        one_line(user.run("run", "--nnodes", "3", "hosts.py"), 125, f"2 of 3 nodes can take part: {SICK}: only 64 MiB")
    with dropped_in(three.host("gpu00")):
        done = user.run("run", "--dry-run", "--nnodes", "2", "hosts.py")
        assert planned(done) == ["gpu01", "gpu02"]
        assert any(note.startswith("left out: gpu00: gpu01 → gpu00, gpu02 → gpu00 on 29400") for note in done.notes)
