"""The guard of a command."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# Prints the answer of a guard whose command ends by itself.
CODE = """
import os, sys
from clusterddp.remote.shell.guard import GuardedCommand, GuardPipes, guard
pipes = [os.pipe() for _ in range(5)]
ends = GuardPipes(pipes[0][0], pipes[1][1], pipes[2][1], pipes[3][0], pipes[4][1])
if not os.fork():
    guard(GuardedCommand(["sleep", "0.3"], "/", dict(os.environ), float(sys.argv[1]), 1.0), ends)
for handle in ends:
    os.close(handle)
print(os.fdopen(pipes[4][0]).read())
"""


@pytest.mark.parametrize("days", [1, 25, 10**12])
def test_a_time_limit_may_be_longer_than_one_poll(days: int) -> None:
    argv = [sys.executable, "-c", CODE, str(days * 86400)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    end = json.loads(done.stdout)
    assert (end["code"], end["error"]) == (0, "")
