"""What `run --timeline` records while a run is started and followed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.cli.timeline import record_timeline
from clusterddp.errors import RunError
from clusterddp.runs.view.run_view import run_views
from tests.unit.runs_told import Told

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_that_can_no_longer_be_written_is_said_and_the_end_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = SimpleNamespace(id="r1")
    cluster: Any = SimpleNamespace(launched=run, find_view=lambda _: SimpleNamespace(earlier=(), nodes=()))
    file = tmp_path / "gone" / "start.html"
    with record_timeline(file, cluster):
        pass
    said = f"clusterddp: --timeline {file}: cannot be written (No such file or directory)\n"
    assert capsys.readouterr().err == said
    with pytest.raises(RunError, match="lost"), record_timeline(file, cluster):
        raise RunError("lost")
    assert capsys.readouterr().err == said


def test_what_hosts_did_in_the_first_start_is_there_also_of_a_run_that_was_relaunched(tmp_path: Path) -> None:
    first, second = Told(0), Told(0)
    first.event("agent_started", -1)
    second.fields["attempt"] = 2
    (view,) = run_views([first.node, second.node])
    cluster: Any = SimpleNamespace(launched=SimpleNamespace(id="r1"), find_view=lambda _: view)
    file = tmp_path / "start.txt"
    with record_timeline(file, cluster):
        pass
    assert "agent: imports, rendezvous" in file.read_text()
