"""The commands that make a lock, as uv runs them and as messages tell them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clusterddp.environments.lock_file import find_lock_file, required_wheels
from clusterddp.errors import LockError
from tests.remedies import Remedy, remedy
from tests.wheels_made import KIND, make_wheel

PINNED = remedy("environments/lock_file.py", "write NAME==VERSION for each package: `{}uv pip compile {} -o {}`")
TO_WRITE = remedy("environments/lock_file.py", "`uv pip compile {} -o {}`, of a {} that you write")
COMPILE = remedy("environments/lock_file.py", "`uv pip compile {}{} -o {}`")
EXPORT = remedy("environments/lock_file.py", "`uv export --no-emit-project -o {}`")
MISSING = remedy("environments/lock_file.py", "make it with {}; or name another")
PROJECT = '[project]\nname = "x"\nversion = "0"\nrequires-python = ">=3.10"\ndependencies = []\n'


def made_by(line: str, folder: Path) -> None:
    """Type the command that a message told, in the lock's folder."""
    beside = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "UV_OFFLINE": "1"}
    (command,) = re.findall(r"`([^`]+)`", line)
    subprocess.run(["bash", "-c", command], check=True, cwd=folder, env={**os.environ, **beside}, timeout=60)


def test_the_dev_group_of_a_uv_lock_stays_away(tmp_path: Path) -> None:
    """Unlike the groups that the project itself makes default ones."""
    pytest.importorskip("uv", reason="uv locks and exports")
    for name in ("small", "tool", "train"):
        make_wheel(tmp_path / "store", name, "2.0", {f"{name}.py": ""})
    groups = '[dependency-groups]\ndev = ["tool"]\ntrain = ["train"]\n'
    settings = f'[tool.uv]\nno-index = true\nfind-links = ["{tmp_path}/store"]\n'
    for default, more in (("", []), ('default-groups = ["dev", "train"]\n', ["train"])):
        text = PROJECT.replace("[]", '["small"]') + groups + settings + default
        (tmp_path / "pyproject.toml").write_text(text)
        made_by("`uv lock`", tmp_path)
        assert [one.name for one in required_wheels(find_lock_file("uv.lock", tmp_path), KIND)] == ["small", *more]


@pytest.mark.parametrize(
    ("written", "there", "told"),
    [
        ("uv.lock", {"pyproject.toml": PROJECT}, remedy("environments/lock_file.py", "`uv lock`")),
        ("uv.lock", {}, remedy("environments/lock_file.py", "`uv init --bare && uv lock`")),
        ("requirements.txt", {"requirements.in": ""}, COMPILE),
        ("requirements.txt", {"pyproject.toml": PROJECT}, EXPORT),
        ("pylock.toml", {"pyproject.toml": PROJECT}, EXPORT),
        ("pylock.toml", {"requirements.in": ""}, COMPILE),
        ("gpu.txt", {"gpu.in": "", "pyproject.toml": PROJECT}, COMPILE),
    ],
)
def test_the_command_told_for_a_missing_lock_makes_that_lock(
    tmp_path: Path, written: str, there: dict[str, str], told: Remedy
) -> None:
    pytest.importorskip("uv", reason="uv makes them")
    for name, text in there.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(LockError) as refused:
        find_lock_file(written, tmp_path)
    (command,) = MISSING.printed(str(refused.value))
    assert told.found(command)
    made_by(command, tmp_path)
    assert required_wheels(find_lock_file(written, tmp_path), KIND) == []


def test_without_anything_to_lock_the_command_says_what_to_write_first(tmp_path: Path) -> None:
    pytest.importorskip("uv", reason="uv makes them")
    with pytest.raises(LockError) as refused:
        find_lock_file("requirements.txt", tmp_path)
    said = TO_WRITE.found(str(refused.value))
    (tmp_path / said[3].partition(" ")[0]).write_text("")
    made_by(said[0], tmp_path)
    assert required_wheels(find_lock_file("requirements.txt", tmp_path), KIND) == []


@pytest.mark.parametrize("source", ["", "old==1.0\n"])
def test_the_command_told_for_loose_requirements_pins_them(tmp_path: Path, source: str) -> None:
    pytest.importorskip("uv", reason="uv pins them")
    make_wheel(tmp_path / "store", "small", "2.0", {"small.py": ""})
    loose = f"--no-index\n--find-links {tmp_path}/store\nsmall>=1\n"
    (tmp_path / "requirements.txt").write_text(loose)
    if source:
        (tmp_path / "requirements.in").write_text(loose)
    with pytest.raises(LockError) as refused:
        required_wheels(find_lock_file("requirements.txt", tmp_path), KIND)
    made_by(PINNED.found(str(refused.value))[0], tmp_path)
    text = (tmp_path / "requirements.txt").read_text()
    (tmp_path / "requirements.txt").write_text(f"--no-index\n--find-links {tmp_path}/store\n{text}")
    (found,) = required_wheels(find_lock_file("requirements.txt", tmp_path), KIND)
    assert (found.name, found.version) == ("small", "2.0")
