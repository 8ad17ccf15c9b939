"""`clusterddp push` at its limits: peak memory from 10 MB to 5 GB, one file of 20 GB, 200,000 files, a fast link.

On the lab (root, Linux). Memory is the largest resident set of any process of the command, and of any helper of a host
while it works. The bytes are other in each chunk and do not compress. The hosts share this machine and its disk, so
seconds say little on a busy one; memory does.

    memory   MB…        peaks of pushes to HOSTS hosts that pass on to each other
    large               one sparse file of 20 GB to one host; again, where all is there
    many     FILES      as many small files to one host; again; and what sync says of them
    link     RATE MB    2 GB to two hosts, each link limited to RATE, beside `iperf3` between the two
    uplink   MB HOSTS   300 MB to 16 hosts, what leaves this machine limited to 100 Mbit/s, beside one copy over ssh

Without words: memory 10 100.

    apt-get install iperf3
    python benchmarks/bench_push.py memory 10 1000 5000
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.lab import Lab, network  # noqa: E402 - the lab lives in the project, not in site-packages
from tests.lab.faults import children  # noqa: E402
from tests.lab.system import command  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterable

CLUSTERDDP = str(Path(sys.executable).parent / "clusterddp")
HOSTS = 2
PLACE = "~/sets/"  # on a disk; /tmp of these hosts is in memory
BLOCK = 4 << 20
LOOK = 0.05  # seconds between looks at memory


class Done(NamedTuple):
    """A command: its seconds, its last line, and peaks in MB: its own, and the largest of a host's helper."""

    seconds: float
    code: int
    line: str
    here: float
    there: float

    def __str__(self) -> str:
        return (
            f"{self.seconds:7.1f} s, memory here {self.here:5.0f} MB, on hosts {self.there:5.0f} MB"
            f"; load {os.getloadavg()[0]:.0f}; {'' if not self.code else f'exit {self.code}: '}{self.line}"
        )


def peak(pids: Iterable[int]) -> float:
    """The largest resident set that any of these processes has had, in MB."""
    most = 0
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:  # it has ended
            continue
        most = max([most, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))])
    return most / 1e3


def below(pid: int) -> set[int]:
    """All that a process has started."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        new = set(children(waiting.pop())) - found
        found |= new
        waiting += new
    return found


def watched(lab: Lab, folder: Path, *words: str) -> Done:
    """Run a command of ours."""
    env = {**os.environ, "HOME": str(folder.parent), "CLUSTERDDP_INVENTORY": str(lab.inventory)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen([CLUSTERDDP, *words], cwd=folder, env=env, stdout=said, stderr=said)
        over, there = threading.Event(), [0.0]

        def look() -> None:
            while not over.wait(LOOK):
                helpers = {pid for host in lab.hosts for pid in below(host.init.pid)}
                there[0] = max(there[0], peak(pid for pid in helpers if is_ours(pid)))

        looking = threading.Thread(target=look)
        looking.start()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - began
        over.set()
        looking.join()
        said.seek(0)
        lines = said.read().replace("\r", "\n").strip().splitlines()
    return Done(seconds, process.returncode, lines[-1] if lines else "", usage.ru_maxrss / 1e3, there[0])


def is_ours(pid: int) -> bool:
    """Whether it is a Python, as helpers are, and not sshd."""
    try:
        return "python" in Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return False


def noise(path: Path, size: int) -> None:
    """A file of which no two chunks are alike."""
    block = os.urandom(1 << 20) * (BLOCK >> 20)
    with path.open("wb") as file:
        for number in range(size // BLOCK + 1):
            head = number.to_bytes(8, "big") + os.urandom(8)
            file.write((head + block[len(head) :])[: size - number * BLOCK])


def memory(folder: Path, sizes: list[str]) -> None:
    """Peaks by size."""
    for size in map(int, sizes or ["10", "1000", "5000"]):
        with Lab(HOSTS) as lab:
            noise(folder / "big.bin", size * 1_000_000)
            done = watched(lab, folder, "push", "--spread", "on", "big.bin", PLACE)
            print(f"{size:5} MB to {HOSTS} hosts {done}", flush=True)


def large(folder: Path, _: list[str]) -> None:
    """A sparse file of 20 GB."""
    with (folder / "sparse.bin").open("wb") as file:
        file.truncate(20 * 10**9)
        file.write(b"begins with this")
    with Lab(1) as lab:
        for what in ("20 GB, sparse", "again"):
            print(f"{what:14}", watched(lab, folder, "push", "sparse.bin", PLACE), flush=True)
        used = lab.hosts[0].run(["du", "-sm", f"{lab.hosts[0].users[0].home}/sets/sparse.bin"]).stdout.split()[0]
        print(f"it takes {used} MB of the host's disk")


def many(folder: Path, words: list[str]) -> None:
    """Many files."""
    count = int(words[0]) if words else 200_000
    for number in range(count):
        path = folder / "set" / f"{number % 400:03}" / f"sample{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"sample {number}\n")
    with Lab(1) as lab:
        for what in (f"{count} files", "again"):
            print(f"{what:14}", watched(lab, folder, "push", "set", "~/sets"), flush=True)
        print(f"{'sync':14}", watched(lab, folder, "sync"), flush=True)


def link(folder: Path, words: list[str]) -> None:
    """A file to two hosts that pass on to each other, over links of a rate."""
    rate, size = words[0] if words else "1gbit", int(words[1] if words[1:] else "2000") * 1_000_000
    with Lab(2) as lab:
        for host in lab.hosts:
            host.rate(rate)
        giver, taker = lab.hosts
        server = subprocess.Popen(taker.argv(["iperf3", "-s", "-1"]), stdout=subprocess.DEVNULL)
        time.sleep(1)
        told = giver.run(["iperf3", "-c", taker.address, "-n", str(size), "-f", "m"]).stdout.splitlines()
        server.wait()
        print("\n".join(line for line in told if "receiver" in line))
        noise(folder / "big.bin", size)
        done = watched(lab, folder, "push", "--spread", "on", "big.bin", PLACE)
        print(f"push to 2, --spread on: {size * 2 * 8 / done.seconds / 1e6:.0f} Mbit/s arrive in all;", done)


def uplink(folder: Path, words: list[str]) -> None:
    """A file to many hosts where this machine's own link is the slow one."""
    size, count = int(words[0] if words else "300") * 1_000_000, int(words[1] if words[1:] else "16")
    noise(folder / "big.bin", size)
    with Lab(count) as lab:
        shape = ("rate", "100mbit", "burst", "64k", "latency", "100ms")
        command("tc", "qdisc", "replace", "dev", network.prefix(lab.number), "root", "tbf", *shape)
        one = lab.hosts[0].name
        began = time.monotonic()
        with (folder / "big.bin").open("rb") as file:
            subprocess.run([*lab.ssh(one), "cat >copy.bin"], stdin=file, check=True)
        copy = time.monotonic() - began
        print(f"one copy to {one}: {copy:.1f} s, {size * 8 / copy / 1e6:.0f} Mbit/s", flush=True)
        done = watched(lab, folder, "push", "big.bin", PLACE)
        print(f"push to {count}: {done.seconds / copy:.2f} times that (aim: 1.2);", done)


def main() -> None:
    """Measure one of them and print."""
    parts = {"memory": memory, "large": large, "many": many, "link": link, "uplink": uplink}
    part, *words = sys.argv[1:] or ["memory", "10", "100"]
    if part not in parts:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "project").mkdir()
        parts[part](Path(folder) / "project", words)


if __name__ == "__main__":
    main()
