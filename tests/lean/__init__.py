"""Interpreters whose torchrun imports no tensors: the installed launcher over torch's C++ part.

Importing all of torch takes 1.3 s of CPU, three times for a run over two hosts, and torchrun needs a quarter of it.
``lean_python`` has nothing else, for workers that import no torch; ``training_python`` has it for the agent, and for
every other process the installed torch without its compiler, which the first DDP model or optimizer step would import
though nothing is compiled, and without what the compiler asks of operators. Rendezvous, agents, stores and restarts are
the installed files; what is left out is what ``torch/`` and ``eager/`` here have in their own words.
`tests/integration/fork_server/test_lean.py` holds both to the whole.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

OWN, EAGER, UNDECLARED = (Path(__file__).with_name(name) for name in ("torch", "eager", "undeclared.c"))
DIFFERENT = ("distributed", "utils")  # packages of which only some modules are ours
WHOLE_TORCH = {"clusterddp_python": sys.executable}  # variables of a host with nothing but the installed torch
# On the module search path of every process: the lean torch for `python -m torch.distributed.run …`.
CHOICE = (
    "import sys; agent = '-m torch.distributed.run' in ' '.join(sys.orig_argv); "
    "sys.path.extend([{lean!r}] if agent else [sys.prefix + '/eager/site-packages', {all!r}])"
)


@functools.cache
def lean_python() -> str:
    """An interpreter with torchrun alone, made once for this environment; the whole one where no torch is installed."""
    installed = _installed()
    return _made("lean-torch", lambda place: _lean(place, installed)) if installed else sys.executable


@functools.cache
def training_python() -> str:
    """An interpreter with the lean torch for the agent, and all that is installed for the workers."""
    installed = _installed()
    lean = _packages(Path(lean_python()).parents[1])
    return _made("training-torch", lambda place: _training(place, lean, installed)) if installed else sys.executable


def _installed() -> Path | None:
    """The installed torch's folder."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _made(name: str, make: Callable[[Path], None]) -> str:
    """The interpreter of a virtual environment in this one, made the first time."""
    texts = [path.read_bytes() for own in (OWN, EAGER) for path in sorted(own.rglob("*.py"))] + [
        Path(__file__).read_bytes()
    ]
    digest = hashlib.sha256(b"".join([*texts, UNDECLARED.read_bytes(), str(_installed()).encode()])).hexdigest()[:12]
    place = Path(sys.prefix) / f"{name}-{digest}"
    if not place.exists():
        scratch = Path(tempfile.mkdtemp(dir=sys.prefix, prefix=f"{name}-"))
        make(scratch)
        _compile(scratch)
        scratch.chmod(0o755)
        try:
            scratch.rename(place)
        except OSError:  # another process of this session was first
            shutil.rmtree(scratch)
    return str(place / "bin" / "python")


def _compile(place: Path) -> None:
    """Compile its modules: the account of a lab's host cannot write there, and would compile them at each start."""
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(place)], check=True)


def _packages(place: Path) -> Path:
    return place / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def _empty(place: Path) -> Path:
    """Make a virtual environment without packages; their folder."""
    real = Path(sys.executable).resolve()
    (place / "pyvenv.cfg").write_text(f"home = {real.parent}\ninclude-system-site-packages = false\n")
    (place / "bin").mkdir()
    for name in ("python", "python3"):
        (place / "bin" / name).symlink_to(real)
    _packages(place).mkdir(parents=True)
    return _packages(place)


def _lean(place: Path, installed: Path) -> None:
    """A virtual environment with nothing but that torch and what it needs."""
    packages = _empty(place)
    for needed in (*installed.parent.glob("torch-*.dist-info"), *installed.parent.glob("typing_extensions*")):
        (packages / needed.name).symlink_to(needed)
    overlay(installed, OWN, packages / "torch", DIFFERENT)
    if compiler := shutil.which("gcc"):
        argv = [compiler, "-shared", "-fPIC", "-o", str(packages / "torch" / "undeclared.so"), str(UNDECLARED)]
        subprocess.run(argv, check=True)


def _training(place: Path, lean: Path, installed: Path) -> None:
    """A virtual environment that finds either torch, as an installed package, and this environment's py-spy."""
    (_empty(place) / "torch.pth").write_text(CHOICE.format(lean=str(lean), all=str(installed.parent)))
    overlay(installed, EAGER, place / "eager" / "site-packages" / "torch")
    (place / "bin" / "py-spy").symlink_to(Path(sys.executable).with_name("py-spy"))


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
