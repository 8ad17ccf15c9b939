"""Wheels on this machine: fetched once, kept by content, and nothing but what was locked."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from clusterddp.environments import lock_file as locks
from clusterddp.environments.lock_file import find_lock_file
from clusterddp.environments.platform_tags import HostKind, kind_of
from clusterddp.environments.wheels import drop_damaged, wheels_of
from clusterddp.errors import LockError
from clusterddp.remote.shared.environment.environment_records import BaseInterpreter
from clusterddp.remote.shared.schema.fields import DamagedError
from clusterddp.remote.shared.schema.record import read_record
from tests.wheels_made import KIND, make_wheel

if TYPE_CHECKING:
    from pathlib import Path

    from clusterddp.environments.lock_file import LockFile


def quiet(_: str) -> None:
    """Nobody looks."""


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LockFile:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wheel = make_wheel(tmp_path / "store", "small", "2.0", {"small.py": "Y = 2\n"})
    head = 'lock-version = "1.0"\ncreated-by = "t"\n[[packages]]\nname = "small"\nversion = "2.0"\n'
    text = f'{head}[[packages.wheels]]\npath = "store/{wheel.name}"\nhashes = {{md5 = "x"}}\n'
    (tmp_path / "pylock.toml").write_text(text)
    return find_lock_file("pylock.toml", tmp_path)


def test_an_unchanged_lock_asks_for_nothing_again(lock: LockFile, monkeypatch: pytest.MonkeyPatch) -> None:
    found = wheels_of(lock, KIND, quiet)
    assert [(one.name, one.path.is_file(), len(one.sha256)) for one in found] == [("small", True, 64)]
    monkeypatch.setattr(locks, "required_wheels", None)
    assert wheels_of(lock, KIND, quiet) == found


def test_a_wheel_of_this_machine_that_is_built_again_is_taken_anew(lock: LockFile, tmp_path: Path) -> None:
    (old,) = wheels_of(lock, KIND, quiet)
    make_wheel(tmp_path / "store", "small", "2.0", {"small.py": "Y = 'built again'\n"})
    (new,) = wheels_of(lock, KIND, quiet)
    assert new.sha256 == _digest(tmp_path / "store" / new.file) != old.sha256
    (tmp_path / "store" / new.file).unlink()
    with pytest.raises(LockError, match="is not at"):
        wheels_of(lock, KIND, quiet)
    lock.path.write_text(lock.path.read_text().replace('md5 = "x"', f'sha256 = "{old.sha256}"'))
    assert wheels_of(lock, KIND, quiet) == (old,)


def test_projects_with_the_same_lock_have_wheels_of_their_own(lock: LockFile, tmp_path: Path) -> None:
    other = tmp_path / "other"
    wheel = make_wheel(other / "store", "small", "2.0", {"small.py": "Y = 'of another'\n"})
    shutil.copy(lock.path, other)
    (first,), (second,) = wheels_of(lock, KIND, quiet), wheels_of(find_lock_file("pylock.toml", other), KIND, quiet)
    assert second.sha256 == _digest(wheel) != first.sha256


def test_a_wheel_that_is_not_what_was_locked_is_refused(lock: LockFile) -> None:
    text = lock.path.read_text().replace('md5 = "x"', f'sha256 = "{"a" * 64}"')
    lock.path.write_text(text)
    with pytest.raises(LockError, match=r"small-2.0-py3-none-any.whl is not what was locked .*find out who"):
        wheels_of(lock, KIND, quiet)


@pytest.mark.parametrize("has_index", [False, True])
def test_a_wheel_that_has_not_its_requirements_hash_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_index: bool
) -> None:
    pytest.importorskip("uv", reason="uv resolves them")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wheel = make_wheel(tmp_path / "store", "small", "2.0", {"small.py": ""})
    digest = _digest(wheel)
    source = "--no-index\n--find-links store\n"
    if has_index:
        pages = tmp_path / "index" / "small"
        pages.mkdir(parents=True)
        (pages / "index.html").write_text(f'<a href="{wheel.as_uri()}#sha256={digest}">{wheel.name}</a>')
        source = f"--index-url {pages.parent.as_uri()}\n"
    requirements = tmp_path / "requirements.txt"
    for other in ("a" * 64, "b" * 64):
        requirements.write_text(f"{source}small==2.0 --hash=sha256:{other}\n")
        with pytest.raises(LockError, match=r"small-2.0-py3-none-any.whl is not what was locked .*find out who"):
            wheels_of(find_lock_file("requirements.txt", tmp_path), KIND, quiet)
    requirements.write_text(f"{source}small==2.0 --hash=sha256:{other} --hash=sha256:{digest}\n")
    (found,) = wheels_of(find_lock_file("requirements.txt", tmp_path), KIND, quiet)
    assert found.sha256 == digest


def test_a_wheel_that_is_gone_is_named(lock: LockFile) -> None:
    for path in (lock.path.parent / "store").iterdir():
        path.unlink()
    with pytest.raises(LockError, match=r"small-2.0-py3-none-any.whl is not at /"):
        wheels_of(lock, KIND, quiet)


def test_a_file_of_this_machine_that_is_no_wheel_is_never_sent(lock: LockFile, tmp_path: Path) -> None:
    """A clone's lock file may name any file, and a link in the clone may lead to any."""
    (wheel,) = (lock.path.parent / "store").iterdir()
    secret = tmp_path / "id_ed25519"
    secret.write_text("PRIVATE KEY\n")
    for put in (
        lambda: wheel.symlink_to(secret),
        lambda: wheel.write_text("PRIVATE KEY\n"),
        wheel.mkdir,
        lambda: os.mkfifo(wheel),
    ):
        shutil.rmtree(wheel) if wheel.is_dir() else wheel.unlink()
        put()
        with pytest.raises(LockError, match=r"is no wheel|is not at /"):
            wheels_of(lock, KIND, quiet)
    assert not [*(tmp_path / "cache").rglob("*.whl")]


