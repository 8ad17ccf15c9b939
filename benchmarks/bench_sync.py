"""Wall time and CPU of a sync of 1,000 files to 16 hosts, beside `rsync -a` to all of them at once.

In turn in the same minutes on the lab (root, Linux), medians of ROUNDS: cold (nothing is there), one file changed, and
unchanged. `clusterddp sync` proves a digest of all files on every host; rsync trusts sizes and times. CPU is what the
command and all its children here took; the hosts' own work is in the wall time, for they share the machine.

    apt-get install rsync
    python benchmarks/bench_sync.py [ROUNDS [HOSTS [FILES]]]
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.lab import Lab  # noqa: E402 - the lab lives in the project, not in site-packages

if TYPE_CHECKING:
    from collections.abc import Callable

AIMS = {"cold": 0.6, "one file": 0.45, "unchanged": 0.4}  # of rsync's time
CLUSTERDDP = str(Path(sys.executable).parent / "clusterddp")
Times = dict[str, list[tuple[float, float]]]


def make_project(folder: Path, files: int) -> None:
    """Sources of some kilobytes each, in folders, under git."""
    for number in range(files):
        path = folder / f"pkg{number % 40}" / f"module{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# module {number}\n" + "".join(f"value_{line} = {number * line}\n" for line in range(150)))
    subprocess.run(["git", "init", "-q", folder], check=True)


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """Seconds, and seconds of CPU of all that it starts."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    work()
    seconds, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def checked(processes: list[subprocess.Popen[bytes]]) -> None:
    """Until all have ended well."""
    for process in processes:
        _, err = process.communicate()
        if process.returncode:
            sys.exit(f"{process.args!r}: {err.decode()}")


def measure(rounds: int, count: int, files: int, place: Path) -> tuple[Times, Times]:
    """Ours and rsync's times by what was measured."""
    folder, env = place / "project", {**os.environ, "HOME": str(place)}
    folder.mkdir()
    make_project(folder, files)
    with Lab(count) as lab:
        ssh = f"ssh -F {lab.folder / 'ssh_config'}"
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}

        def ours() -> None:
            argv = [CLUSTERDDP, "sync", "-i", str(lab.inventory)]
            checked([subprocess.Popen(argv, cwd=folder, env=env, **pipes)])  # type: ignore[call-overload]

        def rsync() -> None:
            argv = ["rsync", "-a", "--delete", "--exclude=.git", "--exclude=.clusterddp", "-e", ssh, f"{folder}/"]
            checked([subprocess.Popen([*argv, f"{host.name}:by-rsync/"], **pipes) for host in lab.hosts])  # type: ignore[call-overload]

        def forget() -> None:
            for host in lab.hosts:
                host.run(["sh", "-c", "rm -rf ~trainer/clusterddp ~trainer/by-rsync"])

        found: tuple[Times, Times] = ({name: [] for name in AIMS}, {name: [] for name in AIMS})
        ours()  # the helper is there from now on
        for number in range(rounds):
            forget()
            for name in AIMS:
                if name == "one file":
                    (folder / "pkg0/module0.py").write_text(f"changed = {number}\n")
                for times, work in zip(found, (ours, rsync), strict=True):
                    times[name].append(timed(work))
    return found


def main() -> None:
    """Measure and print."""
    words = [int(word) for word in sys.argv[1:]]
    rounds, count, files = (words + [5, 16, 1000][len(words) :])[:3]
    if not shutil.which("rsync"):
        sys.exit("rsync is not installed")
    with tempfile.TemporaryDirectory() as folder:
        found = measure(rounds, count, files, Path(folder))
    print(f"{files} files to {count} hosts, medians of {rounds}")
    for name, aim in AIMS.items():
        (wall, cpu), (wall_rsync, cpu_rsync) = (
            tuple(statistics.median(one[place] for one in times[name]) for place in (0, 1)) for times in found
        )
        ours, theirs = f"{wall:5.2f} s ({cpu:5.2f} of CPU here)", f"{wall_rsync:5.2f} s ({cpu_rsync:5.2f})"
        print(f"{name:10} sync {ours}, rsync {theirs}: {wall / wall_rsync:.2f} (aim {aim})")


if __name__ == "__main__":
    main()
