"""Resuming from an earlier ``logs --json``: every line of the file is checked where it is read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings

from clusterddp.errors import UsageError
from clusterddp.logs.resume import offsets_after, read_lines
from tests.unit.json_values import VALUES

if TYPE_CHECKING:
    from pathlib import Path

LINE: dict[str, Any] = {
    "time": 1.5, "time_error_ms": 0.1, "run": "r1", "attempt": 0, "round": 0, "rank": 3, "host": "gpu01",
    "local_rank": 1, "stream": "out", "offset": 10, "next": 14, "text": "abc",
}  # fmt: skip


def written(folder: Path, *lines: object) -> Path:
    path = folder / "lines.json"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_reading_goes_on_after_the_last_line_of_each_file(tmp_path: Path) -> None:
    path = written(tmp_path, LINE, {**LINE, "offset": 14, "next": 20}, {**LINE, "stream": "err", "next": 4})
    assert offsets_after(read_lines(path, "r1")) == {0: {"gpu01": {"0.1.out": 20, "0.1.err": 4}}}


@pytest.mark.parametrize(
    "changed", [{"next": "20"}, {"attempt": None}, {"host": []}, {"local_rank": "1"}, {"next": -1}, {"run": 5}]
)
def test_a_line_with_a_wrong_value_is_one_error(tmp_path: Path, changed: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="line 2 is none of `logs --json`"):
        list(read_lines(written(tmp_path, LINE, LINE | changed), "r1"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(value=VALUES)
def test_whatever_the_file_holds_it_is_offsets_or_one_error(tmp_path: Path, value: object) -> None:
    for line in (value, *({**LINE, name: value} for name in LINE)):
        try:
            offsets_after(read_lines(written(tmp_path, line), "r1"))
        except UsageError:
            continue
