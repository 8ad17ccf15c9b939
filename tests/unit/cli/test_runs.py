"""What `clusterddp runs` ends with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.cli.main import main
from clusterddp.errors import UnreachableError
from clusterddp.hosts.client import Host
from clusterddp.runs import local_cache
from tests.unit.cli_help import folder
from tests.unit.runs_told import Told

__all__ = ["folder"]  # fixture

if TYPE_CHECKING:
    from pathlib import Path


def test_without_a_host_that_answers_the_projects_own_copies_are_listed_and_it_ends_with_1(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(*_: object) -> Any:
        raise UnreachableError("local0", "does not answer")

    monkeypatch.setattr(Host, "open", gone)
    monkeypatch.setattr(local_cache, "recent_starts", lambda _: [Told().node.record._replace(run="r1")])
    with pytest.raises(SystemExit) as ended:
        main(["runs", "--all", "--json"])
    assert ended.value.code == 1
    assert folder
    assert [view["run"] for view in json.loads(capsys.readouterr().out)] == ["r1"]
