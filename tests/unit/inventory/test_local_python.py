"""Which Python the built-in nodes get: real interpreters in environments of their own, some with a torch."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import UsageError
from clusterddp.inventory import local_python
from clusterddp.inventory.local_python import LocalPython, find_python, unused_venv
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

MARK = 'import pathlib\npathlib.Path(__file__).with_name("mark").touch()\n'  # a torch that shows when it is imported


def environment(folder: Path, *, torch: bool = True) -> Path:
    """A virtual environment; its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    if torch:
        (packages / "torch").mkdir()
        (packages / "torch" / "__init__.py").write_text(MARK)
    return folder / "bin" / "python"


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Interpreters by the name of their environment; ``bare`` has no torch."""
    base = tmp_path_factory.mktemp("environments")
    return {name: environment(base / name, torch=name != "bare") for name in ("active", "conda", "path", "bare")}


def variables(pythons: dict[str, Path], **names: str) -> dict[str, str]:
    """The user's environment; each variable leads to the environment of that name."""
    found = {name: str(pythons[which].parents[1]) for name, which in names.items()}
    found["PATH"] = f"{found['PATH']}/bin" if "PATH" in found else ""
    return found


@pytest.mark.parametrize(
    ("names", "chosen", "by"),
    [
        ({"VIRTUAL_ENV": "active", "CONDA_PREFIX": "conda", "PATH": "path"}, "active", "VIRTUAL_ENV"),
        ({"VIRTUAL_ENV": "bare", "CONDA_PREFIX": "conda", "PATH": "path"}, "conda", "CONDA_PREFIX"),
        ({"CONDA_PREFIX": "conda", "PATH": "path"}, "conda", "CONDA_PREFIX"),
        ({"VIRTUAL_ENV": "bare", "CONDA_PREFIX": "bare", "PATH": "path"}, "path", "python on PATH"),
        ({"PATH": "path"}, "path", "python on PATH"),
    ],
    ids=str,
)
def test_the_first_python_that_finds_torch_is_taken_and_torch_is_not_imported(
    pythons: dict[str, Path], tmp_path: Path, names: dict[str, str], chosen: str, by: str
) -> None:
    found = find_python(tmp_path, None, variables(pythons, **names))
    assert found == LocalPython(path=str(pythons[chosen]), by=by)
    assert list(pythons[chosen].parents[1].rglob("mark")) == []


