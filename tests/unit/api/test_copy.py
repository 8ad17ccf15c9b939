"""Where what is pulled of a run comes to: whatever name hosts tell of it, below the destination."""

from __future__ import annotations

import pytest

from clusterddp.api.copy import _folder_of
from clusterddp.runs.run_view import run_views
from tests.unit.runs_told import Told


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("night run", "night run"), (None, "r1"), ("../../home/me/.ssh", "r1"), ("/etc", "r1"), ("..", "r1"),
        (".git", "r1"), ("a/b", "r1"), ("\ud800", "r1"),
    ],
)  # fmt: skip
def test_a_folder_has_the_runs_name_unless_that_leads_elsewhere(name: str | None, folder: str) -> None:
    (view,) = run_views([Told(run="r1", name=name).node], ())
    assert _folder_of(view) == folder
