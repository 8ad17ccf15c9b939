"""Environments on a host: when one is whole, and what tells that two have the same installed."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.environment import operations
from clusterddp.remote.environment.store import Store, installed_digest
from clusterddp.remote.system.bootstrap import Refused

if TYPE_CHECKING:
    from pathlib import Path

IDENT = "a" * 64


class Sent:
    """A request whose data has come."""

    def __init__(self, state: Path, *pieces: bytes, **args: Any) -> None:
        self.args = {"state": str(state), **args}
        self._pieces = [*pieces]

    def read(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    def read_all(self) -> bytes:
        raise AssertionError("a wheel may be larger than the memory")


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
    store = Store(str(tmp_path))
    store.make()
    assert (store.all(), store.ready(IDENT)) == ([], None)
    (tmp_path / "environments" / IDENT / "bin").mkdir(parents=True)
    store.written(IDENT, {"digest": "d", "lock": "uv.lock"})
    assert store.ready(IDENT) is None  # its interpreter is gone
    (tmp_path / "environments" / IDENT / "bin" / "python").write_text("")
    (tmp_path / "environments" / IDENT / "bin" / "python").chmod(0o755)
    assert (store.all(), store.ready(IDENT)) == ([IDENT], {"digest": "d", "lock": "uv.lock"})
    for damaged in ("", "[]", '{"digest": 3}', json.dumps({"digest": "d"})):
        (tmp_path / "environments" / IDENT / "ready").write_text(damaged)
        assert store.ready(IDENT) is None
    for wrong in ("..", "a" * 63, 3, None, "A" * 64):
        with pytest.raises(Refused):
            store.place(wrong)


def test_a_wheel_that_was_cut_goes_on_where_it_was_and_a_damaged_one_begins_anew(tmp_path: Path) -> None:
    data = b"wheel" * 100
    digest = hashlib.sha256(data).hexdigest()
    store = Store(str(tmp_path))

    def lacking() -> dict[str, int]:
        asked: Any = Sent(tmp_path, wheels={digest: len(data)}, room=1)
        return operations.environment_lacks(asked)

    def send(offset: int, *pieces: bytes) -> None:
        asked: Any = Sent(tmp_path, *pieces, sha256=digest, offset=offset)
        operations.environment_wheel(asked)

    assert lacking() == {digest: 0}
    with pytest.raises(Refused, match="came damaged"):
        send(0, data[:100], b"nonsense")
    assert lacking() == {digest: 0}
    with open(store.wheel(digest) + ".part", "wb") as part:  # noqa: PTH123 - as it is left by a cut
        part.write(data[:100])
    assert lacking() == {digest: 100}
    send(100, data[100:300], data[300:])
    assert lacking() == {}
    send(0, data)  # another command was slower
    assert lacking() == {}
    asked: Any = Sent(tmp_path, wheels={}, room=1 << 60)
    with pytest.raises(Refused, match=r"the environment needs \d+ MB, \d+ are free in "):
        operations.environment_lacks(asked)