def test_a_damaged_memory_is_made_anew(lock: LockFile, tmp_path: Path) -> None:
    found = wheels_of(lock, KIND, quiet)
    for path in (tmp_path / "cache/clusterddp/resolved").iterdir():
        path.write_text("[{}]")
    assert wheels_of(lock, KIND, quiet) == found


def test_a_kind_knows_the_platforms_of_its_wheels() -> None:
    musl = replace(KIND, libc="musl", libc_version=(1, 2))
    old = replace(KIND, libc_version=(2, 17))
    assert [*musl.platforms()] == [
        "musllinux_1_2_x86_64",
        "musllinux_1_1_x86_64",
        "musllinux_1_0_x86_64",
        "linux_x86_64",
    ]
    assert [*old.platforms()][:3] == ["manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_16_x86_64"]
    assert [one.uv_platform for one in (KIND, musl, old, replace(KIND, libc_version=(2, 30)))] == [
        "x86_64-manylinux_2_36", "x86_64-unknown-linux-musl", "x86_64-manylinux_2_17", "x86_64-manylinux_2_28",
    ]  # fmt: skip
    tags = [str(tag) for tag in KIND.tags()]
    assert tags[0] == "cp311-cp311-manylinux_2_36_x86_64"
    assert "py3-none-any" in tags
    assert str(KIND) == "Python 3.11.7 on x86_64 with glibc 2.36"


@pytest.mark.parametrize(
    "change",
    [
        {"version": "three"},
        {"libc": "bionic"},
        {"implementation": "pypy"},
        {"libc_version": [2]},
        {"machine": 3},
        {"machine": "../x"},
        {"version": "3.99999999.1"},
        {"libc_version": [2, 1 << 40]},
        {"python": "python3"},
        {"ready": {"a": 3}},
    ],
)
def test_a_host_that_is_no_kind_of_ours_is_an_error_of_its_own(change: dict[str, object]) -> None:
    told = {
        "version": "3.11.7", "implementation": "cpython", "machine": "x86_64", "free_threaded": False, "libc": "glibc",
        "libc_version": [2, 36], "python": "/usr/bin/python3", "left": [], "ready": {},
    }  # fmt: skip
    assert kind_of(read_record(BaseInterpreter, told, "base")) == KIND
    assert isinstance(KIND, HostKind)
    with pytest.raises(DamagedError):
        read_record(BaseInterpreter, {**told, **change}, "base")


def test_a_wheel_that_is_damaged_in_the_cache_is_fetched_again(lock: LockFile) -> None:
    found = wheels_of(lock, KIND, quiet)
    assert not drop_damaged(found)
    whole = found[0].path.read_bytes()
    found[0].path.write_bytes(b"\0" * len(whole))
    assert drop_damaged(found)
    assert wheels_of(lock, KIND, quiet) == found
    assert found[0].path.read_bytes() == whole
