"""Fixtures of several files here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.spool_writer import Writer

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    """A spool whose first worker has rank 4."""
    spool = Writer(tmp_path)
    spool.start(0, 4)
    return spool
