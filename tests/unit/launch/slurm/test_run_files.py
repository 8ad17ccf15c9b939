"""Which nodes a pull under Slurm asks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import RunError, UsageError
from clusterddp.launch.launcher import FileQuery
from clusterddp.launch.slurm.run_files import _selected_nodes

if TYPE_CHECKING:
    from clusterddp.runs.view.run_view import RunView

GROUPS = {"all": ["login"], "ungrouped": ["login"]}
CLUSTER: Any = SimpleNamespace(inventory=SimpleNamespace(groups=GROUPS))


def no_run() -> RunView:
    raise AssertionError


def place(pattern: str | None = None, names: set[str] | None = None) -> FileQuery:
    return FileQuery(path="out", view=None, entries=(), pattern=pattern, names=names, last_run=no_run)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        (place(), ["gpu1", "gpu2"]),
        (place(names={"gpu2"}), ["gpu2"]),
        (place("gpu3"), ["gpu3"]),  # of an earlier attempt
        (place("gpu*"), ["gpu1", "gpu2", "gpu3"]),
        (place("gpu*", {"gpu1"}), ["gpu1"]),
    ],
)
def test_the_nodes_of_the_last_attempt_are_asked_unless_others_are_named(asked: FileQuery, meant: list[str]) -> None:
    assert _selected_nodes(CLUSTER, asked, ["gpu1", "gpu2"], ["gpu1", "gpu3"]) == meant


def test_a_pattern_that_names_none_of_them_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--host gpu7: none of gpu1, gpu2"):
        _selected_nodes(CLUSTER, place("gpu7"), ["gpu1", "gpu2"], [])


def test_a_run_whose_nodes_nobody_knows_is_told() -> None:
    with pytest.raises(RunError, match=r"nobody knows the nodes of any run any more; look for its files there by"):
        _selected_nodes(CLUSTER, place(), [], [])
