"""Chooses the Python for the built-in nodes: the user's environment, not the one that clusterddp is installed in.

An interpreter that only a project's folder names is not started: the one that ``pyproject.toml`` names needs the user's
consent, and a ``.venv`` that is not active is only mentioned.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError
from clusterddp.project.user_folders import user_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clusterddp.inventory.values import Inventory

VARIABLE = "CLUSTERDDP_PYTHON"
_TIMEOUT = 10.0  # seconds for one interpreter to report whether it finds torch; usually 0.03
_OWN_PYTHON = "clusterddp's own"
_NONE_FINDS_TORCH = f"no Python here finds torch: activate the environment that has it, or set {VARIABLE}"
# `-c` puts the current folder, the project's, first on sys.path: nothing may be imported from there.
_FIND_TORCH = """import sys
sys.path[:] = [folder for folder in sys.path if folder]
import importlib.util
found = importlib.util.find_spec("torch")
print("\\nclusterddp", int(bool(found and found.origin)), sys.executable)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalPython:
    """An interpreter on this machine: its absolute path, and what named it (``by``, for messages)."""

    path: str
    by: str


def find_python(project: Path, named: tuple[str, str] | None, environ: Mapping[str, str]) -> LocalPython:
    """The interpreter to train with here: CLUSTERDDP_PYTHON's, else pyproject.toml's, else the first that finds torch.

    ``named`` is the value of ``[tool.clusterddp] python``, and the file and key that set it; ``environ`` is the
    user's environment. Raises ``UsageError`` if CLUSTERDDP_PYTHON or pyproject.toml names no program, or one without
    the user's consent.
    """
    if text := environ.get(VARIABLE):
        return LocalPython(path=_executable(text, VARIABLE, Path.cwd(), environ), by=VARIABLE)
    candidates = list(_candidates(environ))
    if named:
        return _consented_python(project, *named, candidates, environ)
    asked = set()
    for candidate in candidates:
        file = Path(candidate.path)
        identity = (file.parent.resolve(), file.resolve())
        if identity not in asked and (found := _path_if_torch(file)):
            return replace(candidate, path=found)
        asked.add(identity)
    return LocalPython(path=sys.executable, by=_OWN_PYTHON if _own_finds_torch() else _NONE_FINDS_TORCH)


def with_python(inventory: Inventory, python: str) -> Inventory:
    """The inventory with this interpreter for hosts that have no other."""
    hosts = tuple(replace(host, python=host.python or python) for host in inventory.hosts)
    return replace(inventory, hosts=hosts)


def unused_venv(project: Path, chosen: LocalPython, environ: Mapping[str, str]) -> str:
    """A notice that the project's ``.venv`` is not the interpreter chosen; empty if it is, or there is none."""
    if chosen.by == VARIABLE or not os.path.lexists(project / ".venv" / "bin" / "python"):
        return ""
    if Path(chosen.path).parent.resolve() == (project / ".venv" / "bin").resolve():
        return ""
    if (active := environ.get("VIRTUAL_ENV")) and Path(active).resolve() == (project / ".venv").resolve():
        return "the project's .venv is active and finds no torch, so it is not used; install torch there"
    return "the project's .venv is not active, so it is not used; `source .venv/bin/activate` there changes that"


def _candidates(environ: Mapping[str, str]) -> Iterator[LocalPython]:
    """Interpreters that the user's environment names, the most specific first."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = environ.get(variable, "")
        if os.path.isabs(prefix):  # noqa: PTH117 - text
            for name in ("python", "python3"):
                path = Path(prefix, "bin", name)
                if os.access(path, os.X_OK):
                    yield LocalPython(path=str(path), by=variable)
                    break
    for name in ("python", "python3"):
        if found := _on_path(name, environ):
            yield LocalPython(path=found, by=f"{name} on PATH")


def _on_path(name: str, environ: Mapping[str, str]) -> str | None:
    """A program on PATH; relative folders are ignored, as they would be the project's."""
    folders = filter(os.path.isabs, environ.get("PATH", "").split(os.pathsep))
    return shutil.which(name, path=os.pathsep.join(folders))


def _executable(text: str, where: str, folder: Path, environ: Mapping[str, str]) -> str:
    """The file that a program's name or path means; ``UsageError`` if there is none."""
    path = _on_path(text, environ) if os.sep not in text else str(folder / user_path(text))
    if not path or not os.path.isfile(path) or not os.access(path, os.X_OK):  # noqa: PTH113 - Path's raises
        raise UsageError(f"{where}: {text} is no program", remedy="give the path of a Python that has torch")
    return os.path.abspath(path)  # noqa: PTH100 - links are kept: the venv is the link's folder


def _consented_python(
    project: Path, text: str, where: str, candidates: list[LocalPython], environ: Mapping[str, str]
) -> LocalPython:
    """The interpreter in pyproject.toml, if the user has chosen the same by activating its environment."""
    path = _executable(text, where, project, environ)
    folder, file = Path(path).parent.resolve(), Path(path).resolve()
    for candidate in candidates:
        chosen = Path(candidate.path)
        if (chosen.parent.resolve(), chosen.resolve()) == (folder, file):
            return LocalPython(path=path, by=f"pyproject.toml and {candidate.by}")
    remedy = f"if you trust it: `export {VARIABLE}={shlex.quote(path)}`"
    raise UsageError(f"{where}: {text} is not run without your consent", remedy=remedy)


def _path_if_torch(python: Path) -> str | None:
    """The interpreter's path if it finds torch (without importing it), else None; of a pyenv shim the real path."""
    if python.resolve() == Path(sys.executable).resolve() and python.parent.parent.resolve() == _own_prefix():
        return sys.executable if _own_finds_torch() else None
    answer = _ask(str(python)).rpartition("\nclusterddp ")[2].rstrip("\n")
    finds, _, executable = answer.partition(" ")
    if finds != "1" or not os.path.isabs(executable):  # noqa: PTH117 - text
        return None
    return executable if python.parent.name == "shims" else str(python)


def _own_prefix() -> Path:
    return Path(sys.prefix).resolve()


def _own_finds_torch() -> bool:
    """Whether the Python that runs clusterddp finds torch."""
    with contextlib.suppress(ValueError, ImportError):
        found = importlib.util.find_spec("torch")
        return bool(found and found.origin)
    return False


def _ask(python: str) -> str:
    """An interpreter's answer whether it finds torch; empty if it fails, or takes too long."""
    try:
        process = subprocess.Popen(
            [python, "-c", _FIND_TORCH],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a shim is a shell script: the whole group must be killed at a timeout
        )
    except OSError:
        return ""
    with process:
        try:
            answer, _ = process.communicate(timeout=_TIMEOUT)
        except subprocess.TimeoutExpired:
            return ""
        finally:
            with contextlib.suppress(OSError):
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
    return answer.decode(errors="replace") if process.returncode == 0 else ""
