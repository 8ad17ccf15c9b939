"""What others say of a hang: the odd one out of all stacks, and analyzers of flight recorder traces.

torch has torchfrtrace, and NVIDIA's resiliency extension (NVRx) a module of its own, which is in no package yet
(0.4.1 is the newest): it is taken from a checkout of its sources, and is no dependency of anything here.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import pickle
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.hang_scripts import RIGHT, UNDECIDED, WORLD, WRONG_NAME, HangScript, place, words

if TYPE_CHECKING:
    from tests.lab import Lab

Traces = dict[int, dict[str, Any]]
READS_TRACES = r"""
import glob, json, os, socket, sys
QUESTIONS = (b"fr_trace_json", b"dump_nccl_trace_json")
REQUEST = b"POST /handler/%s HTTP/1.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
found = {}
for path in sorted(glob.glob(os.path.expanduser("~/.clusterddp/runs/%s*/*/*/traces/*" % sys.argv[1]))):
    os.chdir(os.path.dirname(path))
    for question in QUESTIONS:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            try:
                connection.connect(os.path.basename(path))
                connection.sendall(REQUEST % question)
                answer = b""
                while piece := connection.recv(1 << 16):
                    answer += piece
                trace = json.loads(answer.partition(b"\r\n\r\n")[2])
            except (OSError, ValueError):
                continue
            if "entries" in trace:
                found[path.rpartition(".")[2]] = trace
print(json.dumps(found))
"""
NVRX = "nvidia_resiliency_ext.attribution.trace_analyzer.fr_attribution"
NVRX_COLUMNS = 6  # of the table that it prints
CULPRITS = re.compile(r"(?:Culprit rank |missing ranks: \{)([\d, ]+)")


def odd_stack(stacks: list[dict[str, Any]], script: HangScript) -> tuple[str, str]:
    """What the majority of stacks says, and whether that is right: the ranks that are not where most are."""
    places: dict[str, list[int]] = {}
    for stack in stacks:
        places.setdefault(stack["place"], []).append(stack["rank"])
    most = max(map(len, places.values()), default=0)
    usual = [ranks for ranks in places.values() if len(ranks) == most]
    if len(usual) != 1 or len(places) == 1:
        return "no majority" if places else "no stacks", UNDECIDED
    blamed = sorted(rank for ranks in places.values() if ranks is not usual[0] for rank in ranks)
    where = next(place for place, ranks in places.items() if ranks is not usual[0])
    said = f"{words(blamed)} at {where}"
    if tuple(blamed) not in script.ranks:
        return said, WRONG_NAME
    return said, RIGHT if place(where) in script.places else "wrong line"


def read_traces(lab: Lab | None, run: str) -> Traces:
    """The whole traces of a run's workers that answer: rank → trace."""
    command = [sys.executable, "-c", READS_TRACES, run]
    if lab is None:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        return {int(local_rank): trace for local_rank, trace in json.loads(answer).items()}
    answers = [host.run(command, user="trainer", timeout=60).stdout for host in lab.hosts]
    return {rank: trace for rank, answer in enumerate(answers) for trace in json.loads(answer).values()}


def torchfrtrace(traces: Traces, script: HangScript) -> tuple[str, str]:
    """What torch's analyzer prints of the same workers' traces, and whether that names the ranks; it knows no lines.

    It reads pickles, which only NCCL writes: the same traces, read as JSON from the workers' servers, are pickled. Its
    table of groups is written anew, as gloo's has one group without a name, for which the analyzer crashes.
    """
    return _analyzed(_with_groups(traces), script)


def torchfrtrace_as_it_is(traces: Traces, script: HangScript) -> tuple[str, str]:
    """The same of the traces as gloo gives them."""
    return _analyzed(traces, script)


