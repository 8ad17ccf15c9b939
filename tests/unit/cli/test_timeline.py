"""What `run --timeline` records while a run is started and followed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.cli.timeline import record_timeline
from clusterddp.errors import RunError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_that_can_no_longer_be_written_is_said_and_the_end_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = SimpleNamespace(id="r1")
    cluster: Any = SimpleNamespace(launched=run, find_view=lambda _: SimpleNamespace(nodes=()))
    file = tmp_path / "gone" / "start.html"
    with record_timeline(file, cluster):
        pass
    said = f"clusterddp: --timeline {file}: cannot be written (No such file or directory)\n"
    assert capsys.readouterr().err == said
    with pytest.raises(RunError, match="lost"), record_timeline(file, cluster):
        raise RunError("lost")
    assert capsys.readouterr().err == said
