"""Several processes make the same folder at the same moment, as hosts that share a home do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from clusterddp.remote.system import code_finder

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_folder_that_another_process_makes_meanwhile_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.mkdir

    def made_twice(name: str, mode: int, *, dir_fd: int) -> None:
        real(name, mode, dir_fd=dir_fd)  # the other process
        real(name, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", made_twice)
    handle, path = code_finder.open_folder(str(tmp_path / "runs" / "1"), make=True)
    os.close(handle)
    assert path == str(tmp_path / "runs" / "1")
    assert (tmp_path / "runs" / "1").is_dir()
