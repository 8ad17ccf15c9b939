"""Whether `clusterddp why` finds the cause of a hang: each script of benchmarks/hangs on three hosts, one by one.

Every script says in its docstring what is right (benchmarks/hang_scripts.py). Beside `why`, of the same hang: the odd
one out of all stacks, and torch's own torchfrtrace. On the lab (root, Linux), one rank a host.

    python benchmarks/bench_hangs.py [--local] [--details FILE] [NAME…]

NAME is how names begin. With ``--local`` the three ranks run on this machine, in one node, for a quick try.
``--details`` adds what each script made `why` say, with stacks and traces, a JSON object a line, to a file; ``--table``
prints the table of such a file, the newest answers, and runs nothing.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.hang_peers import odd_stack, read_traces, torchfrtrace, torchfrtrace_as_it_is  # noqa: E402 - benchmarks are no installed package
from benchmarks.hang_scripts import FOLDER, RIGHT, WORLD, HangScript, find, place, words  # noqa: E402
from tests.lab import Lab  # noqa: E402
from tests.lean import WHOLE_TORCH  # noqa: E402

START_PATIENCE = 60.0  # seconds until all ranks are ready, or a failure has ended the run
SETTLE = 2.0  # seconds from the last "ready" until all ranks are where they hang
LOOKS = 3  # at a clean script, a second and more apart
AIM = 34  # of 40
CLUSTERDDP = str(Path(sys.executable).with_name("clusterddp"))
HEAD = """
| script | right | `why` says | which is | seconds | the odd stack says | torchfrtrace says |
|---|---|---|---|---|---|---|""".lstrip()
Row = dict[str, Any]


def main() -> None:
    """Run all, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--local", action="store_true")
    parser.add_argument("--details", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.table:
        _print_table(options.table)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that the lab ends too
    scripts = find(options.names)
    rows = []
    print(HEAD)
    with tempfile.TemporaryDirectory() as name, _hosts(local=options.local) as lab:
        folder = Path(name, "hangs")
        shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__", "*.md"))
        for script in scripts:
            row = _try(script, folder, lab)
            rows.append(row)
            print(_line(row), flush=True)
            if options.details:
                with options.details.open("a") as details:
                    details.write(json.dumps(row) + "\n")
    _print_sums(rows)


@contextlib.contextmanager
def _hosts(*, local: bool) -> Iterator[Lab | None]:
    if local:
        yield None
        return
    with Lab(WORLD, variables=WHOLE_TORCH) as lab:
        os.environ["CLUSTERDDP_INVENTORY"] = str(lab.inventory)
        yield lab


def _try(script: HangScript, folder: Path, lab: Lab | None) -> Row:
    row: Row = {"script": script.name, "kind": _kind(script), "expected": script.expected, "outcome": ""}
    row["seconds"] = 0.0
    shape = [] if lab else ["--nnodes", "1", "--nproc-per-node", str(WORLD)]
    argv = [CLUSTERDDP, "run", "--no-doctor", *shape, f"{script.name}.py"]
    child = subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read, args=(child, output), daemon=True).start()
    try:
        if script.fails:
            child.wait(START_PATIENCE)
        elif not _wait_until_ready(output, script.ready, row):
            return row
        else:
            time.sleep(SETTLE)
        _ask(script, folder, row)
        if not script.clean and not script.fails:
            _ask_peers(script, folder, lab, row)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        row["outcome"] = f"benchmark: {error!r}"[:200]
        return row
    finally:
        subprocess.run([CLUSTERDDP, "stop", "--all", "--grace", "0"], cwd=folder, capture_output=True, check=False)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(20)
        child.kill()
        child.wait()
    return row


def _ask(script: HangScript, folder: Path, row: Row) -> None:
    for _ in range(LOOKS if script.clean else 1):
        began = time.monotonic()
        said = _json(folder, "why", "--json")
        row.setdefault("all_seconds", []).append(time.monotonic() - began)
        row.setdefault("answers", []).append(said)
        if "said" not in row or script.outcome(said) != RIGHT:
            row["said"], row["outcome"] = said, script.outcome(said)
    row["seconds"] = max(row["all_seconds"])


def _ask_peers(script: HangScript, folder: Path, lab: Lab | None, row: Row) -> None:
    with ThreadPoolExecutor(1) as pool:
        traces = pool.submit(read_traces, lab, row["said"]["run"])
        row["stacks"] = _json(folder, "status", "--stacks", "--json").get("stacks", [])
        row["traces"] = traces.result()
    row["majority"] = odd_stack(row["stacks"], script)
    row["torchfrtrace"] = torchfrtrace(row["traces"], script)
    row["as it is"] = torchfrtrace_as_it_is(row["traces"], script)


def _json(folder: Path, *words: str) -> Row:
    ended = subprocess.run([CLUSTERDDP, *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    if ended.returncode:
        raise ValueError(f"{' '.join(words)}: {ended.stderr[-300:]}")
    value: Row = json.loads(ended.stdout)
    return value


def _read(child: subprocess.Popen[str], output: queue.Queue[str | None]) -> None:
    for line in child.stdout or ():
        output.put(line)
    output.put(None)


def _wait_until_ready(output: queue.Queue[str | None], ready: int, row: Row) -> bool:
    """Whether so many ranks have said that they are about to hang; else the row says why not."""
    seen, last, deadline = 0, collections.deque[str](maxlen=8), time.monotonic() + START_PATIENCE
    while seen < ready:
        try:
            line = output.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            line = None
        if line is None:
            row["outcome"] = f"never ready: {''.join(last)}"
            return False
        last.append(line)
        seen += line.rstrip().endswith("ready")
    return True


def _kind(script: HangScript) -> str:
    return "clean" if script.clean else "failure" if script.fails else "hang"


def _line(row: Row) -> str:
    said = row.get("said") or {}
    shown = f"{said.get('state')}: {said.get('class')} of {words(said.get('ranks', []))}, line {_number(said)}"
    cells = [row["script"], row["expected"], shown, row["outcome"].replace("\n", " ")[:200], f"{row['seconds']:.1f}"]
    peers = [row.get(peer, ("", "")) for peer in ("majority", "torchfrtrace")]
    cells += [f"{outcome}: {said}" if outcome else "" for said, outcome in peers]
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def _number(said: Row) -> str:
    return place(said.get("where")).partition(":")[2] or "-"


def _print_table(path: Path) -> None:
    rows = {row["script"]: row for row in map(json.loads, path.read_text().splitlines())}
    found = [rows[script.name] for script in find([]) if script.name in rows]
    print(HEAD, *map(_line, found), sep="\n")
    print()
    _print_sums(found)


def _print_sums(rows: list[Row]) -> None:
    for kind in ("hang", "failure", "clean"):
        of_kind = [row for row in rows if row["kind"] == kind]
        if not of_kind:
            continue
        counts = collections.Counter(row["outcome"].partition(":")[0] for row in of_kind)
        shown = ", ".join(f"{outcome} {count}" for outcome, count in counts.most_common())
        print(f"{kind}: {len(of_kind)} scripts: {shown}; slowest {max(row['seconds'] for row in of_kind):.1f} s")
        for peer in ("majority", "torchfrtrace", "as it is"):
            counts = collections.Counter(row[peer][1] for row in of_kind if peer in row)
            if counts:
                print(f"  {peer}: {', '.join(f'{outcome} {count}' for outcome, count in counts.most_common())}")
    print(f"(aim: right in {AIM} of 40 hangs, 0 wrong names, 0 false hung)")


if __name__ == "__main__":
    main()
