"""The wheel, installed by pip, pipx and uv into clean environments: `python -m tests.installs FOLDER [VERSION|PATH…]`.

On each Python at hand from 3.10 on `clusterddp --version`, `--help` and `hosts` are run, in an empty folder and with an
empty home. Prints a table in Markdown; fails if something did.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.pythons import find

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
LIMIT = 600.0  # seconds for one installation on a busy machine


class FailedError(Exception):
    """A command that failed; its text is the last line it said."""


def said(*words: str | Path, folder: Path, **variables: str) -> str:
    """Run a command and return its stdout; of our environment it gets only the settings of package indexes."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_", "LANG"))}
    env = {**kept, "PATH": os.environ["PATH"], "HOME": str(folder), **variables}
    argv = [str(word) for word in words]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=LIMIT)
    if done.returncode:
        raise FailedError([*done.stdout.splitlines(), *done.stderr.splitlines(), "it says nothing"][-2])
    return done.stdout


def by_pip(python: str, wheel: Path, folder: Path) -> Path:
    said(python, "-m", "venv", folder / "venv", folder=folder)
    said(folder / "venv/bin/python", "-m", "pip", "install", "--quiet", wheel, folder=folder)
    return folder / "venv/bin"


def by_pipx(python: str, wheel: Path, folder: Path) -> Path:
    own = Path(sys.executable).with_name("pipx")
    places = {f"PIPX_{name}": str(folder / name) for name in ("HOME", "BIN_DIR", "MAN_DIR")}
    said(own, "install", "--quiet", "--python", python, wheel, folder=folder, **places)
    return folder / "BIN_DIR"


def by_uv(python: str, wheel: Path, folder: Path) -> Path:
    own = Path(sys.executable).with_name("uv")
    places = {"UV_TOOL_DIR": str(folder / "tools"), "UV_TOOL_BIN_DIR": str(folder / "bin"), "UV_LINK_MODE": "copy"}
    said(own, "tool", "install", "--quiet", "--python", python, wheel, folder=folder, **places)
    return folder / "bin"


WAYS = {"pip": by_pip, "pipx": by_pipx, "uv": by_uv}


def outcome(way: str, python: str, wheel: Path) -> str:
    """Install the wheel in one way and try it; return `ok`, or the error."""
    with tempfile.TemporaryDirectory(prefix="installs-") as name:
        folder = Path(name)
        try:
            program = WAYS[way](python, wheel, folder) / "clusterddp"
            version, _, hosts = (said(program, word, folder=folder) for word in ("--version", "--help", "hosts"))
        except (FailedError, OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    right = wheel.name.split("-")[1] in version and "local1" in hosts
    return "ok" if right else f"{version!r}, {hosts!r}"


def main(folder: str, *versions: str) -> int:
    """Print the table; 1 if something failed."""
    (wheel,) = Path(folder).resolve().glob("*.whl")
    print(f"| Python | {' | '.join(WAYS)} |\n|---|{'---|' * len(WAYS)}")
    failed = False
    for version in versions or VERSIONS:
        python = version if os.sep in version else find(version)
        results = [outcome(way, python, wheel) if python else "not at hand" for way in WAYS]
        failed |= any(result not in {"ok", "not at hand"} for result in results)
        print(f"| {version} | {' | '.join(results)} |", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
