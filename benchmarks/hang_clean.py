"""Whether `clusterddp why` calls clean runs hung: many at once, each with one long pause, looked at again and again."""

from __future__ import annotations

import collections
import json
import os
import random
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from benchmarks.hang_runs import CLUSTERDDP, ScriptRun, ask
from benchmarks.hang_scripts import FALSE_HUNG, FOLDER, HangScript, find

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab import Lab

PAUSE = 180  # seconds
LOOKS = 6  # in a pause
START_PATIENCE = 300.0  # seconds: many start at once
END_PATIENCE = 300.0  # seconds from the pause's end
BETWEEN_STARTS = 3.0  # seconds
HEAD = """
| script | runs | ended well | looks | they say | false hung | slowest |
|---|---|---|---|---|---|---|""".lstrip()


def pausing(names: list[str]) -> list[HangScript]:
    """The clean scripts whose pause is as long as the variable PAUSE says."""
    return [each for each in find(names) if each.clean and "PAUSE" in (FOLDER / f"{each.name}.py").read_text()]


def run_clean(count: int, at_once: int, names: list[str], folder: Path, lab: Lab | None, details: Path | None) -> None:
    """Run so many, each kind of pause in turn, and print the table."""
    kinds = pausing(names)
    random.Random(1).shuffle(kinds)  # those that need the CPU are not to run side by side
    scripts = [kinds[number % len(kinds)] for number in range(count)]
    load = os.getloadavg()[0]
    with ThreadPoolExecutor(at_once) as pool:
        numbered = enumerate(scripts)
        rows = list(pool.map(lambda each: _look_at(f"clean-{each[0]}", each, at_once, folder, lab, details), numbered))
    _print_table(rows)
    print(f"load {load:.1f} before, {os.getloadavg()[0]:.1f} at the end; {at_once} runs at once")


def _look_at(
    run: str, numbered: tuple[int, HangScript], at_once: int, folder: Path, lab: Lab | None, details: Path | None
) -> dict[str, Any]:
    """One run, looked at until it ends."""
    number, script = numbered
    if number < at_once:
        time.sleep(number * BETWEEN_STARTS)
    row: dict[str, Any] = {"script": script.name, "run": run, "looks": [], "seconds": [], "code": None, "why": ""}
    live = ScriptRun(script.name, folder, lab, "--name", run, "--env", f"PAUSE={PAUSE}")
    try:
        if not live.wait_until_ready(script.ready, START_PATIENCE):
            raise ValueError(f"never ready: {''.join(live.last)}")
        ready = time.monotonic()
        for look in range(LOOKS):
            at = ready + PAUSE * (look + 0.2 + 0.1 * (number % 5)) / LOOKS
            time.sleep(max(0.0, at - time.monotonic()))
            if live.child.poll() is None:
                _ask(run, script, folder, row, details)
        row["code"] = live.child.wait(END_PATIENCE)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        row["why"] = repr(error)[:300]
    finally:
        if live.child.poll() is None:
            live.end(run)
    print(f"{run} {script.name}: {row['looks']} exit code {row['code']} {row['why']}", flush=True)
    if details:
        with details.open("a") as file:
            file.write(json.dumps(row) + "\n")
    return row


def _ask(run: str, script: HangScript, folder: Path, row: dict[str, Any], details: Path | None) -> None:
    began = time.monotonic()
    try:
        said = ask(folder, "why", run, "--json")
    except subprocess.TimeoutExpired:
        row["looks"].append("no answer in time")
        return
    row["seconds"].append(round(time.monotonic() - began, 1))
    row["looks"].append(said["state"])
    if script.outcome(said) == FALSE_HUNG:
        row.setdefault("said", []).append(said)
        if details:  # with the traces that it was judged by
            target = f"{details}.{run}.{len(row['looks'])}.tar.gz"
            subprocess.run([CLUSTERDDP, "bundle", run, "-o", target], cwd=folder, capture_output=True, check=False)


def _print_table(rows: list[dict[str, Any]]) -> None:
    print(HEAD)
    for name in [*dict.fromkeys(row["script"] for row in rows), "all"]:
        of_kind = [row for row in rows if name in (row["script"], "all")]
        looks = collections.Counter(state for row in of_kind for state in row["looks"])
        told = ", ".join(f"{state} {count}" for state, count in looks.most_common())
        well = sum(row["code"] == 0 for row in of_kind)
        slowest = max((seconds for row in of_kind for seconds in row["seconds"]), default=0.0)
        cells = (name, len(of_kind), well, looks.total(), told, looks["hung"], f"{slowest:.1f} s")
        print("| " + " | ".join(map(str, cells)) + " |")
