"""The folder of a run that Slurm starts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.slurm.folder import JobFolder
from clusterddp.remote.system.bootstrap import Refused

if TYPE_CHECKING:
    from pathlib import Path


def test_a_run_that_is_stopped_while_its_job_waits_leaves_no_secrets(tmp_path: Path) -> None:
    folder = JobFolder.of(str(tmp_path), "r1")
    secrets = tmp_path / "slurm" / "r1" / "secrets.json"
    secrets.parent.mkdir(parents=True)
    secrets.write_text(json.dumps({"TOKEN": "value"}))
    folder.order_stop("by another command", 1.0)
    assert not secrets.exists()
    order = folder.stop_order()
    assert order is not None
    assert order.reason == "by another command"
    folder.order_stop("again", 1.0)


def test_a_secret_whose_value_is_not_there_is_named(tmp_path: Path) -> None:
    folder = JobFolder(str(tmp_path))
    assert folder.secrets(()) == {}
    with pytest.raises(Refused, match=f"the value of TOKEN is not in {tmp_path}/secrets.json"):
        folder.secrets(("TOKEN",))
    (tmp_path / "secrets.json").write_text(json.dumps({"TOKEN": "value", "OTHER": "x"}))
    assert folder.secrets(("TOKEN",)) == {"TOKEN": "value"}
