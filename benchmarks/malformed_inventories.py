"""What is said of malformed inventories: a table of file, line, words, exit code, seconds and memory.

The files are the two hundred of the tests; those damaged by chance are one row for each thing that is said of them.
Each is read by a process of its own, as `clusterddp hosts` does it, a few at a time.

    python benchmarks/malformed_inventories.py
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.unit.inventory.test_malformed import BYTES, SECONDS, WHOLE, damaged  # noqa: E402 - lies in the project

COUNT, AT_ONCE = 200, 2
# As `clusterddp` ends, and what it took on stdout: seconds of CPU, and the most memory (KiB).
READ = """
import atexit, sys, time
from clusterddp.cli.main import main
memory = lambda: open("/proc/self/status").read().split("VmHWM:")[1].split()[0]
atexit.register(lambda: print("took", time.process_time(), memory()))
sys.exit(main(["hosts", "-i", sys.argv[1]]))
"""


def read(path: Path) -> tuple[int, str, float, int]:
    """Exit code, the last line of stderr, seconds of CPU, bytes."""
    argv = [sys.executable, "-c", READ, path.name]
    done = subprocess.run(argv, cwd=path.parent, capture_output=True, text=True, check=False, errors="replace")
    _, seconds, memory = done.stdout.splitlines()[-1].split()
    said = done.stderr.splitlines()[-1] if done.returncode else ""
    return done.returncode, said.removeprefix(f"clusterddp: {path.name}:"), float(seconds), int(memory) << 10


def main() -> int:
    """Print the table; 1 where something is not one line, 2, in time and in bounds."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        chance = itertools.islice(damaged(), 3 * COUNT)  # some of them still mean something
        contents: list[tuple[str, str | bytes]] = [*WHOLE.items(), *(("damaged", text) for text in chance)]
        paths = []
        for number, (_, content) in enumerate(contents):
            paths.append(Path(folder) / f"{number}.yaml")
            paths[-1].write_bytes(content if isinstance(content, bytes) else content.encode())
        found = [(name, *told) for (name, _), told in zip(contents, pool.map(read, paths), strict=True) if told[0]]
    found = found[:COUNT]
    print(f"{'file':24} {'line':>5} {'exit':>4} {'s':>5} {'MB':>4}  what is said")
    told = set()
    for name, code, said, seconds, memory in found:
        line, _, words = said.partition(":") if re.match(r"\d+:", said) else ("", "", said)
        kind = (name, re.sub(r"\d+|'[^']*'", "", words)[:40])
        if kind not in told:
            print(f"{name:24} {line:>5} {code:4} {seconds:5.2f} {memory >> 20:4}  {words.strip()[:150]}")
        told.add(kind)
    slowest, largest = max(row[3] for row in found), max(row[4] for row in found)
    wrong = [row for row in found if row[1] != 2 or row[3] > SECONDS or row[4] > BYTES]
    most = f"at most {slowest:.2f} s of CPU and {largest >> 20} MB, start included"
    print(f"{len(found)} files: {most}; {len(wrong)} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
