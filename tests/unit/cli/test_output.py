"""Streams that cannot encode every sign of ours."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from clusterddp.checks.model import CheckResult
from clusterddp.cli.doctor_tables import print_doctor
from clusterddp.cli.output import have_plain_signs, say


def result(verdict: str, message: str) -> CheckResult:
    return CheckResult(name="shm", category="machine", verdict=verdict, hosts=("gpu00",), message=message)  # type: ignore[arg-type]


def test_signs_that_an_ascii_terminal_cannot_show_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.BytesIO(), io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="ascii"))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(err, encoding="ascii"))
    have_plain_signs()
    print_doctor([result("fail", "a → b…"), result("pass", "5 × 3")], verbose=True)
    say("host gpü00 – 3 ± 1")
    sys.stdout.flush()
    sys.stderr.flush()
    assert "[x] machine" in out.getvalue().decode("ascii")
    assert "a -> b..." in out.getvalue().decode("ascii")
    assert err.getvalue() == b"clusterddp: host gp\\xfc00 - 3 +- 1\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_command_ends_well_whatever_the_streams_encoding(encoding: str) -> None:
    argv = [sys.executable, "-m", "clusterddp.cli.main", "doctor", "--list"]
    done = subprocess.run(argv, env={**os.environ, "PYTHONIOENCODING": encoding}, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode(encoding)
