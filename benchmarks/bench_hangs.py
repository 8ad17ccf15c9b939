"""Whether `clusterddp why` finds the cause of a hang: each script of benchmarks/hangs on three hosts, one by one.

Every script says in its docstring what is right (benchmarks/hang_scripts.py). Beside `why`, of the same hang: the odd
one out of all stacks, and torch's own torchfrtrace. On the lab (root, Linux), one rank a host.

    python benchmarks/bench_hangs.py [--local | --nccl] [--details FILE] [--nvrx FOLDER] [--clean N] [NAME…]

NAME is how names begin. With ``--local`` the three ranks run on this machine, in one node, for a quick try.
``--nccl`` does the same on NCCL, with all ranks on this machine's one GPU (benchmarks/hang_nccl.py).
``--nvrx`` adds what NVIDIA's analyzer says; FOLDER is a checkout of github.com/NVIDIA/nvidia-resiliency-ext.
``--clean`` makes so many clean runs instead, ``--at-once`` M of them side by side, with a pause of three minutes each,
and asks `why` six times in each pause (benchmarks/hang_clean.py).
``--details`` adds what each script made `why` say, with stacks and traces, a JSON object a line, to a file; ``--table``
prints the table of such a file, the newest answers, and runs nothing.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.hang_clean import run_clean  # noqa: E402 - benchmarks are no installed package
from benchmarks.hang_nccl import use_nccl  # noqa: E402
from benchmarks.hang_peers import nvrx, nvrx_as_it_is, odd_stack, read_traces, torchfrtrace, torchfrtrace_as_it_is  # noqa: E402
from benchmarks.hang_runs import ScriptRun, ask, dead_file_servers, hosts  # noqa: E402
from benchmarks.hang_scripts import FOLDER, RIGHT, HangScript, find, place, words  # noqa: E402

if TYPE_CHECKING:
    from tests.lab import Lab

START_PATIENCE = 300.0  # seconds until all ranks are ready, or a failure has ended the run
SETTLE = 2.0  # seconds from the last "ready" until all ranks are where they hang
LOOKS = 3  # at a clean script, a second and more apart
AIM = 34  # of 40
HEAD = """
| script | right | `why` says | which is | seconds | the odd stack says | torchfrtrace says | NVRx says |
|---|---|---|---|---|---|---|---|""".lstrip()
PEERS = ("majority", "torchfrtrace", "torchfrtrace as it is", "nvrx", "nvrx as it is")
Row = dict[str, Any]


def main() -> None:
    """Run all, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--local", action="store_true")
    parser.add_argument("--nccl", action="store_true")
    parser.add_argument("--details", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--nvrx", type=Path)
    parser.add_argument("--clean", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.table:
        _print_table(options.table, options.nvrx)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that the lab ends too
    details = options.details.absolute() if options.details else None
    with tempfile.TemporaryDirectory() as name, hosts(local=options.local or options.nccl) as lab:
        folder = Path(name, "hangs")
        shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__", "*.md"))
        if options.nccl:
            use_nccl(folder)
        if options.clean:
            run_clean(options.clean, options.at_once, options.names, folder, lab, details)
        else:
            _run_each(find(options.names), folder, lab, details, options.nvrx)


def _run_each(
    scripts: list[HangScript], folder: Path, lab: Lab | None, details: Path | None, checkout: Path | None
) -> None:
    print(HEAD)
    rows = []
    for script in scripts:
        row = _try(script, folder, lab)
        _ask_nvrx(script, checkout, row)
        rows.append(row)
        print(_line(row), flush=True)
        if details:
            with details.open("a") as file:
                file.write(json.dumps(row) + "\n")
    _print_sums(rows)


def _try(script: HangScript, folder: Path, lab: Lab | None) -> Row:
    row: Row = {"script": script.name, "kind": _kind(script), "expected": script.expected, "outcome": ""}
    row["seconds"] = 0.0
    if script.mounts and lab is None:
        row["outcome"] = "benchmark: it needs a lab"
        return row
    with contextlib.ExitStack() as mounts:
        mounts.enter_context(dead_file_servers(lab, script.mounts))
        live = ScriptRun(script.name, folder, lab)
        try:
            _look_at(live, script, lab, row)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            row["outcome"] = f"benchmark: {error!r}"[:200]
        finally:
            mounts.close()  # first: no signal ends who is held there
            live.end()
    return row


def _look_at(live: ScriptRun, script: HangScript, lab: Lab | None, row: Row) -> None:
    if script.fails:
        live.child.wait(START_PATIENCE)
    elif live.wait_until_ready(script.ready, START_PATIENCE):
        time.sleep(SETTLE)
    else:
        row["outcome"] = f"never ready: {''.join(live.last)}"
        return
    _ask(script, live.folder, row)
    if not script.clean and not script.fails:
        _ask_peers(script, live.folder, lab, row)


def _ask(script: HangScript, folder: Path, row: Row) -> None:
    for _ in range(LOOKS if script.clean else 1):
        began = time.monotonic()
        said = ask(folder, "why", "--json")
        row.setdefault("all_seconds", []).append(time.monotonic() - began)
        row.setdefault("answers", []).append(said)
        if "said" not in row or script.outcome(said) != RIGHT:
            row["said"], row["outcome"] = said, script.outcome(said)
    row["seconds"] = max(row["all_seconds"])


def _ask_peers(script: HangScript, folder: Path, lab: Lab | None, row: Row) -> None:
    with ThreadPoolExecutor(1) as pool:
        traces = pool.submit(read_traces, lab, row["said"]["run"])
        row["stacks"] = ask(folder, "status", "--stacks", "--json").get("stacks", [])
        row["traces"] = traces.result()
    row["majority"] = odd_stack(row["stacks"], script)
    row["torchfrtrace"] = torchfrtrace(row["traces"], script)
    row["torchfrtrace as it is"] = torchfrtrace_as_it_is(row["traces"], script)


def _ask_nvrx(script: HangScript, checkout: Path | None, row: Row) -> None:
    if checkout and "traces" in row:
        traces = {int(rank): trace for rank, trace in row["traces"].items()}
        row["nvrx"] = nvrx(traces, script, checkout)
        row["nvrx as it is"] = nvrx_as_it_is(traces, script, checkout)


def _kind(script: HangScript) -> str:
    return "clean" if script.clean else "failure" if script.fails else "hang"


def _line(row: Row) -> str:
    said = row.get("said") or {}
    shown = f"{said.get('state')}: {said.get('class')} of {words(said.get('ranks', []))}, line {_number(said)}"
    cells = [row["script"], row["expected"], shown, row["outcome"].replace("\n", " ")[:200], f"{row['seconds']:.1f}"]
    peers = [row.get(peer, ("", "")) for peer in ("majority", "torchfrtrace", "nvrx")]
    cells += [f"{outcome}: {said}" if outcome else "" for said, outcome in peers]
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def _number(said: Row) -> str:
    return place(said.get("where")).partition(":")[2] or "-"


def _print_table(path: Path, checkout: Path | None) -> None:
    rows = {row["script"]: row for row in map(json.loads, path.read_text().splitlines())}
    found = []
    for script in find([]):
        if script.name in rows:
            found.append(rows[script.name])
            _ask_nvrx(script, checkout, found[-1])
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
        for peer in PEERS:
            counts = collections.Counter(row[peer][1] for row in of_kind if peer in row)
            if counts:
                print(f"  {peer}: {', '.join(f'{outcome} {count}' for outcome, count in counts.most_common())}")
    print(f"(aim: right in {AIM} of 40 hangs, 0 wrong names, 0 false hung)")


if __name__ == "__main__":
    main()
