"""What is sent to hosts: the sources, and byte code for those with this Python."""

from __future__ import annotations

import functools
import io
import logging
import os
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from clusterddp.hosts import zipapp
from clusterddp.remote.shared import code_archive
from tests.integration.shim_spool import INTERPRETERS, OWN, interpreter

if TYPE_CHECKING:
    from pathlib import Path

WHENCE = f"""
import sys
sys.path.insert(0, sys.argv[1])
import {zipapp.PACKAGE}.helper.loop as loop
print(loop.__file__)
"""


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the sources that nothing was compiled for."""
    copy = tmp_path / "remote"
    shutil.copytree(zipapp.REMOTE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(zipapp, "REMOTE", copy)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return copy


def members() -> set[str]:
    return set(zipfile.ZipFile(io.BytesIO(zipapp._bundle.__wrapped__().code)).namelist())


@pytest.mark.parametrize("version", INTERPRETERS)
def test_a_host_takes_the_byte_code_of_its_own_version_and_else_the_source(remote: Path, version: str) -> None:
    path = remote.with_suffix(".pyz")
    path.write_bytes(zipapp._bundle.__wrapped__().code)
    argv = [interpreter(version), "-I", "-S", "-c", WHENCE, str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{path}/{zipapp.PACKAGE}/helper/loop.{'pyc' if version == OWN else 'py'}"


def test_it_is_compiled_once_and_anew_when_a_source_changes(remote: Path) -> None:
    first = zipapp._bundle.__wrapped__()
    (kept,) = (remote / "__pycache__").iterdir()
    made = kept.stat().st_mtime_ns
    assert zipapp._bundle.__wrapped__() == first
    assert kept.stat().st_mtime_ns == made
    (remote / "helper" / "loop.py").write_text("CHANGED = True\n")
    assert zipapp._bundle.__wrapped__().digest != first.digest
    assert [path.name for path in (remote / "__pycache__").iterdir()] == [kept.name]


def test_sources_that_were_written_anew_and_are_the_same_are_not_compiled_again(
    remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = zipapp._bundle.__wrapped__()
    monkeypatch.setattr(code_archive, "indexed", Mock(side_effect=AssertionError("compiled again")))
    source = remote / "helper" / "loop.py"
    source.write_bytes(source.read_bytes())
    assert zipapp._bundle.__wrapped__() == first
    monkeypatch.setattr(zipapp, "_members", Mock(side_effect=AssertionError("read again")))
    assert zipapp._bundle.__wrapped__() == first


def test_a_change_that_leaves_size_and_time_of_a_source_is_noticed(remote: Path) -> None:
    source = remote / "helper" / "loop.py"
    source.write_text("CHANGED = 1\n")
    first, info = zipapp._bundle.__wrapped__(), source.stat()
    source.write_text("CHANGED = 2\n")
    os.utime(source, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert zipapp._bundle.__wrapped__().digest != first.digest


def test_threads_that_need_it_at_once_read_and_compile_it_once(remote: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, read = Mock(wraps=code_archive.indexed), Mock(wraps=zipapp._members)
    monkeypatch.setattr(code_archive, "indexed", made)
    monkeypatch.setattr(zipapp, "_members", read)
    monkeypatch.setattr(zipapp, "_bundle", functools.cache(zipapp._bundle.__wrapped__))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: zipapp.bundle(), range(4)))
    assert (made.call_count, read.call_count, len({one.digest for one in found})) == (1, 1, 1)
    assert len(list((remote / "__pycache__").iterdir())) == 1


@pytest.mark.parametrize("forbidden", ["by its owner", "by the environment"])
def test_where_byte_code_cannot_be_kept_the_sources_go_alone(
    remote: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, forbidden: str
) -> None:
    caplog.set_level(logging.DEBUG, "clusterddp")
    if forbidden == "by its owner":
        (remote / "__pycache__").write_text("in the way of the folder")
    else:
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert not [name for name in members() if name.endswith(".pyc")]
    reason = "cannot be kept here" if forbidden == "by its owner" else "PYTHONDONTWRITEBYTECODE"
    assert len(caplog.messages) == 1
    assert "helpers run from sources" in caplog.text
    assert reason in caplog.text
    assert f"{zipapp.PACKAGE}/helper/loop.py" in members()
