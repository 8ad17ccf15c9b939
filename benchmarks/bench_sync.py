"""Wall time and CPU of a sync of 1,000 files to 16 hosts, beside `rsync -a` to all of them at once.

In turn in the same minutes on the lab (root, Linux), medians of ROUNDS: cold (nothing is there), one file changed, and
unchanged. `clusterddp sync` proves a digest of all files on every host; rsync trusts sizes and times. All hosts share
this machine, so the CPU of both sides together (the command with its children, and each host's whole session) is what
tells on a busy one. The hosts' folders are in memory: a shared disk on which files were removed a moment ago takes up
to 0.7 ms to make a file, ten times what either program does with it. Byte code is kept, as where it is installed.

    apt-get install rsync
    python benchmarks/bench_sync.py [ROUNDS [HOSTS [FILES]]]

On two cores that do nothing else `5 16 1000` takes about a minute, `5 32 1000` two, a round of `3 16 20000` one (three
at load 19), with 3 GB of memory.
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
from tests.lab.faults import children  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

AIMS = {"cold": 0.6, "one file": 0.45, "unchanged": 0.4}  # of rsync's time
CLUSTERDDP = str(Path(sys.executable).parent / "clusterddp")
FOLDERS = ("clusterddp", "by-rsync")
Times = dict[str, list[tuple[float, float, float]]]


def make_project(folder: Path, files: int) -> None:
    """Sources of some kilobytes each, in folders, under git."""
    for number in range(files):
        path = folder / f"pkg{number % 40}" / f"module{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# module {number}\n" + "".join(f"value_{line} = {number * line}\n" for line in range(150)))
    subprocess.run(["git", "init", "-q", folder], check=True)


def timed(work: Callable[[], None], lab: Lab) -> tuple[float, float, float]:
    """Seconds; seconds of CPU of all that it starts here; and of what the hosts did for it, all together."""
    before, hosts, begin = resource.getrusage(resource.RUSAGE_CHILDREN), hosts_cpu(lab), time.monotonic()
    work()
    seconds, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    here = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, here, hosts_cpu(lab) - hosts


def hosts_cpu(lab: Lab) -> float:
    """Seconds of CPU of each host's sshd and of all its sessions, once these have ended."""
    ticks = 0
    for host in lab.hosts:
        while children(host.init.pid):
            time.sleep(0.02)
        fields = Path(f"/proc/{host.init.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def checked(processes: list[subprocess.Popen[bytes]]) -> None:
    """Until all have ended well."""
    for process in processes:
        _, err = process.communicate()
        if process.returncode:
            sys.exit(f"{process.args!r}: {err.decode()}")


def measure(rounds: int, count: int, files: int, place: Path) -> tuple[Times, Times]:
    """Ours and rsync's times by what was measured."""
    folder, env = place / "project", {**os.environ, "HOME": str(place)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
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
                host.run(["sh", "-c", "rm -rf ~/clusterddp/* ~/by-rsync/*"])

        for host in lab.hosts:
            for name in FOLDERS:
                host.small_disk(f"{host.users[0].home}/{name}", "1g")
        found: tuple[Times, Times] = ({name: [] for name in AIMS}, {name: [] for name in AIMS})
        ours()  # the helper is there from now on
        for number in range(rounds):
            forget()
            for name in AIMS:
                if name == "one file":
                    (folder / "pkg0/module0.py").write_text(f"changed = {number}\n")
                for times, work in zip(found, (ours, rsync), strict=True):
                    times[name].append(timed(work, lab))
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
        ours, theirs = ([statistics.median(one) for one in zip(*times[name], strict=True)] for times in found)
        for who, (wall, here, there) in (("sync", ours), ("rsync", theirs)):
            print(
                f"{name:10} {who:5} {wall:6.2f} s; CPU: here {here:5.2f}, hosts {there:5.2f}, all {here + there:5.2f}"
            )
        of_wall, of_cpu = ours[0] / theirs[0], sum(ours[1:]) / sum(theirs[1:])
        print(f"{name:10} of rsync's time {of_wall:.2f} (aim {aim}), of its CPU {of_cpu:.2f}")


if __name__ == "__main__":
    main()
