"""The host and the project of the tests of sync; a file with another project has a fixture of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.sync_help import CKPT, FakeHost, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with code and a checkpoint, which is data."""
    folder = tmp_path / "project"
    write(folder, **{"train.py": "print(1)", CKPT: "laptop"})
    return folder


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)
