"""Frequent commands import few modules on a host, because each import costs CPU on every host."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from clusterddp.hosts.zipapp import PACKAGE, bundle

if TYPE_CHECKING:
    from pathlib import Path

EXPENSIVE = {
    "bz2", "collections", "ctypes", "enum", "functools", "hashlib", "importlib", "json", "re", "selectors", "shutil",
    "signal", "socket", "subprocess", "threading", "typing",
}  # fmt: skip
LISTS = f"""
import marshal, os, sys
handle = os.open(sys.argv[1], os.O_RDONLY)
program, modules = marshal.loads(os.pread(handle, int(sys.argv[3]), int(sys.argv[2])))
names = {{"__name__": "indexed_code"}}
exec(program, names)
sha256 = __import__("_sha2" if sys.version_info >= (3, 12) else "_sha256").sha256
names["install"](handle, sys.argv[1], modules, sha256)
__import__("{PACKAGE}.helper.loop")
__import__("{PACKAGE}." + sys.argv[4])
print(*sys.modules)
"""


@pytest.mark.parametrize(
    "module", ["__main__", "shell.execute", "supervisor.status_operation", "workdir.sync_operations", "probes.clock"]
)
def test_it_is_next_to_nothing(tmp_path: Path, module: str) -> None:
    made, path = bundle(), tmp_path / "code.pyz"
    path.write_bytes(made.code)
    assert made.index
    argv = [sys.executable, "-I", "-S", "-c", LISTS, str(path), str(made.index.offset), str(made.index.size), module]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert f"{PACKAGE}.{module}" in done.stdout.split()
    assert EXPENSIVE & {*done.stdout.split()} == set()
