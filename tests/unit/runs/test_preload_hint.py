"""What a run's end says of packages: which to preload, once for each project, and which were left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterddp.project import find
from clusterddp.runs.notices import preload_notices
from clusterddp.runs.preload_hint import TOLD, SlowImports, is_new, slow_imports

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def slow(time: int, seconds: float, *modules: str) -> dict[str, object]:
    return {"event": "slow_imports", "time": time, "start": 0, "local_rank": 0, "seconds": seconds, "modules": modules}


def test_the_last_start_of_rank_0_is_told_without_what_comes_with_another_name() -> None:
    nodes: list[dict[str, Any]] = [
        {"host": "gpu00", "events": [slow(2, 2.41, "a.trainer", "a", "ab"), slow(1, 9.0, "old")]},
        {"host": "gpu01", "events": []},
    ]
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
    assert (project.folder / TOLD).stat().st_mode & 0o777 == 0o600
    (project.folder / TOLD).write_bytes(b"\xff" * 9999)
    assert is_new(project, one)


def test_where_nothing_can_be_kept_it_is_told_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".clusterddp").write_text("no folder")
    found = SlowImports(modules=("a",), seconds=2.0)
    assert [is_new(find(), found), is_new(find(), found)] == [True, True]


def test_equal_reasons_of_several_hosts_are_one_line() -> None:
    events = [{"event": "not_preloaded", "reason": "a: it prints"}] * 2
    nodes = [{"host": f"gpu0{number}", "events": events} for number in range(3)]
    nodes[2] = {"host": "gpu02", "events": [{"event": "not_preloaded", "reason": "b: no"}]}
    assert preload_notices(nodes) == [
        "gpu00, gpu01: clusterddp_preload leaves out a: it prints",
        "gpu02: clusterddp_preload leaves out b: no",
    ]
