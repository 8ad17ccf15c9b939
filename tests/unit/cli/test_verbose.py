"""``-v`` on this machine's own hosts, without SSH."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

import pytest

from clusterddp.cli.main import COMMANDS
from clusterddp.cli.main import main as clusterddp
from tests.unit.cli_help import command, folder, said

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["folder"]  # fixture

pytestmark = pytest.mark.usefixtures("folder")
TIMED = re.compile(r" *\d+ ms  (.*)")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_it(name: str) -> None:
    options = [parameter for parameter in command(name).params if {"-v", "--verbose"} <= {*parameter.opts}]
    assert len(options) == 1


def test_it_tells_the_way_the_operations_and_their_bytes_host_by_host(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, lines = said(capsys, "stop", "-v", "--all")
    assert code == 1, lines
    told = [match[1] for match in map(TIMED.fullmatch, lines) if match]
    for host in ("local0", "local1"):
        own = [line.removeprefix(f"{host}: ") for line in told if line.startswith(f"{host}: ")]
        patterns = [
            r"a child process on this machine",
            r"connection: \d+ ms",
            # They share a home: what one is sent may come there between the other's two looks.
            r"the helper's code (is there already(, without byte code .*)?|was sent, [\d.]+ [kM]B) \([0-9a-f]{12}\)",
            r"the helper runs: Python 3\.\S+ \(\S+\), pid \d+, state in \S+",
            r"helper: start: \d+ ms",
            r"runs begins",
            r"runs ended: \d+ ms, \d+ bytes sent, 2 bytes received",
            r"closed; \d+ bytes sent, \d+ bytes received since the hello",
        ]
        assert len(own) == len(patterns), own
        for line, pattern in zip(own, patterns, strict=True):
            assert re.fullmatch(pattern, line), line
    assert told[0].startswith("project ")
    assert logging.getLogger("clusterddp").handlers == []


def test_without_it_nothing_of_the_kind_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "stop", "-v", "--all")
    _, lines = said(capsys, "stop", "--all")
    assert [line for line in lines if TIMED.fullmatch(line)] == []


def test_secrets_and_what_a_terminal_would_obey_are_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def log(*_: object) -> list[object]:
        logging.getLogger("clusterddp").debug("%s", "gpu01: got 0123456789abcdef\x1b[2J\nand more")
        return []

    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    monkeypatch.setattr("clusterddp.api.cluster.Cluster.list_runs", log)
    _, lines = said(capsys, "runs", "-v")
    told = [match[1] for match in map(TIMED.fullmatch, lines) if match]
    assert told[-2:] == [r"gpu01: got ********\x1b[2J", "and more"]


def test_behind_the_script_it_is_the_scripts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    taken: list[object] = []

    def start(_cluster: object, options: object) -> object:
        taken.append(options)
        raise SystemExit(0)

    monkeypatch.setattr("clusterddp.api.cluster.Cluster.start", start)
    with pytest.raises(SystemExit):
        clusterddp(["run", "--detach", str(folder / "train.py"), "-v"])
    assert getattr(taken[0], "args", None) == ("-v",)
    assert not re.search(r"\d ms  ", capsys.readouterr().err)


def test_doctors_own_v_lists_what_is_well_and_tells_the_way_too(capsys: pytest.CaptureFixture[str]) -> None:
    seen = {}
    for words in (["--only", "helper"], ["--only", "helper", "-v"]):
        with pytest.raises(SystemExit):
            clusterddp(["doctor", *words])
        seen[words[-1]] = capsys.readouterr()
    assert "our helper starts on every host" not in seen["helper"].out
    assert "our helper starts on every host" in seen["-v"].out
    assert " ms  " not in seen["helper"].err
    assert re.search(r" ms  local1: the helper runs: Python 3", seen["-v"].err)
