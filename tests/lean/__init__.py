"""An interpreter whose torch is torchrun alone: the installed one's launcher over its C++ part, without tensors.

Importing all of torch takes 1.3 s of CPU, three times for a run over two hosts, and torchrun needs a quarter of it:
where workers import no torch, agents need not either. Rendezvous, agents, stores and restarts are the installed files;
what is left out is what ``torch/`` here has in its own words. `tests/integration/test_lean.py` holds it to the whole.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path

OWN = Path(__file__).with_name("torch")
DIFFERENT = ("distributed", "utils")  # packages of which only some modules are ours
WHOLE = {"clusterddp_python": sys.executable}  # variables of a host whose workers import torch


@functools.cache
def lean_python() -> str:
    """The interpreter, made once for this environment; the whole one where no torch is installed."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return sys.executable
    installed = Path(spec.submodule_search_locations[0])
    texts = [path.read_bytes() for path in sorted(OWN.rglob("*.py"))] + [Path(__file__).read_bytes()]
    digest = hashlib.sha256(b"".join([*texts, str(installed).encode()])).hexdigest()[:12]
    place = Path(sys.prefix) / f"lean-torch-{digest}"
    if not place.exists():
        scratch = Path(tempfile.mkdtemp(dir=sys.prefix, prefix="lean-torch-"))
        _make(scratch, installed)
        scratch.chmod(0o755)
        try:
            scratch.rename(place)
        except OSError:  # another process of this session was first
            shutil.rmtree(scratch)
    return str(place / "bin" / "python")


def _make(place: Path, installed: Path) -> None:
    """A virtual environment with nothing but that torch and what it needs."""
    real = Path(sys.executable).resolve()
    (place / "pyvenv.cfg").write_text(f"home = {real.parent}\ninclude-system-site-packages = false\n")
    (place / "bin").mkdir()
    (place / "bin" / "python").symlink_to(real)
    packages = place / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    for needed in (*installed.parent.glob("torch-*.dist-info"), *installed.parent.glob("typing_extensions*")):
        (packages / needed.name).symlink_to(needed)
    overlay(installed, OWN, packages / "torch", DIFFERENT)


def overlay(installed: Path, own: Path, place: Path, mixed: tuple[str, ...] = ()) -> None:
    """A package by links to the installed one's parts, but for what ``own`` has; ``mixed`` subpackages alike."""
    place.mkdir(parents=True)
    for path in installed.iterdir():
        if path.name in mixed and (own / path.name).is_dir():
            overlay(path, own / path.name, place / path.name)
        elif not (own / path.name).exists() and path.name != "__pycache__":
            (place / path.name).symlink_to(path)
    for path in own.iterdir():
        if not (place / path.name).exists() and path.name != "__pycache__":
            copy = shutil.copytree if path.is_dir() else shutil.copy
            copy(path, place / path.name)
