"""Small wheels, made here: what an index would have."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clusterddp.environments import wheels
from clusterddp.environments.lock_file import LockFile, find_uv
from clusterddp.environments.platform_tags import HostKind
from clusterddp.errors import LockError
from tests.lean import lean_python

if TYPE_CHECKING:
    from collections.abc import Mapping

CACHE = Path(sys.prefix) / "clusterddp-cache"  # of uv's static program, for all tests
KIND = HostKind(python="3.11.7", threads="", machine="x86_64", libc="glibc", libc_version=(2, 36))


def make_wheel(
    folder: Path, name: str, version: str, files: Mapping[str, str], *, tag: str = "py3-none-any", needs: str = ""
) -> Path:
    """A wheel with these files; the same bytes each time."""
    folder.mkdir(parents=True, exist_ok=True)
    own = f"{name}-{version}.dist-info"
    requires = f"Requires-Dist: {needs}\n" if needs else ""
    texts = {
        **files,
        f"{own}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{own}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    rows = []
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in texts.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            rows.append(f"{file},sha256={digest},{len(text)}\n")
            archive.writestr(zipfile.ZipInfo(file), text)
        archive.writestr(zipfile.ZipInfo(f"{own}/RECORD"), "".join(rows) + f"{own}/RECORD,,\n")
    return path


def make_lean_torch(folder: Path) -> Path:
    """A wheel that leads to the lean torch of this machine (tests/lean)."""
    packages = next((Path(lean_python()).parents[1] / "lib").glob("*/site-packages"))
    return make_wheel(folder, "torch", "2.13.0", {"lean_torch.pth": f"{packages}\n"})


def project_with_lock(folder: Path, store: Path, *needs: str, gpu: str = "") -> None:
    """A pyproject.toml that takes its wheels from ``store``, and its uv.lock."""
    extra = f'[project.optional-dependencies]\ngpu = ["{gpu}"]\n' if gpu else ""
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "toy"\nversion = "0.1"\nrequires-python = ">=3.10"\ndependencies = {list(needs)}\n{extra}'
        f'[tool.uv]\nno-index = true\nfind-links = ["{store}"]\n'
    )
    program = find_uv()
    assert program
    subprocess.run([program, "lock", "--quiet"], cwd=folder, check=True, timeout=60)


def need_uv(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with uv's static program for hosts, for XDG_CACHE_HOME; skips where neither is to be had."""
    if find_uv() is None:
        pytest.skip("uv is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(CACHE))
    try:
        wheels.uv_wheel(LockFile(written="test", path=CACHE), KIND, lambda _: None)
    except LockError as error:
        pytest.skip(f"uv's static program cannot be had: {error}")
    return CACHE
