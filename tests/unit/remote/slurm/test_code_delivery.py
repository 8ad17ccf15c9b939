"""Code that a login host keeps for a job's nodes, and sends them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.helper.request import Request
from clusterddp.remote.slurm.code_delivery import keep_code, slurm_arrived, slurm_broadcast
from clusterddp.remote.slurm.job_folder import JobFolder
from clusterddp.remote.system.bootstrap import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

SBCAST = """#!/bin/sh
echo "$*" >>"$(dirname "$0")/called"
[ ! -e "$(dirname "$0")/broken" ] || { echo "sbcast: error: no route to gpu02" >&2; exit 1; }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFolder:
    """A run's folder with its code; in PATH a program that stands for Slurm's."""
    program = tmp_path / "sbcast"
    program.write_text(SBCAST)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = JobFolder.of(str(tmp_path / "state"), "r1")
    (tmp_path / "state").mkdir(mode=0o700)
    keep_code(found, iter([b"", b"one", b"two"]))
    return found


def asked(folder: JobFolder, **args: object) -> Request:
    given: dict[str, Any] = {"state": folder.state, "run": "r1", "job": "7", "start": "start.7.0", **args}
    return Request(0, given, -1, -1)


def test_code_is_sent_once_for_each_start(folder: JobFolder, tmp_path: Path) -> None:
    for start in ("start.7.0", "start.7.0", "start.7.1"):
        slurm_broadcast(asked(folder, start=start))
    path = folder.file("code")
    assert (tmp_path / "called").read_text() == f"--jobid=7 --force {path} {path}\n" * 2


def test_what_sbcast_says_is_told_and_it_is_tried_again(
    folder: JobFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken").touch()
    with pytest.raises(Refused, match=r"sbcast fails: sbcast: error: no route to gpu02"):
        slurm_broadcast(asked(folder))
    (tmp_path / "broken").unlink()
    slurm_broadcast(asked(folder))
    monkeypatch.setenv("PATH", str(tmp_path / "state"))
    with pytest.raises(Refused, match="sbcast: No such file or directory"):
        slurm_broadcast(asked(folder, start="start.7.1"))


def test_a_start_waits_until_its_code_has_arrived(folder: JobFolder) -> None:
    for start in ("start.7.0", "start.7.1"):
        Path(folder.file(start)).mkdir()
        assert folder.awaiting() is None
        folder.write_awaiting(start)
        assert folder.awaiting() == start
        slurm_arrived(asked(folder, start=start))
        assert folder.awaiting() is None


@pytest.mark.parametrize("args", [{"start": "../x"}, {"job": "7; rm"}, {"run": "other"}])
def test_what_names_no_start_of_the_run_is_refused(folder: JobFolder, args: dict[str, str]) -> None:
    with pytest.raises(Refused):
        slurm_broadcast(asked(folder, **args))


def test_code_that_does_not_come_whole_is_not_kept(tmp_path: Path) -> None:
    def cut() -> Iterator[bytes]:
        yield b"one"
        raise OSError("no space")

    (tmp_path / "state").mkdir(mode=0o700)
    folder = JobFolder.of(str(tmp_path / "state"), "r1")
    keep_code(folder, iter([b""]))
    with pytest.raises(OSError, match="no space"):
        keep_code(folder, cut())
    assert not (tmp_path / "state" / "slurm" / "r1").exists()
