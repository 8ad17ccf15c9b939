"""What a run's end says of packages: which to preload, once for each project, and which were left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.project.project import find
from clusterddp.runs.view.notices import preload_notices
from clusterddp.runs.view.preload_hint import HINT_FILE, SlowImports, is_new, slow_imports
from tests.unit.runs_told import Told

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def slow(time: int, seconds: float, *modules: str) -> dict[str, object]:
    of_worker = {"start": 0, "local_rank": 0}
    return {"event": "slow_imports", "time": time, **of_worker, "seconds": seconds, "modules": [*modules]}


def test_the_last_start_of_rank_0_is_told_without_what_comes_with_another_name() -> None:
    told = Told(0), Told(1)
    told[0].fields["events"] += [slow(2, 2.41, "a.trainer", "a", "ab"), slow(1, 9.0, "old")]
    nodes = [one.node for one in told]
    found = slow_imports(nodes)
    assert found == SlowImports(modules=("a.trainer", "ab"), seconds=2.41)
    assert found
    assert found.line == (
        "2.4 s of each start went into importing a.trainer, ab: clusterddp_preload: [a.trainer, ab] would save that"
    )
    assert slow_imports(nodes[1:]) is None


def test_a_project_is_told_of_the_same_packages_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    project = find()
    one, two = (SlowImports(modules=names, seconds=2.0) for names in (("a", "b"), ("a",)))
    assert [is_new(project, found) for found in (one, one, two, two, one)] == [True, False, True, False, True]
    assert (project.folder / HINT_FILE).stat().st_mode & 0o777 == 0o600
    (project.folder / HINT_FILE).write_bytes(b"\xff" * 9999)
    assert is_new(project, one)


def test_where_nothing_can_be_kept_it_is_told_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".clusterddp").write_text("no folder")
    found = SlowImports(modules=("a",), seconds=2.0)
    assert [is_new(find(), found), is_new(find(), found)] == [True, True]


def test_equal_reasons_of_several_hosts_are_one_line() -> None:
    told = Told(0), Told(1), Told(2)
    for one, reason in zip(told, ("a: it prints", "a: it prints", "b: no"), strict=True):
        one.event("not_preloaded", 1, reason=reason)
        one.event("not_preloaded", 2, reason=reason)
    assert preload_notices([one.node for one in told]) == [
        "gpu00, gpu01: clusterddp_preload leaves out a: it prints",
        "gpu02: clusterddp_preload leaves out b: no",
    ]
