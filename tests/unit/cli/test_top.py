"""When `clusterddp top` ends on a terminal."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.api.cluster import Cluster
from clusterddp.cli.main import main
from tests.unit.cli_help import folder
from tests.unit.runs.top_made import look

__all__ = ["folder"]  # fixture

if TYPE_CHECKING:
    from pathlib import Path


def test_of_a_run_that_is_over_it_looks_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def watch() -> Any:
        raise AssertionError("it looks again and again")

    over = look(state="failed", late=None, ranks=(), time_left=None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(Cluster, "top", lambda *_: SimpleNamespace(live=False, settled=lambda: over, look=watch))
    with pytest.raises(SystemExit) as ended:
        main(["top", "33n7fac6he"])
    assert not ended.value.code
    assert folder
    assert "run 33n7fac6he (night): failed" in capsys.readouterr().out