def test_python3_on_the_path_is_asked_where_python_finds_no_torch(pythons: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(script(tmp_path / "old", "exit 1"))
    path = f"{tmp_path}:{pythons['path'].parent}"
    found = find_python(tmp_path, None, {"PATH": path})
    assert found == LocalPython(path=str(pythons["path"].with_name("python3")), by="python3 on PATH")


def test_our_own_python_is_the_last_and_the_line_says_where_none_finds_torch(
    pythons: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # another test's import finds it without a path
    found = find_python(tmp_path, None, variables(pythons, VIRTUAL_ENV="bare", PATH="bare"))
    assert found.path == sys.executable
    assert "no Python here finds torch" in found.by
    monkeypatch.setattr(sys, "path", [str(next(pythons["path"].parents[1].glob("lib/python*/site-packages")))])
    assert find_python(tmp_path, None, {}) == LocalPython(path=sys.executable, by="clusterddp's own")


def test_where_ours_is_the_active_one_no_program_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_torch()
    monkeypatch.setattr(local_python, "_ask", pytest.fail)
    environ = {"VIRTUAL_ENV": sys.prefix, "PATH": f"{sys.prefix}/bin"}
    assert find_python(tmp_path, None, environ) == LocalPython(path=sys.executable, by="VIRTUAL_ENV")


def test_a_shim_is_asked_which_python_it_leads_to(pythons: dict[str, Path], tmp_path: Path) -> None:
    script(tmp_path / "shims" / "python", f'exec "{pythons["path"]}" "$@"')
    found = find_python(tmp_path, None, {"PATH": str(tmp_path / "shims")})
    assert found == LocalPython(path=str(pythons["path"]), by="python on PATH")


def test_a_wrapper_on_the_path_stays_the_one_that_is_started(pythons: dict[str, Path], tmp_path: Path) -> None:
    wrapper = script(tmp_path / "bin" / "python", f'exec "{pythons["path"]}" "$@"')
    assert find_python(tmp_path, None, {"PATH": str(wrapper.parent)}).path == str(wrapper)


def test_a_python_that_never_answers_is_ended_with_what_it_started_and_passed_over(
    pythons: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_python, "_TIMEOUT", 1.0)
    os.mkfifo(tmp_path / "alive")
    reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    script(tmp_path / "conda" / "bin" / "python", f"exec 9>{tmp_path}/alive\nsleep 1000 &\nwait")
    environ = {"CONDA_PREFIX": str(tmp_path / "conda"), "PATH": str(pythons["path"].parent)}
    assert find_python(tmp_path, None, environ).path == str(pythons["path"])
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""  # nobody is left who could write
    os.close(reader)


@pytest.mark.parametrize(
    "answer", ["echo", "echo clusterddp 1 x", "printf '\\nclusterddp 1 relative\\n'", "yes | head -c 9999999"]
)
def test_an_answer_that_is_none_is_passed_over(pythons: dict[str, Path], tmp_path: Path, answer: str) -> None:
    script(tmp_path / "conda" / "bin" / "python", f"PATH=/usr/bin:/bin; {answer}")
    environ = {"CONDA_PREFIX": str(tmp_path / "conda"), "PATH": str(pythons["path"].parent)}
    assert find_python(tmp_path, None, environ).path == str(pythons["path"])


def test_nothing_of_the_projects_folder_is_run_to_find_a_python(
    pythons: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("importlib/__init__.py", "importlib/util.py", "torch/__init__.py", "sitecustomize.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(MARK)
    for name in ("python", "bin/python", ".venv/bin/python"):
        script(tmp_path / name, f'touch "{tmp_path}/mark"')
    monkeypatch.chdir(tmp_path)
    path = f".::bin:{pythons['bare'].parent}"
    found = find_python(tmp_path, None, {"VIRTUAL_ENV": "", "CONDA_PREFIX": ".venv", "PATH": path})
    assert found.path == sys.executable
    assert list(tmp_path.rglob("mark")) == []


def test_what_the_variable_names_is_taken_as_it_is(
    pythons: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = variables(pythons, VIRTUAL_ENV="active", PATH="path")
    for text in (str(pythons["bare"]), os.path.relpath(pythons["bare"], tmp_path)):
        monkeypatch.chdir(tmp_path)
        found = find_python(tmp_path, ("x", "pyproject"), {**environ, "CLUSTERDDP_PYTHON": text})
        assert found == LocalPython(path=str(pythons["bare"]), by="CLUSTERDDP_PYTHON")
    assert find_python(tmp_path, None, {**environ, "CLUSTERDDP_PYTHON": "python"}).path == str(pythons["path"])


@pytest.mark.parametrize("text", ["gone", "./gone", "~nobody-here/python", "/", "/etc/passwd"])
def test_a_variable_that_names_no_program_is_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=f"CLUSTERDDP_PYTHON: {text} is no program"):
        find_python(tmp_path, None, {"CLUSTERDDP_PYTHON": text, "PATH": "/usr/bin"})


def test_what_pyproject_names_runs_only_once_the_user_has_chosen_the_same(
    pythons: dict[str, Path], tmp_path: Path
) -> None:
    planted = script(tmp_path / ".venv" / "bin" / "python", f'touch "{tmp_path}/mark"')
    named = (".venv/bin/python", "pyproject.toml:tool.clusterddp.python")
    with pytest.raises(UsageError, match="not run without your consent") as raised:
        find_python(tmp_path, named, variables(pythons, VIRTUAL_ENV="active", PATH="path"))
    assert raised.value.remedy == f"if you trust it: `export CLUSTERDDP_PYTHON={planted}`"
    assert not (tmp_path / "mark").exists()
    assert find_python(tmp_path, named, {"CLUSTERDDP_PYTHON": str(planted)}).path == str(planted)
    found = find_python(tmp_path, named, {"VIRTUAL_ENV": str(tmp_path / ".venv")})
    assert found == LocalPython(path=str(planted), by="pyproject.toml and VIRTUAL_ENV")


def test_a_venv_of_the_project_is_named_unless_it_is_the_chosen_one(pythons: dict[str, Path], tmp_path: Path) -> None:
    other = LocalPython(path=str(pythons["path"]), by="python on PATH")
    assert unused_venv(tmp_path, other, {}) == ""
    inside = script(tmp_path / ".venv" / "bin" / "python", "")
    assert ".venv is not active" in unused_venv(tmp_path, other, {})
    assert ".venv is active and finds no torch" in unused_venv(tmp_path, other, {"VIRTUAL_ENV": f"{tmp_path}/.venv"})
    assert unused_venv(tmp_path, LocalPython(path=str(pythons["path"]), by="CLUSTERDDP_PYTHON"), {}) == ""
    assert unused_venv(tmp_path, LocalPython(path=str(inside), by="VIRTUAL_ENV"), {}) == ""
