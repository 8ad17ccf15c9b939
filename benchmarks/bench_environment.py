"""How long a lock with CPU torch takes to come to hosts, first and again, beside `uv sync` on each of them at once.

In turn on the lab (root, Linux), medians of ROUNDS: `clusterddp exec -- true` with nothing there and with the
environment ready, the same without an environment, and `uv sync --frozen` on each host, with an empty cache and once
more. uv's wheels lie on the hosts' own disk, ours come from the operator; all hosts share this machine.

    pip install uv
    python benchmarks/bench_environment.py [ROUNDS [HOSTS [REQUIREMENT]]]
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.lab import Lab  # noqa: E402 - the lab lives in the project, not in site-packages

AIM = 2.0  # seconds, again
BIN = Path(sys.executable).parent
TORCH = "torch==2.13.0"


def make_project(place: Path, requirement: str) -> Path:
    """A project that locks a requirement, with all wheels in a folder beside it."""
    folder, wheels = place / "project", place / "wheels"
    folder.mkdir()
    fetch = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--only-binary=:all:",
        "--dest",
        str(wheels),
        requirement,
    ]
    subprocess.run(fetch, check=True)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "toy"\nversion = "0.1"\nrequires-python = "=={python}.*"\n'
        f'dependencies = ["{requirement}"]\n'
        f'[tool.uv]\nno-index = true\nfind-links = ["{wheels}"]\n'
    )
    subprocess.run([BIN / "uv", "lock", "--quiet"], cwd=folder, check=True)
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    (folder / "train.py").write_text("print(1)\n")
    return folder


def timed(processes: list[subprocess.Popen[bytes]], begin: float) -> float:
    """Seconds until all have ended well."""
    for process in processes:
        _, err = process.communicate()
        if process.returncode:
            sys.exit(f"{process.args!r}: {err.decode()}")
    return time.monotonic() - begin


def started(argv: list[str], **options: object) -> subprocess.Popen[bytes]:
    """A process whose errors are kept."""
    return subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload,no-any-return]


def measure(rounds: int, count: int, requirement: str, place: Path) -> dict[str, list[float]]:
    """Seconds by what was measured."""
    folder, env = make_project(place, requirement), {**os.environ, "HOME": str(place)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    found: dict[str, list[float]] = {}
    with Lab(count) as lab:
        names = [host.name for host in lab.hosts]
        inventories = {"lock": folder / "hosts.yaml", "without": folder / "without.yaml"}
        lab.write_inventory(inventories["without"], hosts=names)
        more: dict[str, dict[str, object]] = {name: {"clusterddp_environment": "uv.lock"} for name in names}
        lab.write_inventory(inventories["lock"], hosts=names, more=more)
        ssh = ["ssh", "-F", str(lab.folder / "ssh_config")]
        sync = f"cd bench && UV_CACHE_DIR=$PWD/cache {BIN / 'uv'} sync --frozen --quiet --python {sys.executable}"

        def note(name: str, argvs: list[list[str]]) -> None:
            begin = time.monotonic()
            took = timed([started(argv, cwd=folder, env=env) for argv in argvs], begin)
            found.setdefault(name, []).append(took)

        def run(name: str, inventory: Path) -> None:
            note(name, [[str(BIN / "clusterddp"), "exec", "-i", str(inventory), "--", "true"]])

        run("without", inventories["without"])  # the helper and facts are there from now on
        for _ in range(rounds):
            for host in lab.hosts:
                empty = "rm -rf .clusterddp/environments .clusterddp/wheels bench && mkdir bench"
                host.run(["sh", "-c", empty], timeout=600)  # 25,000 files, on a disk that all share
                for file in ("pyproject.toml", "uv.lock"):
                    copy = [*ssh, host.name, f"cat >bench/{file}"]
                    subprocess.run(copy, input=(folder / file).read_bytes(), check=True)
            run("first", inventories["lock"])
            run("again", inventories["lock"])
            run("without", inventories["without"])
            note("uv sync first", [[*ssh, name, sync] for name in names])
            note("uv sync again", [[*ssh, name, sync] for name in names])
    return found


def main() -> None:
    """Measure and print."""
    words = sys.argv[1:]
    rounds, count, requirement = (words + ["3", "4", TORCH][len(words) :])[:3]
    if not shutil.which("uv", path=str(BIN)):
        sys.exit("uv is not installed beside this Python")
    with tempfile.TemporaryDirectory(dir=sys.prefix) as place:  # where hosts have this machine's files
        os.chmod(place, 0o755)  # noqa: PTH101 - the hosts' users read the wheels
        found = measure(int(rounds), int(count), requirement, Path(place))
    print(f"{requirement} to {count} hosts, medians of {rounds}")
    for name, times in found.items():
        print(f"{name:14} {statistics.median(times):6.2f} s")
    again, plain, theirs = (statistics.median(found[name]) for name in ("again", "without", "uv sync again"))
    print(f"again: {again:.2f} s (aim: {AIM} s), {again - plain:.2f} more than without an environment; uv {theirs:.2f}")


if __name__ == "__main__":
    main()
