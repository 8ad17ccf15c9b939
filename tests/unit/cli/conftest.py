"""Each test of the command line begins and ends with a line that has named no folder and no inventory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clusterddp.cli.command_lines import forget

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _no_line_before() -> Iterator[None]:
    forget()
    yield
    forget()