def nvrx(traces: Traces, script: HangScript, checkout: Path) -> tuple[str, str]:
    """What NVRx's analyzer of traces says, and whether that names the ranks; it knows no lines.

    It expects traces as NCCL's pickles have them: a table of groups with names, numbers rather than texts in the state
    of groups, and finished operations that say so. All this is put right in gloo's first; as they are it reads none.
    """
    prepared = {
        rank: {
            **trace,
            "pg_status": {
                group: {name: int(value) for name, value in status.items()}
                for group, status in trace.get("pg_status", {}).items()
            },
            "entries": [
                {**entry, "state": "completed" if entry["retired"] else entry["state"]} for entry in trace["entries"]
            ],
        }
        for rank, trace in _with_groups(traces).items()
        if trace.get("entries")
    }
    return _nvrx(prepared, script, checkout)


def nvrx_as_it_is(traces: Traces, script: HangScript, checkout: Path) -> tuple[str, str]:
    """The same of the traces as gloo gives them."""
    return _nvrx(traces, script, checkout)


def _nvrx(traces: Traces, script: HangScript, checkout: Path) -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as name:
        for rank, trace in traces.items():
            Path(name, f"_dump_{rank}.json").write_text(json.dumps(trace))
        argv = [sys.executable, "-m", NVRX, "--fr-path", name, "--emit-stdout"]
        variables = {**os.environ, "PYTHONPATH": str(checkout / "src")}
        ended = subprocess.run(argv, env=variables, capture_output=True, text=True, timeout=60, check=False)
    if ended.returncode:
        return ended.stderr.strip().rpartition("\n")[2][:60], "crash"
    rows = [line.split("|") for line in ended.stdout.splitlines() if line.count("|") == NVRX_COLUMNS - 1]
    blamed = {int(rank) for row in rows for rank in row[-1].split(",") if rank.strip().isdigit()}
    if not blamed:
        return "nothing", UNDECIDED
    said = f"missing ranks: {words(sorted(blamed))}"
    return said, "right ranks" if tuple(sorted(blamed)) in script.ranks else WRONG_NAME


def _with_groups(traces: Traces) -> Traces:
    """The traces with a table of groups that is made from their entries."""
    members: dict[tuple[str, str], set[int]] = {}
    for rank, trace in traces.items():
        for entry in trace.get("entries", []):
            name, description = entry["process_group"]
            members.setdefault((name, description), set(range(WORLD)) if name == "0" else set()).add(rank)
    groups = {
        name: {"name": name, "desc": description, "ranks": str(sorted(ranks))}
        for (name, description), ranks in members.items()
    }
    return {rank: {**trace, "pg_config": groups} for rank, trace in traces.items()}


def _analyzed(traces: Traces, script: HangScript) -> tuple[str, str]:
    with contextlib.redirect_stdout(io.StringIO()):  # it says there which packages it goes without
        from torch.distributed.flight_recorder import fr_trace  # noqa: PLC0415 - what `torchfrtrace` runs; once for all scripts
    output = io.StringIO()
    logger = logging.getLogger("Flight Recorder")
    logger.handlers[:] = [logging.StreamHandler(output)]
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(output):
        for rank, trace in traces.items():
            Path(name, f"rank_{rank}").write_bytes(pickle.dumps(trace))
        try:
            fr_trace.main([name, "--prefix", "rank_"])
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it dies of is its result
            told = output.getvalue().strip().splitlines()
            return f"{type(error).__name__}: {error or told[-1:]}"[:60], "crash"
    blamed = {int(rank) for ranks in CULPRITS.findall(output.getvalue()) for rank in ranks.split(",") if rank.strip()}
    telling = [line for line in output.getvalue().splitlines() if CULPRITS.search(line)]
    said = next(iter(telling), output.getvalue().strip()[-60:] or "nothing").removeprefix("error msg: ")[:60]
    if not blamed:
        return said, UNDECIDED
    return said, "right ranks" if tuple(sorted(blamed)) in script.ranks else WRONG_NAME
