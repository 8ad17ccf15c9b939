"""The guard of a command."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.shared.processes.exit_codes import EXIT_STOPPED

if TYPE_CHECKING:
    from pathlib import Path

# Prints the answer of a guard. Its command's input ends, or with ``cut`` its helper does.
CODE = """
import json, os, sys
from clusterddp.remote.shell.guard import GuardedCommand, GuardPipes, guard
pipes = [os.pipe() for _ in range(5)]
ends = GuardPipes(pipes[0][0], pipes[1][1], pipes[2][1], pipes[3][0], pipes[4][1], os.dup(pipes[0][1]))
if not os.fork():
    guard(GuardedCommand(json.loads(sys.argv[1]), "/", dict(os.environ), float(sys.argv[2]), 1.0), ends)
for handle in ends:
    os.close(handle)
os.write(pipes[0][1], b"half")
if sys.argv[3] == "ended":
    os.write(pipes[3][1], b"e")
for handle in (pipes[0][1], pipes[3][1])[: 1 if sys.argv[3] == "ended" else 2]:
    os.close(handle)
print(os.fdopen(pipes[4][0]).read())
"""


def guarded(command: list[str], seconds: float, input_is: str) -> dict[str, Any]:
    argv = [sys.executable, "-c", CODE, json.dumps(command), str(seconds), input_is]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("days", [1, 25, 10**12])
def test_a_time_limit_may_be_longer_than_one_poll(days: int) -> None:
    end = guarded(["sleep", "0.3"], days * 86400, "ended")
    assert (end["code"], end["error"]) == (0, "")


@pytest.mark.parametrize(("input_is", "code"), [("ended", 0), ("cut", EXIT_STOPPED)])
def test_input_that_is_cut_off_has_no_end(tmp_path: Path, input_is: str, code: int) -> None:
    part, whole = tmp_path / "part", tmp_path / "whole"
    end = guarded(["sh", "-c", f"trap '' TERM; cat > {part} && mv {part} {whole}"], 60, input_is)
    assert end["code"] == code
    assert whole.exists() == (input_is == "ended")
