"""Fixtures of several files here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def state(tmp_path: Path) -> str:
    """A host's state folder, not made yet."""
    return str(tmp_path / "state")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty workdir."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder
