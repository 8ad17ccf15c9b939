"""What others say of a hang: the odd one out of all stacks, and torch's own analyzer of flight recorder traces."""

from __future__ import annotations

import contextlib
import io
import json
import logging
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
REQUEST = b"POST /handler/fr_trace_json HTTP/1.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
found = {}
for path in sorted(glob.glob(os.path.expanduser("~/.clusterddp/runs/%s*/*/*/traces/*" % sys.argv[1]))):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        try:
            os.chdir(os.path.dirname(path))
            connection.connect(os.path.basename(path))
            connection.sendall(REQUEST)
            answer = b""
            while piece := connection.recv(1 << 16):
                answer += piece
            found[path.rpartition(".")[2]] = json.loads(answer.partition(b"\r\n\r\n")[2])
        except (OSError, ValueError):
            pass
print(json.dumps(found))
"""
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
    members: dict[tuple[str, str], set[int]] = {}
    for rank, trace in traces.items():
        for entry in trace.get("entries", []):
            name, description = entry["process_group"]
            members.setdefault((name, description), set(range(WORLD)) if name == "0" else set()).add(rank)
    groups = {
        name: {"name": name, "desc": description, "ranks": str(sorted(ranks))}
        for (name, description), ranks in members.items()
    }
    return _analyzed({rank: {**trace, "pg_config": groups} for rank, trace in traces.items()}, script)


def torchfrtrace_as_it_is(traces: Traces, script: HangScript) -> tuple[str, str]:
    """The same of the traces as gloo gives them."""
    return _analyzed(traces, script)


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
