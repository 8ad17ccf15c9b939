"""Fixtures of several files here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import nothing_left

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab import Lab


@pytest.fixture
def lab_left_clean(lab: Lab) -> Iterator[None]:
    """Each test leaves no process of ours on the shared hosts."""
    with nothing_left(lab):
        yield
