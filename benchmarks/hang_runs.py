"""Runs of the scripts of benchmarks/hangs: on three lab hosts or here, followed until they are where they stay."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.hang_scripts import WORLD
from tests.lab import Lab
from tests.lab.disorders import HUNG
from tests.lean import WHOLE_TORCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CLUSTERDDP = str(Path(sys.executable).with_name("clusterddp"))
END_PATIENCE = 20.0  # seconds for a run that is told to end
ANSWER_PATIENCE = 120.0  # seconds for a command: on a busy machine each takes long


@contextlib.contextmanager
def hosts(*, local: bool) -> Iterator[Lab | None]:
    """Three hosts of the lab, which are the inventory from then on; None for this machine alone."""
    if local:
        yield None
        return
    with Lab(WORLD, variables=WHOLE_TORCH) as lab:
        os.environ["CLUSTERDDP_INVENTORY"] = str(lab.inventory)
        yield lab


class ScriptRun:
    """One run of a script, by the project ``folder``; the caller ends it with ``end``."""

    def __init__(self, script: str, folder: Path, lab: Lab | None, *options: str) -> None:
        shape = [] if lab else ["--nnodes", "1", "--nproc-per-node", str(WORLD)]
        argv = [CLUSTERDDP, "run", "--no-doctor", *shape, *options, f"{script}.py"]
        self.folder = folder
        self.last = collections.deque[str](maxlen=8)  # lines
        self.child = subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._output: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.child.stdout or ():
            self._output.put(line)
        self._output.put(None)

    def wait_until_ready(self, ranks: int, patience: float) -> bool:
        """Whether so many ranks have printed "ready" within ``patience`` seconds."""
        seen, deadline = 0, time.monotonic() + patience
        while seen < ranks:
            try:
                line = self._output.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return False
            if line is None:
                return False
            self.last.append(line)
            seen += line.rstrip().endswith("ready")
        return True

    def end(self, *runs: str) -> None:
        """Stop it, ``runs`` (default: all), and wait for its end."""
        stop = [CLUSTERDDP, "stop", *(runs or ["--all"]), "--grace", "0"]
        subprocess.run(stop, cwd=self.folder, capture_output=True, check=False)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(END_PATIENCE)
        self.child.kill()
        self.child.wait()


def ask(folder: Path, *words: str) -> dict[str, Any]:
    """What a command of clusterddp answers in JSON; raises ValueError where it fails."""
    argv = [CLUSTERDDP, *words]
    ended = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=ANSWER_PATIENCE, check=False)
    if ended.returncode:
        raise ValueError(f"{' '.join(words)}: {ended.stderr[-300:]}")
    value: dict[str, Any] = json.loads(ended.stdout)
    return value


@contextlib.contextmanager
def dead_file_servers(lab: Lab | None, paths: Sequence[str]) -> Iterator[None]:
    """Have these folders on all hosts be mounts of a server that never answers; for a lab."""
    with contextlib.ExitStack() as mounts:
        for host in lab.hosts if lab else ():
            for path in paths:
                host.run(["mkdir", "-p", path], user="root")
                argv = host.argv([sys.executable, "-c", HUNG.read_text(), path], user="root")
                server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
                mounts.callback(host.run, ["umount", "-l", path], user="root")
                mounts.callback(server.wait)
                mounts.callback(server.kill)  # who was held lets go
                if server.stdout is None or server.stdout.readline() != "mounted\n":
                    raise ValueError(f"no mount that hangs on {host.name}: it needs /dev/fuse")
        yield
