"""Long test files come first where several run at once."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests import order

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of tests with its record."""
    (tmp_path / "unit").mkdir()
    for name in ("unit/test_quick.py", "unit/test_long.py", "test_middle.py"):
        (tmp_path / name).touch()
    monkeypatch.setattr(order, "RECORDED", tmp_path / "durations.json")
    return tmp_path


def test_a_report_becomes_seconds_by_file_and_the_longest_comes_first(recorded: Path) -> None:
    cases = [("tests.unit.test_long.TestClass", 20), ("tests.unit.test_long", 15), ("tests.test_middle", 9), ("", 99)]
    cases += [("tests.unit.test_quick", 1)]
    reports = [recorded / "units.xml", recorded / "others.xml"]
    for report, its in zip(reports, (cases[:2], cases[2:]), strict=True):
        text = "".join(f'<testcase classname="{name}" time="{taken}.1"/>' for name, taken in its)
        report.write_text(f"<testsuites><testsuite>{text}</testsuite></testsuites>")
    order.record(*reports)
    assert json.loads((recorded / "durations.json").read_text()) == {"unit/test_long.py": 35, "test_middle.py": 9}
    files = ["unit/test_quick.py", "test_middle.py", "unit/test_long.py", "unit/test_new.py", "test_new.py"]
    items: list[Any] = [SimpleNamespace(path=recorded / name) for name in files]
    order.longest_first(items)
    in_order = [item.path.relative_to(recorded).as_posix() for item in items]
    assert in_order == ["test_new.py", "unit/test_long.py", "test_middle.py", "unit/test_quick.py", "unit/test_new.py"]


def test_every_recorded_file_is_there() -> None:
    assert [
        name for name in json.loads(order.RECORDED.read_text()) if not (order.RECORDED.parent / name).exists()
    ] == []
