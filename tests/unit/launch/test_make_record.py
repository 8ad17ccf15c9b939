"""The part of a run's record that is known before its hosts are."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterddp.inventory import HostEntry, Inventory
from clusterddp.launch.make_record import record_without_hosts
from clusterddp.launch.options import RunOptions
from tests.unit.sync_help import project_at, tree_of


@pytest.mark.parametrize(
    ("option", "pattern", "recorded"),
    [("gpu00", "", "gpu00"), (None, "gpu0*", "gpu0*"), ("gpu00", "gpu0*", "gpu00"), (None, "", None)],
)
def test_the_inventory_and_limit_lead_to_the_hosts_from_anywhere_whoever_chose_them(
    tmp_path: Path, option: str | None, pattern: str, recorded: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    project = project_at(tmp_path / "toy")
    hosts = tuple(HostEntry(name=name, address=name) for name in ("gpu00", "gpu01"))
    inventory = Inventory(path=Path("hosts.yaml"), hosts=hosts, groups={})
    chosen = inventory.limit(pattern) if pattern else inventory
    options = RunOptions(script="train.py", limit=option)
    record = record_without_hosts("r1", project, chosen, options, tree_of(project.root), "")
    assert record.limit == recorded
    assert record.inventory == str(tmp_path / "hosts.yaml")
