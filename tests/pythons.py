"""Interpreters of other versions, which hosts may have: pyenv's, the one on PATH, or one that was fetched for tests.

python -m tests.pythons      # fetches the oldest and the newest where they are missing (`make test` does it)
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
ENDS = ("3.8", "3.13", "3.14")  # the oldest and the newest; those between them are tried where they are installed
INTERPRETERS = sorted({*ENDS, OWN}, key=lambda version: int(version.split(".")[1]))  # oldest, ours, newest
FETCHED = Path(sys.prefix) / "pythons"
FETCH_LIMIT = 300.0  # seconds for some 60 MB
MISSING = "no Python {} is installed"
_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


@functools.cache
def find(version: str) -> str | None:
    """The path of an interpreter of that version."""
    if version == OWN:
        return sys.executable
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"), reverse=True)
    fetched = sorted(FETCHED.glob(f"cpython-{version}.*/bin/python3"), reverse=True)
    on_path = shutil.which(f"python{version}")  # pyenv's own of that name may lead nowhere
    found = [*map(str, installed), *map(str, fetched), *filter(None, [on_path])]
    return next((path for path in found if _version(path) == version), None)


def interpreter(version: str) -> str:
    """The path of an interpreter of that version; the test is skipped where there is none."""
    found = find(version)
    if found is None:
        pytest.skip(MISSING.format(version))
    return found


def missing_line(reasons: list[str]) -> str:
    """What the skipped tests with these reasons have not tried, in one line; empty where no interpreter was missing."""
    versions = [one for one in (*ENDS, "3.9", "3.10", "3.11", "3.12") if MISSING.format(one) in " ".join(reasons)]
    count = sum(MISSING.format(one) in reason for reason in reasons for one in versions)
    return f"not tried here: {count} tests, for want of Python {', '.join(versions)}" if versions else ""


def _version(path: str) -> str:
    """The version an interpreter says it has; empty where it does not start."""
    try:
        done = subprocess.run([path, "-I", "-S", "-c", _VERSION], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def main() -> None:
    """Fetch what is missing of ENDS with uv; where that fails, say so in one line and go on."""
    missing = [version for version in ENDS if not find(version)]
    uv = Path(sys.executable).with_name("uv")
    if not missing:
        return
    env = {**os.environ, "UV_PYTHON_INSTALL_DIR": str(FETCHED), "UV_PYTHON_INSTALL_BIN": "0"}
    try:
        subprocess.run([uv, "python", "install", "--quiet", *missing], env=env, check=True, timeout=FETCH_LIMIT)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"Python {' and '.join(missing)} cannot be fetched, so tests that need it are skipped by name: {error}")


if __name__ == "__main__":
    main()
