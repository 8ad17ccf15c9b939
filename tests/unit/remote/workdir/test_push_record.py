"""The record of pushes: read as it was written; a damaged one is as none, so the files there are the host's own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings

from clusterddp.remote.shared.workdir.manifest import FILE, Entry, link_entry, stats_of
from clusterddp.remote.workdir.push_record import PushRecord, pushed_files, pushed_in
from tests.unit.json_values import VALUES

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder with the record of a file and a link that were pushed to ``there``."""
    there = tmp_path / "there"
    there.mkdir()
    (there / "data").write_text("1")
    record = PushRecord(str(tmp_path / "state"), bytes(there))
    stats = stats_of((there / "data").stat())
    record.complete([Entry("data", FILE, False, 1, "c"), link_entry("link", "data")], {}, lambda _: stats)
    return tmp_path / "state"


def test_what_was_pushed_is_known_by_its_stats(state: Path) -> None:
    (pushed,) = pushed_files(str(state))
    info = (state.parent / "there" / "data").stat()
    stats = [info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino]
    assert (pushed.files, pushed.links) == ([("data", (stats, ["c"]))], (("link", "data"),))
    assert pushed_in(str(state), bytes(state.parent)) == {"there/data": stats}
    record = PushRecord(str(state), bytes(state.parent / "there"))
    record.choose([Entry("data", FILE, False, 1, "new"), link_entry("link", "new")], overwrite=False)
    assert [entry.content for entry in record.entries] == ["c", "data"]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("name", ["root", "boot", "at", "files", "links", "placing"])
@given(value=VALUES)
def test_a_damaged_record_is_as_none(state: Path, name: str, value: Any) -> None:
    (file,) = (state / "pushed").iterdir()
    whole = file.read_text()
    file.write_text(json.dumps({**json.loads(whole), name: value}))
    try:
        assert isinstance(pushed_in(str(state), b"/"), dict)
        record = PushRecord(str(state), bytes(state.parent / "there"))
        record.choose([Entry("data", FILE, False, 1, "c")], overwrite=False)
        assert isinstance(record.entries, list)
    finally:
        file.write_text(whole)


@pytest.mark.parametrize(
    "files", [[["other", [[], ["c"]]]], [["other", [[1, 2, 3, 4], []]]], [["other", [[1], ["c"]]]]]
)
def test_a_file_without_stats_or_chunks_damages_a_record(state: Path, files: list[Any]) -> None:
    (file,) = (state / "pushed").iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), "files": files}))
    record = PushRecord(str(state), bytes(state.parent))  # of the folder above
    record.choose([Entry("there/data", FILE, False, 1, "new")], overwrite=False)
    assert record.entries == []
