"""How long a worker may take to end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.remote.system.bootstrap import write_json
from clusterddp.remote.worker.grace import LOST_GRACE, grace

if TYPE_CHECKING:
    from pathlib import Path


def test_it_is_the_runs_own_until_a_host_of_the_workers_round_is_gone(tmp_path: Path) -> None:
    path = str(tmp_path / "peers.json")
    first = grace(str(tmp_path), 30.0)
    assert first() == 30.0
    write_json(path, {"gone": []})
    assert first() == 30.0
    write_json(path, {"gone": ["gpu01"]})
    assert first() == LOST_GRACE
    assert grace(str(tmp_path), 0.5)() == 0.5
    again = grace(str(tmp_path), 30.0)  # of a worker that was started without that host
    assert again() == 30.0
    write_json(path, {"gone": ["gpu01", "gpu02"]})
    assert again() == LOST_GRACE


def test_what_is_damaged_shortens_nothing(tmp_path: Path) -> None:
    (tmp_path / "peers.json").write_text("{")
    assert grace(str(tmp_path), 30.0)() == 30.0
