"""Whom an agent need not wait for, as its supervisor keeps it in a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.rendezvous.gone import Gone
from clusterddp.remote.system.bootstrap import write_json

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("gpu00", "gpu01", "gpu02")


def test_nobody_is_gone_before_the_supervisor_says_so(tmp_path: Path) -> None:
    assert Gone(str(tmp_path / "peers.json"), NAMES)() == set()


def test_it_follows_the_file(tmp_path: Path) -> None:
    path = str(tmp_path / "peers.json")
    gone = Gone(path, NAMES)
    for names, numbers in ((["gpu02"], {2}), (["gpu01", "gpu02", "joined"], {1, 2}), ([], set())):
        write_json(path, {"gone": names}, durable=False)
        assert gone() == numbers


@pytest.mark.parametrize("data", ["", "[]", "{}", '{"gone": 1}', '{"gone": [[]]}', "[" * 100_000])
def test_what_is_damaged_changes_nothing(tmp_path: Path, data: str) -> None:
    path = tmp_path / "peers.json"
    path.write_text(json.dumps({"gone": ["gpu01"]}))
    gone = Gone(str(path), NAMES)
    assert gone() == {1}
    path.write_text(data)
    assert gone() == {1}
