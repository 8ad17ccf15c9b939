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

from clusterddp.hosts import code_cache, zipapp
from clusterddp.remote.shared.code import code_archive
from tests.pythons import INTERPRETERS, OWN, interpreter

if TYPE_CHECKING:
    from pathlib import Path

IMPORTED = {"helper", "shared", "system"}  # a quarter of the sources: all take a second to compile
WHENCE = f"""
import sys
sys.path.insert(0, sys.argv[1])
import {zipapp.PACKAGE}.helper.loop as loop
print(loop.__file__)
"""


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what every helper imports of the sources, which nothing was compiled for."""
    copy = tmp_path / "remote"
    others = {path.name for path in zipapp.REMOTE.iterdir() if path.is_dir()} - IMPORTED
    shutil.copytree(zipapp.REMOTE, copy, ignore=shutil.ignore_patterns(*others, "__pycache__"))
    monkeypatch.setattr(zipapp, "REMOTE", copy)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
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


@pytest.mark.parametrize("version", INTERPRETERS)
def test_what_looks_for_the_code_is_compiled_by_hosts_with_another_python_alone(remote: Path, version: str) -> None:
    made = zipapp._bundle.__wrapped__()
    (remote / "system" / "code_finder.py").write_text("raise SystemExit(77)\n")
    _, _, program = made.opening(interpreter=None, fallback=None, state=str(remote)).split(b"\n", 2)
    argv = [interpreter(version), "-I", "-S", "-c", zipapp._LOADER]
    done = subprocess.run(argv, input=program, capture_output=True, check=False)
    found = (done.returncode == 77, done.stdout == f"{zipapp.MAGIC_WORD} unknown\n".encode())
    assert found == ((False, True) if version == OWN else (True, False)), done


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
    monkeypatch.setattr(code_archive, "archive_with_index", Mock(side_effect=AssertionError("compiled again")))
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
    made, read = Mock(wraps=code_archive.archive_with_index), Mock(wraps=zipapp._members)
    monkeypatch.setattr(code_archive, "archive_with_index", made)
    monkeypatch.setattr(zipapp, "_members", read)
    monkeypatch.setattr(zipapp, "_bundle", functools.cache(zipapp._bundle.__wrapped__))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: zipapp.bundle(), range(4)))
    assert (made.call_count, read.call_count, len({one.digest for one in found})) == (1, 1, 1)
    assert len(list((remote / "__pycache__").iterdir())) == 1


def test_the_environments_word_on_byte_code_beside_modules_is_not_for_what_hosts_get(
    remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert [name for name in members() if name.endswith("helper/loop.pyc")]
    monkeypatch.setattr(code_archive, "archive_with_index", Mock(side_effect=AssertionError("compiled again")))
    assert zipapp._bundle.__wrapped__().index
    assert len(list((remote / "__pycache__").iterdir())) == 1


@pytest.fixture
def read_only(remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, where the package's folder takes no file."""
    (remote / "__pycache__").write_text("in the way of the folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "clusterddp"


def test_where_the_package_cannot_be_written_byte_code_is_kept_in_the_users_cache(
    read_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = zipapp._bundle.__wrapped__()
    assert first.index
    (kept,) = read_only.iterdir()
    assert [path.stat().st_mode & 0o777 for path in (kept, read_only, read_only.parent)] == [0o600, 0o700, 0o700]
    monkeypatch.setattr(code_archive, "archive_with_index", Mock(side_effect=AssertionError("compiled again")))
    monkeypatch.setattr(zipapp, "_members", Mock(side_effect=AssertionError("read again")))
    assert zipapp._bundle.__wrapped__() == first


def test_the_cache_keeps_the_newest_copies_of_installations_alone(read_only: Path) -> None:
    read_only.mkdir(parents=True, mode=0o700)
    for number in range(9):
        (read_only / f"remote-{number}.pyz").write_bytes(b"old")
        os.utime(read_only / f"remote-{number}.pyz", (number, number))
    zipapp._bundle.__wrapped__()
    names = {path.name for path in read_only.iterdir()}
    assert len(names) == code_cache.MAX_COPIES
    assert {"remote-6.pyz", "remote-7.pyz", "remote-8.pyz"} < names


@pytest.mark.parametrize("planted", ["open folder", "open file", "link", "pipe"])
def test_a_copy_that_another_user_may_have_written_is_never_sent(read_only: Path, tmp_path: Path, planted: str) -> None:
    zipapp._bundle.__wrapped__()
    (kept,) = read_only.iterdir()
    data = kept.read_bytes()
    forged = data.replace(b"clusterddp_remote", b"clusterddp_forged")
    assert forged.startswith(data[:32])  # it would pass for what belongs to these sources
    kept.unlink()
    if planted == "link":
        (tmp_path / "theirs").write_bytes(forged)
        kept.symlink_to(tmp_path / "theirs")
    elif planted == "pipe":
        os.mkfifo(kept, 0o600)
    else:
        kept.write_bytes(forged)
        (kept if planted == "open file" else read_only).chmod(0o777)
    found = zipapp._bundle.__wrapped__()
    assert b"clusterddp_forged" not in found.code
    assert f"{zipapp.PACKAGE}/helper/loop.py" in zipfile.ZipFile(io.BytesIO(found.code)).namelist()


@pytest.mark.usefixtures("read_only")
def test_a_copy_that_is_another_users_is_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    first = zipapp._bundle.__wrapped__()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    found = zipapp._bundle.__wrapped__()
    assert (found.index, found.digest != first.digest) == (None, True)


def test_where_nothing_can_be_kept_the_sources_go_alone_and_each_host_keeps_its_own(
    read_only: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "clusterddp")
    read_only.parent.write_text("in the way of the folder")
    assert not [name for name in members() if name.endswith(".pyc")]
    assert len(caplog.messages) == 1
    assert "helpers run from sources" in caplog.text
    assert "cannot be kept here" in caplog.text
    found = zipapp._bundle.__wrapped__()
    assert found.kept
    assert f"{zipapp.PACKAGE}/helper/loop.py" in zipfile.ZipFile(io.BytesIO(found.code)).namelist()
