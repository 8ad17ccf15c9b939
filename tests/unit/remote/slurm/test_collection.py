"""What a login host takes of an archive that a node of a job sends."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.slurm.collection import unpack
from clusterddp.remote.slurm.job_folder import JobFolder
from clusterddp.remote.system.bootstrap import Refused

if TYPE_CHECKING:
    from pathlib import Path


def archive(*members: tuple[str, bytes], link: str = "") -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1_700_000_000
            tar.addfile(info, io.BytesIO(data))
        if link:
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(info)
    out.seek(0)
    return out


def test_the_spools_and_starts_of_the_run_are_taken_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "slurm" / "r1").mkdir(parents=True)
    folder = JobFolder.of(str(tmp_path), "r1")
    (tmp_path / "slurm" / "r1" / "job.json").write_text("ours")
    members = [
        ("runs/r1/1/0-gpu01/logs/0.0.out", b"line\n"),
        ("slurm/r1/start.7.0/attempt.json", b"{}"),
        ("slurm/r1/end.json", b"{}"),
        ("slurm/r1/job.json", b"theirs"),
        ("slurm/r1/script", b"rm"),
        ("runs/r2/1/0-gpu01/exit.json", b"{}"),
    ]
    unpack(archive(*members, link="runs/r1/1/0-gpu01/plan.json"), folder)
    there = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir())
    assert there == [
        "runs/r1/1/0-gpu01/logs/0.0.out",
        "slurm/r1/end.json",
        "slurm/r1/job.json",
        "slurm/r1/start.7.0/attempt.json",
    ]
    assert (tmp_path / "slurm" / "r1" / "job.json").read_text() == "ours"
    log = tmp_path / "runs" / "r1" / "1" / "0-gpu01" / "logs" / "0.0.out"
    assert (log.read_bytes(), int(log.stat().st_mtime), log.stat().st_mode & 0o77) == (b"line\n", 1_700_000_000, 0)


@pytest.mark.parametrize("name", ["/etc/x", "runs/r1/../../x", "../x"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused, match="it names"):
        unpack(archive((name, b"x")), JobFolder.of(str(tmp_path / "state"), "r1"))
    assert not (tmp_path / "x").exists()


def test_an_archive_that_was_cut_is_an_error(tmp_path: Path) -> None:
    members = (("runs/r1/1/0-gpu01/logs/0.0.out", b"x" * 5000), ("runs/r1/1/0-gpu01/exit.json", b"{}"))
    whole = archive(*members).getvalue()
    for size in (0, 3000, 512 + 5120, 512 + 5120 + 512, 512 + 5120 + 1024):  # within a file, before and after one
        with pytest.raises((tarfile.TarError, OSError)):
            unpack(io.BytesIO(whole[:size]), JobFolder.of(str(tmp_path), "r1"))
