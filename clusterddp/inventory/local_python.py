"""Which Python the built-in nodes train with: the user's environment, not the one that clusterddp is installed in.

No interpreter that only a project's folder names is started here: what ``pyproject.toml`` names waits for the user's
consent, and a ``.venv`` that is not active is only mentioned.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clusterddp.inventory.values import Inventory

VARIABLE = "CLUSTERDDP_PYTHON"
_LIMIT = 10.0  # seconds for one interpreter to say whether it finds torch; 0.03 are usual
_OWN = "clusterddp's own"
_NONE = f"no Python here finds torch: activate the environment that has it, or set {VARIABLE}"
# `-c` searches the current folder first, which is the project's: nothing may be imported from there.
_QUESTION = """import sys
sys.path[:] = [folder for folder in sys.path if folder]
import importlib.util
found = importlib.util.find_spec("torch")
print("\\nclusterddp", int(bool(found and found.origin)), sys.executable)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalPython:
    """An interpreter on this machine.

    Attributes:
        path: The interpreter, absolute.
        by: Who named it, in words.
    """

    path: str
    by: str


def find_python(project: Path, named: tuple[str, str] | None, environ: Mapping[str, str]) -> LocalPython:
    """The interpreter to train with on this machine.

    Args:
        project: The project's folder.
        named: What ``[tool.clusterddp] python`` says, and where that stands.
        environ: The user's environment.

    Raises:
        UsageError: what CLUSTERDDP_PYTHON or pyproject.toml names is none, or has not the user's consent.
    """
    if text := environ.get(VARIABLE):
        return LocalPython(path=_executable(text, VARIABLE, Path.cwd(), environ), by=VARIABLE)
    candidates = list(_candidates(environ))
    if named:
        return _agreed(project, *named, candidates, environ)
    asked = set()
    for candidate in candidates:
        file = Path(candidate.path)
        same = (file.parent.resolve(), file.resolve())
        if same not in asked and (found := _with_torch(file)):
            return replace(candidate, path=found)
        asked.add(same)
    return LocalPython(path=sys.executable, by=_OWN if _own_finds_torch() else _NONE)


def with_python(inventory: Inventory, python: str) -> Inventory:
    """The inventory, its hosts training with this interpreter unless something else was said of them."""
    hosts = tuple(replace(host, python=host.python or python) for host in inventory.hosts)
    return replace(inventory, hosts=hosts)


def unused_venv(project: Path, chosen: LocalPython, environ: Mapping[str, str]) -> str:
    """A line about the project's ``.venv`` where it is not what was chosen; empty if there is nothing to say."""
    if chosen.by == VARIABLE or not os.path.lexists(project / ".venv" / "bin" / "python"):
        return ""
    if Path(chosen.path).parent.resolve() == (project / ".venv" / "bin").resolve():
        return ""
    if (active := environ.get("VIRTUAL_ENV")) and Path(active).resolve() == (project / ".venv").resolve():
        return "the project's .venv is active and finds no torch, so it is not used; install torch there"
    return "the project's .venv is not active, so it is not used; `source .venv/bin/activate` there changes that"


def _candidates(environ: Mapping[str, str]) -> Iterator[LocalPython]:
    """Interpreters that the user's environment names, the most definite first."""
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
    """A program on PATH, without its relative folders: those would be the project's."""
    folders = filter(os.path.isabs, environ.get("PATH", "").split(os.pathsep))
    return shutil.which(name, path=os.pathsep.join(folders))


def _executable(text: str, where: str, folder: Path, environ: Mapping[str, str]) -> str:
    """The file that a name or a path means.

    Raises:
        UsageError: there is no such program.
    """
    path = _on_path(text, environ) if os.sep not in text else str(folder / Path(text).expanduser())
    if not path or not os.path.isfile(path) or not os.access(path, os.X_OK):  # noqa: PTH113 - Path's raises
        raise UsageError(f"{where}: {text} is no program", remedy="give the path of a Python that has torch")
    return os.path.abspath(path)  # noqa: PTH100 - a link stays: the venv is where it lies


def _agreed(
    project: Path, text: str, where: str, candidates: list[LocalPython], environ: Mapping[str, str]
) -> LocalPython:
    """What pyproject.toml names, where the user has chosen the same: by activating its environment.

    Raises:
        UsageError: he has not, or there is no such program.
    """
    path = _executable(text, where, project, environ)
    folder, file = Path(path).parent.resolve(), Path(path).resolve()
    for candidate in candidates:
        known = Path(candidate.path)
        if (known.parent.resolve(), known.resolve()) == (folder, file):
            return LocalPython(path=path, by=f"pyproject.toml and {candidate.by}")
    import shlex  # noqa: PLC0415 - start-up

    remedy = f"if you trust it: `export {VARIABLE}={shlex.quote(path)}`"
    raise UsageError(f"{where}: {text} is not run without your consent", remedy=remedy)


def _with_torch(python: Path) -> str | None:
    """The interpreter's own path if it finds torch, without importing it; a pyenv shim's is what it leads to."""
    if python.resolve() == Path(sys.executable).resolve() and python.parent.parent.resolve() == _prefix():
        return sys.executable if _own_finds_torch() else None
    said = _ask(str(python)).rpartition("\nclusterddp ")[2].rstrip("\n")
    finds, _, executable = said.partition(" ")
    if finds != "1" or not os.path.isabs(executable):  # noqa: PTH117 - text
        return None
    return executable if python.parent.name == "shims" else str(python)


def _prefix() -> Path:
    return Path(sys.prefix).resolve()


def _own_finds_torch() -> bool:
    with contextlib.suppress(ValueError, ImportError):
        found = importlib.util.find_spec("torch")
        return bool(found and found.origin)
    return False


def _ask(python: str) -> str:
    """What an interpreter answers; empty where it does not, or not in time."""
    import signal  # noqa: PLC0415 - start-up
    import subprocess  # noqa: PLC0415

    try:
        process = subprocess.Popen(
            [python, "-c", _QUESTION],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a shim is a shell script: all that it starts ends with it
        )
    except OSError:
        return ""
    with process:
        try:
            answer, _ = process.communicate(timeout=_LIMIT)
        except subprocess.TimeoutExpired:
            return ""
        finally:
            with contextlib.suppress(OSError):
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
    return answer.decode(errors="replace") if process.returncode == 0 else ""
