"""`clusterddp signal`: a notice that reaches the workers that know it, and harms none that does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User, nothing_left
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab import Lab

need_torch()
pytestmark = pytest.mark.torch

# Rank 1 has no handler; the others end by themselves on the notice.
NOTICED = """
import os, signal
rank = os.environ["RANK"]
if rank != "1":
    signal.signal(signal.SIGUSR1, lambda *_: (print("saved", flush=True), os._exit(0)))
print("begun", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def user(lab: Lab, tmp_path: Path) -> Iterator[User]:
    user = User(tmp_path)
    lab.write_inventory(user.folder / "inventory.yaml", more={"gpu00": {"clusterddp_nproc": 2}})
    user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    user.write("noticed.py", NOTICED)
    with nothing_left(lab):
        yield user


def test_a_notice_reaches_who_handles_it_and_spares_who_does_not(user: User) -> None:
    with user.start("run", "--limit", "gpu00,gpu01", "--name", "night", "noticed.py") as live:
        for rank in range(3):
            live.wait_for(f"[{rank} gpu0")
        told = user.run("signal", "night", "USR1")
        assert told.code == 1
        assert "rank 1 (gpu00:1): not sent, it does not handle SIGUSR1" in told.err
        assert told.notes[-1].endswith("SIGUSR1 sent to 2 of 3 workers")
        live.wait_for("[0 gpu00:0] saved")
        live.wait_for("[2 gpu01:0] saved")
        assert user.run("stop", "night", "--grace", "1").code == 0


def test_a_host_that_cannot_be_reached_is_told_and_the_others_get_the_notice(user: User, lab: Lab) -> None:
    cut_off = lab.host("gpu01")
    with user.start("run", "--limit", "gpu00,gpu01", "--name", "night", "noticed.py") as live:
        live.wait_for("[2 gpu01:0] begun")
        live.wait_for("[0 gpu00:0] begun")
        cut_off.reject(22)
        try:
            debug = user.run("debug", "night", "2")
            assert (debug.code, debug.notes[-1].split(": ")[0]) == (1, f"rank 2 of run {live.run} was not found"), (
                debug.err
            )
            told = user.run("signal", "night", "USR1")
            assert (told.code, told.notes[-1].split(": ")[0]) == (1, "gpu01"), told.err
            live.wait_for("[0 gpu00:0] saved")
        finally:
            cut_off.heal()
        user.run("stop", "night", "--grace", "1")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("night", "KILL"), 2, "use `clusterddp stop`"),
        (("night", "42"), 2, "use one of USR1, USR2"),
        (("nobody", "USR1"), 1, "nobody"),
        (("night",), 2, "SIGNAL"),
    ],
)
def test_what_cannot_be_sent_is_one_line(user: User, words: tuple[str, ...], code: int, said: str) -> None:
    done = user.run("signal", *words)
    assert (done.code, said in done.notes[-1]) == (code, True), done.err
