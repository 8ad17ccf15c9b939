"""Other versions of torch's launcher to test against: their own Python sources over the installed torch's libraries.

    python -m tests.integration.torch_sources FOLDER 2.6.0 2.15.0      # once; needs a package index
    CLUSTERDDP_TORCH_SOURCES=FOLDER python -m pytest tests/integration/fork_server/test_torch_versions.py

All that the plugin and the plan rely on (torch.distributed.run, elastic, its agents and rendezvous) is Python; the
store below it is the installed torch's.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEELS = "macosx_11_0_arm64"  # the smallest; only Python is taken from them
OWN = ("distributed/elastic", "distributed/launcher", "distributed/run.py", "distributed/argparse_util.py", "numa")


def fetch(folder: Path, version: str) -> None:
    """The launcher's sources of one version, below ``folder/VERSION``."""
    with tempfile.TemporaryDirectory() as scratch:
        argv = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", scratch]
        subprocess.run([*argv, "--python-version", "3.11", "--platform", WHEELS, f"torch=={version}"], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            wanted = tuple(f"torch/{name}" for name in OWN)
            archive.extractall(folder / version, [name for name in archive.namelist() if name.startswith(wanted)])


def overlay(sources: Path, place: Path) -> None:
    """A folder for PYTHONPATH: the installed torch by links, but for what ``sources`` has of its own."""
    import torch  # noqa: PLC0415 - not while fetching

    _merge(Path(torch.__file__).parent, sources / "torch", place / "torch")


def _merge(installed: Path, own: Path, place: Path) -> None:
    place.mkdir(parents=True)
    for path in installed.iterdir():
        inside = own / path.name
        if inside.is_dir() and own.name == "torch" and path.name == "distributed":
            _merge(path, inside, place / path.name)
        elif not inside.exists() and path.name != "__pycache__":
            (place / path.name).symlink_to(path)
    for path in own.iterdir():
        if not (place / path.name).exists():
            copy = shutil.copytree if path.is_dir() else shutil.copy
            copy(path, place / path.name)


if __name__ == "__main__":
    for wanted in sys.argv[2:]:
        fetch(Path(sys.argv[1]), wanted)
