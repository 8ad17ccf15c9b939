"""`breakpoint()` and `clusterddp debug` of a rank that Slurm started, by way of the login host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lean import lean_python
from tests.slurm.seen import nothing_is_left, thorough, user_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab.slurm import Slurm

pytest.importorskip("torch", reason="torchrun is part of torch")
pytestmark = pytest.mark.torch

STOPS = """
import os, threading
word = "rank " + os.environ["RANK"]
if word == "rank 1":
    breakpoint()
    print(word, flush=True)
else:
    threading.Event().wait()
"""


@thorough
@pytest.mark.parametrize("shared", ["slurm", "unshared_slurm"])
def test_a_rank_at_a_breakpoint_is_listed_attached_to_and_goes_on(
    request: pytest.FixtureRequest, tmp_path: Path, shared: str
) -> None:
    slurm: Slurm = request.getfixturevalue(shared)
    more = {} if shared == "slurm" else {"clusterddp_slurm_shared": False}
    user = user_of(slurm, tmp_path, {"stops.py": STOPS}, clusterddp_python=lean_python(), **more)
    with user.start("run", "--nnodes", "2", "stops.py") as live:
        live.wait_for("[1 gpu02:0] clusterddp: rank 1 waits at breakpoint(), stops.py:5 in <module>")
        with user.start("debug", "1", terminal=True) as terminal:
            terminal.wait_for("-> breakpoint()\r\n(Pdb) ")
            assert "somebody else is attached to rank 1" in user.run("debug", "1").err
            terminal.key("word = 'mended'\n")
            terminal.wait_for("(Pdb) ", times=2)
            terminal.key("\x04")
            assert "detached: rank 1 goes on" in terminal.end().out
        live.wait_for("[1 gpu02:0] mended")
        other = user.run("debug", "0")
        assert "rank 0 is not at a breakpoint(), and pdb cannot be attached: Python 3." in other.err
        assert "stops.py:8 in <module>" in other.out
        user.run("stop", live.run, "--grace", "0")
    nothing_is_left(slurm)
