"""Each test of the command line begins and ends with a line that has named no folder and no inventory."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from clusterddp.cli.command_lines import forget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def _no_line_before() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that makes stdout, as it is when called, a terminal of so many columns."""

    def make_terminal(columns: int) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(columns))

    return make_terminal
