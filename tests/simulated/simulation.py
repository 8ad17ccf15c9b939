"""Start simulated hosts, and run commands on them; each command's seconds, CPU, memory and bytes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulated.faults import name_of
from tests.simulated.process import STATISTICS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

    from tests.simulated.faults import Fault

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 600.0  # seconds of a command, which is killed then


class Done(NamedTuple):
    """A command that has ended; CPU and memory are those of its process, without those of the hosts."""

    code: int
    out: str
    err: str
    seconds: float
    cpu: float  # seconds
    memory: int  # the most bytes that were resident
    counts: Mapping[str, int]  # bytes both ways, and requests by operation


class Simulation:
    """So many hosts in a process of their own, while the context lasts.

    ``variables``: of all hosts in the inventory. ``faults``: by host. ``lines``: how many each worker of a run prints.
    """

    def __init__(
        self,
        count: int,
        *,
        variables: Mapping[str, Any] | None = None,
        faults: Mapping[str, Fault] | None = None,
        lines: int = 0,
    ) -> None:
        self.names = [name_of(number) for number in range(count)]
        self._variables, self._faults, self._lines = dict(variables or {}), dict(faults or {}), lines
        self._folder = tempfile.TemporaryDirectory(prefix="simulated-")
        self.folder = Path(self._folder.name)
        self._socket = str(self.folder / "hosts.sock")

    def __enter__(self) -> Self:
        self.inventory = self.folder / "inventory.yaml"
        self.inventory.write_text(self._inventory_text())
        settings = {
            "socket": self._socket,
            "folder": str(self.folder),
            "lines": self._lines,
            "faults": {name: fault._asdict() for name, fault in self._faults.items()},
        }
        argv = [sys.executable, "-m", "tests.simulated.process", json.dumps(settings)]
        self._process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError("the simulated hosts did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()
        self._folder.cleanup()

    def _inventory_text(self) -> str:
        """The hosts as one range; their addresses are told by the hosts themselves."""
        first, last = self.names[0].removeprefix("sim"), self.names[-1].removeprefix("sim")
        fixed = {"clusterddp_workdir": str(self.folder / "work"), "clusterddp_fork_server": False}
        return json.dumps({"all": {"vars": {**fixed, **self._variables}, "hosts": {f"sim[{first}:{last}]": None}}})

    def clusterddp(self, *words: str, cwd: Path, limits: str = "", env: Mapping[str, str] | None = None) -> Done:
        """Run one command to its end; ``limits``: a line of shell before it, such as ``ulimit -n 64``."""
        self._take_counts()
        argv = [
            sys.executable,
            "-m",
            "tests.simulated.operator",
            self._socket,
            *words,
        ]
        if limits:
            argv = ["sh", "-c", f'{limits}; exec "$@"', "sh", *argv]
        env = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            began = time.monotonic()
            process = subprocess.Popen(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            watchdog = threading.Timer(TIMEOUT, process.kill)
            watchdog.start()
            _, status, used = os.wait4(process.pid, 0)
            watchdog.cancel()
            seconds = time.monotonic() - began
            process.returncode = os.waitstatus_to_exitcode(status)
            printed, said = _text(out), _text(err)
        cpu, memory = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
        return Done(process.returncode, printed, said, seconds, cpu, memory, self._take_counts())

    def _take_counts(self) -> dict[str, int]:
        """Bytes and requests since the last time."""
        with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rwb") as stream:
            connection.connect(self._socket)
            stream.write(STATISTICS.encode() + b"\n")
            stream.flush()
            counts: dict[str, int] = json.loads(stream.readline())
            return counts


def _text(stream: Any) -> str:
    stream.seek(0)
    text: str = stream.read().decode()
    return text
