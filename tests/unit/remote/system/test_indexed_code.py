"""Modules from an open zipapp: by its index, and from sources; never by its path."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterddp.hosts.zipapp import bundle
from clusterddp.remote.shared.code.code_archive import archive, archive_with_index
from clusterddp.remote.system import indexed_code

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts are Linux")

PACKAGE = "ours"
MEMBERS = {
    f"{PACKAGE}/__init__.py": b"",
    f"{PACKAGE}/a.py": b"A = 1\ndef fail():\n    raise RuntimeError('here')\n",
    f"{PACKAGE}/deep/__init__.py": b"",
    f"{PACKAGE}/deep/b.py": b"from ..a import A\n",
    f"{PACKAGE}/scripts/c.txt": b"a script\n" * 100,
    f"{PACKAGE}/empty.txt": b"",
    "collections.py": b"raise SystemExit('not the standard library')\n",
}
# argv: the zipapp, its index or null. What a process sees that imports from it.
PROGRAM = """
import json, marshal, os, sys
names = {"__name__": "indexed_code"}
exec(open(sys.argv[3]).read(), names)
path, index = sys.argv[1], json.loads(sys.argv[2])
before = list(sys.path)
handle = os.open(path, os.O_RDONLY)
modules = marshal.loads(os.pread(handle, index[1], index[0]))[1] if index else None
import hashlib
names["install"](handle, path, modules, hashlib.sha256)
os.rename(path, path + ".moved")
import pkgutil, traceback
import ours.deep.b, ours.a
try:
    ours.a.fail()
except RuntimeError:
    text = traceback.format_exc()
missing = []
for name in ("ours.nothing", "theirs"):
    try:
        __import__(name)
    except ImportError as error:
        missing.append(error.name)
try:
    pkgutil.get_data("ours", "nothing.txt")
except OSError as error:
    missing.append(error.errno)
print(json.dumps({
    "value": ours.deep.b.A, "text": text, "missing": missing, "path": sys.path == before, "file": ours.a.__file__,
    "search": ours.__path__ + ours.deep.__path__, "data": len(pkgutil.get_data("ours", "scripts/c.txt")),
    "empty": pkgutil.get_data("ours", "empty.txt").decode(), "collections": __import__("collections").__file__,
}))
"""


def seen(zipapp: Path, index: tuple[int, int] | None) -> Any:
    source = indexed_code.__file__
    argv = [sys.executable, "-I", "-S", "-c", PROGRAM, str(zipapp), json.dumps(index), source]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(params=[False, True], ids=["sources", "index"])
def zipapp(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, tuple[int, int] | None]:
    path = tmp_path / "code.pyz"
    if not request.param:
        path.write_bytes(archive(MEMBERS))
        return path, None
    finder = Path(indexed_code.__file__).read_bytes()
    code, index = archive_with_index({**MEMBERS, f"{PACKAGE}/system/indexed_code.py": finder}, PACKAGE)
    path.write_bytes(code)
    return path, index[:2]


def test_modules_and_files_come_from_the_open_file_alone(zipapp: tuple[Path, tuple[int, int] | None]) -> None:
    path, index = zipapp
    found = seen(path, index)
    assert found["value"] == 1
    assert "raise RuntimeError('here')" in found["text"]  # the source, for people
    assert found["missing"] == ["ours.nothing", "theirs", 2]
    assert (found["path"], found["search"]) == (True, [])
    assert found["file"] == f"{path}/ours/a.py"
    assert (found["data"], found["empty"]) == (900, "")
    assert not found["collections"].startswith(str(path))


@pytest.mark.parametrize("place", ["middle", "end"])
def test_a_damaged_archive_is_removed_and_said(tmp_path: Path, place: str) -> None:
    path = tmp_path / "code.pyz"
    data = bytearray(archive(MEMBERS))
    at = data.index(b"ours/scripts/c.txt") + 20 if place == "middle" else len(data) - 20
    data[at] ^= 255
    path.write_bytes(data)
    with path.open("rb") as stream:
        loader = indexed_code.IndexedCode(stream.fileno(), str(path), None, lambda _data: None)
        with pytest.raises(ImportError, match="was damaged, and is removed: the next connection brings it anew"):
            loader.get_data(f"{path}/ours/scripts/c.txt")
    assert not path.exists()


def test_another_file_that_has_taken_its_place_is_left(tmp_path: Path) -> None:
    path = tmp_path / "code.pyz"
    path.write_bytes(b"damaged")
    with path.open("rb") as stream:
        path.rename(tmp_path / "old")
        path.write_bytes(b"new")
        loader = indexed_code.IndexedCode(stream.fileno(), str(path), None, lambda _data: None)
        with pytest.raises(ImportError, match="was damaged"):
            loader.find_spec("ours")
    assert path.read_bytes() == b"new"


def test_our_own_archive_is_read_as_zipfile_reads_it() -> None:
    import io  # noqa: PLC0415 - beside its use
    import os  # noqa: PLC0415 - the same
    import zipfile  # noqa: PLC0415 - the same

    code = bundle().code
    handle = os.memfd_create("code")
    os.write(handle, code)
    loader = indexed_code.IndexedCode(handle, "/code", None, lambda _data: None)
    with zipfile.ZipFile(io.BytesIO(code)) as wanted:
        names = wanted.namelist()
        assert len(names) > 100
        assert all(loader.get_data(f"/code/{name}") == wanted.read(name) for name in names)
    os.close(handle)
