"""Wall time and CPU of a sync of 1,000 files to 16 hosts, beside `rsync -a` to all of them at once.

In turn on the lab (root, Linux), medians of ROUNDS: cold (nothing is there), one file changed, and unchanged; in each
round both also over kept connections: ours of `up --keep`, and for rsync OpenSSH masters of its own.
`clusterddp sync` proves a digest of all files on every host; rsync trusts sizes and times. All hosts share this
machine, so the CPU of both sides together (the command with its children, and each host's whole session) is what tells
on a busy one. The hosts' folders are in memory: a shared disk on which files were removed a moment ago takes up to
0.7 ms to make a file, ten times what either program does with it. Byte code is kept, as where it is installed.

    apt-get install rsync
    python benchmarks/bench_sync.py [ROUNDS [HOSTS [FILES]]]

On two cores that do nothing else `5 16 1000` takes about two minutes, `5 32 1000` four, a round of `3 16 20000` two
(six at load 19), with 3 GB of memory.
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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.kept import kept_connections, own_masters  # noqa: E402
from tests.lab import Lab  # noqa: E402 - the lab lives in the project, not in site-packages
from tests.lab.observe import cpu_ticks  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

AIMS = {"cold": 0.6, "one file": 0.45, "unchanged": 0.4}  # of rsync's time, over kept connections
WAYS = ("sync", "rsync", "sync, kept", "rsync, kept")
CLUSTERDDP = str(Path(sys.executable).parent / "clusterddp")
FOLDERS = ("clusterddp", "by-rsync")
Times = dict[str, list[tuple[float, float, float]]]  # by what was measured


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
    """Seconds of CPU of each host's sshd and of all its sessions, once these have ended; connections may be kept."""
    ticks = 0
    for host in lab.hosts:
        while host.processes():
            time.sleep(0.02)
        ticks += cpu_ticks(host.init.pid)
    return ticks / os.sysconf("SC_CLK_TCK")


def checked(processes: list[subprocess.Popen[bytes]]) -> None:
    """Until all have ended well."""
    for process in processes:
        _, err = process.communicate()
        if process.returncode:
            sys.exit(f"{process.args!r}: {err.decode()}")


def measure(rounds: int, count: int, files: int, place: Path) -> dict[str, Times]:
    """Each way's times."""
    folder, env = place / "project", {**os.environ, "HOME": str(place)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    folder.mkdir()
    make_project(folder, files)
    with Lab(count) as lab:
        ssh = f"ssh -F {lab.folder / 'ssh_config'}"
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}

        def ours(kept: Mapping[str, str]) -> None:
            argv = [CLUSTERDDP, "sync", "-i", str(lab.inventory)]
            checked([subprocess.Popen(argv, cwd=folder, env={**env, **kept}, **pipes)])  # type: ignore[call-overload]

        def rsync(masters: str) -> None:
            argv = ["rsync", "-a", "--delete", "--exclude=.git", "--exclude=.clusterddp", "-e", f"{ssh} {masters}"]
            argv.append(f"{folder}/")
            checked([subprocess.Popen([*argv, f"{host.name}:by-rsync/"], **pipes) for host in lab.hosts])  # type: ignore[call-overload]

        def forget() -> None:
            for host in lab.hosts:
                host.run(["sh", "-c", "rm -rf ~/clusterddp/* ~/by-rsync/*"])

        for host in lab.hosts:
            for name in FOLDERS:
                host.small_disk(f"{host.users[0].home}/{name}", "1g")
        found: dict[str, Times] = {way: {name: [] for name in AIMS} for way in WAYS}

        ours({})  # the helper is there from now on
        with kept_connections(lab.inventory, folder, env) as runtime, own_masters() as masters:
            rsync(masters)  # makes the masters
            work = {
                "sync": partial(ours, {}),
                "rsync": partial(rsync, ""),
                "sync, kept": partial(ours, runtime),
                "rsync, kept": partial(rsync, masters),
            }
            for number in range(rounds):
                for way in WAYS:
                    forget()
                    for name in AIMS:
                        if name == "one file":
                            (folder / "pkg0/module0.py").write_text(f"changed = {number}, {way!r}\n")
                        found[way][name].append(timed(work[way], lab))
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
        medians = {
            way: [statistics.median(one) for one in zip(*times[name], strict=True)] for way, times in found.items()
        }
        for way, (wall, here, there) in medians.items():
            print(
                f"{name:10} {way:11} {wall:6.2f} s; CPU: here {here:5.2f}, hosts {there:5.2f}, all {here + there:5.2f}"
            )
        for ours, theirs in (WAYS[:2], (WAYS[2], WAYS[1]), WAYS[2:]):
            of_wall = medians[ours][0] / medians[theirs][0]
            of_cpu = sum(medians[ours][1:]) / sum(medians[theirs][1:])
            print(f"{name:10} {ours} of {theirs}: time {of_wall:.2f} (aim {aim}), CPU {of_cpu:.2f}")


if __name__ == "__main__":
    main()
