"""The order in which pytest-xdist gets test files: longest first by recorded seconds, so that none ends late.

make durations      # runs the tests and records anew
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    import pytest

RECORDED = Path(__file__).with_name("durations.json")  # seconds by file, below this folder
WORTH = 5.0  # seconds; what takes less below unit/ may come in any order
NEW = 40.0  # seconds that are assumed of a file with hosts that was never recorded: none of them ends late


def longest_first(items: list[pytest.Item]) -> None:
    """Sort tests in place by the time of their files; the same in every process."""
    known: dict[str, float] = json.loads(RECORDED.read_text())

    def seconds(item: pytest.Item) -> float:
        name = item.path.relative_to(RECORDED.parent).as_posix()
        return known.get(name, 0.0 if _quick(name) else NEW)

    items.sort(key=seconds, reverse=True)


def record(*reports: Path) -> None:
    """Write the file anew from JUnit reports."""
    seconds: dict[str, float] = defaultdict(float)
    for case in (case for report in reports for case in ET.parse(report).iter("testcase")):
        name = _file(case.get("classname", ""))
        if name:
            seconds[name] += float(case.get("time", 0))
    longest = sorted(seconds.items(), key=lambda one: -one[1])
    kept = {name: round(taken) for name, taken in longest if taken >= WORTH or not _quick(name)}
    RECORDED.write_text(json.dumps(kept, indent=1) + "\n")


def _quick(name: str) -> bool:
    """Whether a file has no hosts."""
    return name.startswith("unit/")


def _file(module: str) -> str:
    """`unit/test_x.py` of `tests.unit.test_x.TestClass`."""
    parts = module.split(".")[1:]
    while parts and not (RECORDED.parent / Path(*parts)).with_suffix(".py").exists():
        parts.pop()
    return Path(*parts).with_suffix(".py").as_posix() if parts else ""


if __name__ == "__main__":
    record(*map(Path, sys.argv[1:]))
