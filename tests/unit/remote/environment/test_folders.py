"""Environments on a host: when one is whole, and what tells that two have the same installed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.environment import install_operations
from clusterddp.remote.environment.folders import BuiltEnvironment, EnvironmentStore, installed_digest
from clusterddp.remote.helper.request import Request
from clusterddp.remote.system.bootstrap import Refused

if TYPE_CHECKING:
    from pathlib import Path

IDENT = "a" * 64


def environment(place: Path, *rows: str) -> str:
    """A folder with one installed package; its digest."""
    packages = place / "lib" / "python3.11" / "site-packages" / "small-1.0.dist-info"
    packages.mkdir(parents=True, exist_ok=True)
    (packages / "RECORD").write_text("".join(f"{row}\n" for row in rows))
    return installed_digest(str(place))


def test_the_same_packages_have_the_same_digest_wherever_they_are(tmp_path: Path) -> None:
    first = environment(tmp_path / "a", "small.py,sha256=x,3", "small-1.0.dist-info/METADATA,sha256=y,4")
    own = [
        "small-1.0.dist-info/INSTALLER,sha256=1,2", "small-1.0.dist-info/REQUESTED,,", "small-1.0.dist-info/RECORD,,",
        "small-1.0.dist-info/direct_url.json,sha256=1,2", "small-1.0.dist-info/uv_cache.json,sha256=1,2",
        "__pycache__/small.cpython-311.pyc,sha256=1,2", "../../../bin/small,sha256=1,2",
    ]  # fmt: skip
    other = environment(tmp_path / "b", "small-1.0.dist-info/METADATA,sha256=y,4", *own, "small.py,sha256=x,3")
    assert first == other
    assert environment(tmp_path / "c", "small.py,sha256=z,3", "small-1.0.dist-info/METADATA,sha256=y,4") != first
    assert environment(tmp_path / "d", "small.py,sha256=x,3") != first
    assert environment(tmp_path / "e", "bin/small.py,sha256=x,3") != environment(tmp_path / "f")


def test_an_environment_is_there_only_once_all_of_it_is(tmp_path: Path) -> None:
    store = EnvironmentStore(str(tmp_path))
    store.make()
    assert (store.all(), store.ready(IDENT)) == ([], None)
    (tmp_path / "environments" / IDENT / "bin").mkdir(parents=True)
    built = BuiltEnvironment(digest="d", lock="uv.lock")
    store.complete(IDENT, built)
    assert store.ready(IDENT) is None  # its interpreter is gone
    (tmp_path / "environments" / IDENT / "bin" / "python").write_text("")
    (tmp_path / "environments" / IDENT / "bin" / "python").chmod(0o755)
    assert (store.all(), store.ready(IDENT)) == ([IDENT], built)
    for damaged in ("", "[]", '{"digest": 3}', json.dumps({"digest": "d"})):
        (tmp_path / "environments" / IDENT / "ready").write_text(damaged)
        assert store.ready(IDENT) is None
    for wrong in ("..", "a" * 63, 3, None, "A" * 64):
        with pytest.raises(Refused):
            store.folder_of(wrong)


def test_an_environment_needs_room(tmp_path: Path) -> None:
    asked = Request(0, {"state": str(tmp_path), "wheels": {}, "room": 1 << 60}, -1, -1)
    with pytest.raises(Refused, match=r"the environment needs \d+ MB, \d+ are free in "):
        install_operations.environment_lacks(asked)
