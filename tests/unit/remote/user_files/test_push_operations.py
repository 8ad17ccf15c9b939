"""Where a push goes on a host."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.user_files.push_operations import dest_path

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("dest", "place"),
    [
        ("~", "home"), ("~/", "home"), ("~/data", "home/data"), ("~//data", "home/data"), ("./~", "work/~"),
        ("~me", "work/~me"), ("data", "work/data"), (".", "work"),
    ],
)  # fmt: skip
def test_a_tilde_is_the_home_folder_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dest: str, place: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = os.fsdecode(dest_path(str(tmp_path / "work"), dest, str(tmp_path / "state")))
    assert found.rstrip("/") == str(tmp_path / place)
