"""What `down` says of a host when it has cleared up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.cli.commands.down import say_cleaned
from clusterddp.runs.cleanup import Cleaned

if TYPE_CHECKING:
    from collections.abc import Mapping

SAID: list[tuple[Mapping[str, Any], list[str]]] = [
    ({}, ["gpu00: nothing to remove"]),
    (
        {"spools": 1, "run_dirs": 2, "helpers": 1, "bytes": 1_310_000_000, "gone": True},
        ["gpu00: removed 1 spool, 2 run dirs, 1 helper (1.31 GB); nothing of clusterddp is left"],
    ),
    (
        {"kept": ("r1",), "workdirs": (("/data/x", 0), ("/data/y", 1), ("/data/z", 40))},
        [
            "gpu00: nothing to remove",
            "gpu00: kept run r1: it has processes here; `clusterddp stop r1` says which",
            "gpu00: left alone: /data/x, last synced today; no run here speaks of it",
            "gpu00: left alone: /data/y, last synced 1 day ago; no run here speaks of it",
            "gpu00: left alone: /data/z, last synced 40 days ago; no run here speaks of it",
        ],
    ),
    ({"error": "gpu00: no route to host"}, ["gpu00: no route to host; `clusterddp down` again finishes the work"]),
]


@pytest.mark.parametrize(("told", "lines"), SAID, ids=[lines[-1][:30] for _, lines in SAID])
def test_a_line_for_everything(capsys: pytest.CaptureFixture[str], told: Mapping[str, Any], lines: list[str]) -> None:
    say_cleaned(Cleaned(host="gpu00", **told))
    assert capsys.readouterr().err.splitlines() == [f"clusterddp: {line}" for line in lines]
