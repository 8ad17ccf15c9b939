"""A user at a terminal: a home, a project folder, and real `clusterddp` processes started there."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.forked import popen
from tests.lab.system import ProcessId, kill_and_wait, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from tests.lab import Lab
    from tests.lab.host import LabHost

CLUSTERDDP = str(Path(sys.executable).with_name("clusterddp"))
EXAMPLES = Path(__file__).parents[2] / "examples"
LIMIT = 120.0  # seconds; a run takes five of them on two free cores
OURS = "clusterddp: "
STATE = "/.clusterddp/"  # in the command line or the environment of all that we start on a host
SCAN_INTERVAL = 0.05  # seconds between two scans of all processes; a scan takes some milliseconds of CPU time
_LABEL = re.compile(r"\[(\d+) (\S+):(\d+)\] (.*)", re.DOTALL)

# For scripts of workers: they wait for a file that the test makes. `pace` is for those that print on and on.
WAIT = """
import os, sys, threading, time
def wait_for(path):
    while not os.path.exists(path):
        pace(0.02)
def pace(seconds):
    time.sleep(seconds)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """A line of a worker: its label taken apart, and its text."""

    rank: int
    host: str
    local_rank: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """What it wrote on stdout, a line each."""
        return self.out.removesuffix("\n").split("\n") if self.out else []

    @property
    def workers(self) -> list[Said]:
        """The workers' lines, in order; agents' are left out."""
        found = [_LABEL.fullmatch(line) for line in self.lines]
        return [
            Said(rank=int(match[1]), host=match[2], local_rank=int(match[3]), text=match[4]) for match in found if match
        ]

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def run(self) -> str:
        """The id of the run it started."""
        return run_id(self.err)

    @property
    def notes(self) -> list[str]:
        """Its lines on stderr without our name; the last one is the verdict."""
        lines = self.err.splitlines()
        assert all(line.startswith(OURS) for line in lines), self.err
        return [line.removeprefix(OURS) for line in lines]


def run_id(text: str) -> str:
    """The id that `run` says."""
    found = re.search(r"run ([a-z0-9]{10}): \d+ rank", text)
    assert found, text
    return found[1]


class Live:
    """A command that runs; its output is collected as it comes."""

    def __init__(
        self, argv: list[str], cwd: Path, env: Mapping[str, str], *, terminal: bool = False, limit: float = LIMIT
    ) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._reading = threading.Event()
        self._reading.set()
        self._said = {"out": bytearray(), "err": bytearray()}
        self._terminal = -1
        if terminal:
            self._terminal, inner = _terminal()
            self.process = popen(argv, cwd, env, terminal=True, stdin=inner, stdout=inner, stderr=inner)
            os.close(inner)
            ends = {"out": self._terminal}
        else:
            pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            self.process = popen(argv, cwd, env, **pipes)
            assert self.process.stdout
            assert self.process.stderr
            ends = {"out": self.process.stdout.fileno(), "err": self.process.stderr.fileno()}
        # Daemons: what the command has left behind may hold its output open.
        self._readers = [threading.Thread(target=self._collect, args=end, daemon=True) for end in ends.items()]
        for reader in self._readers:
            reader.start()

    def _collect(self, name: str, handle: int) -> None:
        with contextlib.suppress(OSError):  # a terminal whose program has ended
            while data := os.read(handle, 1 << 16):
                with self._changed:
                    self._said[name] += data
                    self._changed.notify_all()
                if name == "out":
                    self._reading.wait()

    def text(self, stream: str = "out") -> str:
        return bytes(self._said[stream]).decode(errors="surrogateescape")

    def has_said(self, enough: Callable[[], bool], limit: float) -> bool:
        """Wait until its output is enough, asked whenever some more comes; whether it is within so many seconds."""
        with self._changed:
            return self._changed.wait_for(enough, limit)

    def wait_for(self, wanted: str, *, stream: str = "out", times: int = 1) -> None:
        """Until it has said so, or so many times."""
        met = self.has_said(lambda: self.text(stream).count(wanted) >= times, self._limit)
        assert met, f"{wanted!r} never came: {self.text('out')}{self.text('err')}"

    @property
    def run(self) -> str:
        """The id of the run it started, once it has said it."""
        self.wait_for("Ctrl-C stops it", stream="out" if self._terminal >= 0 else "err")
        return run_id(self.text("out" if self._terminal >= 0 else "err"))

    def key(self, text: str) -> None:
        """Press a key on its terminal."""
        os.write(self._terminal, text.encode())

    def resize(self, columns: int) -> None:
        """Make its terminal so wide."""
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def pause(self) -> None:
        """Read no more of its stdout (a piece that is on its way excepted)."""
        self._reading.clear()

    def resume(self) -> None:
        """Read on."""
        self._reading.set()

    def interrupt(self) -> None:
        """As a terminal does for Ctrl-C: to the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> Done:
        """Until it has ended by itself."""
        code = self.process.wait(self._limit)
        for reader in self._readers:
            reader.join(self._limit)
        return Done(code=code, out=self.text("out"), err=self.text("err"))

    def close(self) -> None:
        """Away with it, if it is still there."""
        self.process.kill()
        self.resume()
        self.end()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()
        if self._terminal >= 0:
            os.close(self._terminal)


def _terminal() -> tuple[int, int]:
    """Both ends of a terminal of 80 columns."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    return outer, inner


class User:
    """Somebody with a home and a project.

    Attributes:
        folder: The project's folder; commands start there.
        env: The variables of the terminal.
        limit: Seconds in which a command, or what is waited for, must come to its end.
    """

    def __init__(self, base: Path) -> None:
        self.home, self.folder = base / "home", base / "my project"
        self.home.mkdir()
        self.folder.mkdir()
        kept = {name: value for name, value in os.environ.items() if name in {"PATH", "LANG", "TMPDIR"}}
        self.env = {**kept, "HOME": str(self.home), "TERM": "xterm"}
        self.limit = LIMIT

    def write(self, name: str, text: str) -> Path:
        """A file of the project."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def start(
        self,
        *words: str,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        terminal: bool = False,
        prefix: Sequence[str] = (),
    ) -> AbstractContextManager[Live]:
        """A command that runs beside the test, started by ``prefix`` if any; it is gone when the context ends."""
        argv, variables = [*prefix, CLUSTERDDP, *words], {**self.env, **(env or {})}
        return contextlib.closing(Live(argv, self.folder / cwd, variables, terminal=terminal, limit=self.limit))

    def run(self, *words: str, cwd: str = ".", env: Mapping[str, str] | None = None) -> Done:
        """A command, to its end."""
        with self.start(*words, cwd=cwd, env=env) as live:
            return live.end()

    def up(self, inventory: Path) -> Done:
        """`clusterddp up`, which must work."""
        done = self.run("up", str(inventory))
        assert done.code == 0, done.err
        return done

    def hear(self, run: str, wanted: str, *, times: int = 1) -> None:
        """Follow a run until its workers have said so, in all so many times."""
        with self.start("logs", "--follow", run) as live:
            live.wait_for(wanted, times=times)

    def status(self, run: str) -> Any:
        """The status object of a run."""
        return self.run("status", run, "--json").json


_KEPT = ("facts", "helper")  # below the state folder: what torch said, and the helper's byte code
_states: list[Path] = []  # state folders that were empty when their users began


def used_before(user: User) -> User:
    """The same user; this machine, as their host, has what it kept of connections by earlier ones of this session.

    At a first connection the helper's byte code is written and torch is imported: 0.4 s of CPU time.
    """
    state = user.home / ".clusterddp"
    earlier = next((one for one in _states if all((one / name).is_dir() for name in _KEPT)), None)
    if earlier:
        state.mkdir(mode=0o700)
        for name in _KEPT:
            shutil.copytree(earlier / name, state / name)
    else:
        _states.append(state)
    return user


def user_of(lab: Lab, folder: Path, files: Mapping[str, str], **inventory: Any) -> User:
    """Somebody whose project has these files and an inventory of the lab, which every command finds without `up`.

    ``inventory``: as of ``Lab.write_inventory``.
    """
    user = User(folder)
    lab.write_inventory(user.folder / "inventory.yaml", **inventory)
    user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    for name, text in files.items():
        user.write(name, text)
    return user


def helpers(host: LabHost) -> list[ProcessId]:
    """The helpers on a host (what they have forked too): the other ends of operators' connections."""
    stage = "exec(i.read(int(i.readline())))"
    seen = [one.pid for one in host.processes() if stage in " ".join(one.cmdline) and "/bin/sh" not in one.cmdline]
    found = [ProcessId.of(pid) for pid in seen]
    return [process for process in found if process]


def assert_nothing_left(hosts: Iterable[LabHost], run: str) -> None:
    """No process of a run is on these hosts now; who takes its marker out of the workdir goes a moment later."""
    left = {host.name: [one for one in host.leftovers(run) if "beat" not in one.cmdline] for host in hosts}
    assert not any(left.values()), left


def wait_until_nothing_is_left(hosts: Iterable[LabHost], run: str, timeout: float = 20.0) -> None:
    """The supervisor goes a moment after its record, which is what the operator waits for."""
    for host in hosts:
        wait_until(f"nothing of {run} is on {host.name}", _nothing(host, run), timeout, SCAN_INTERVAL)


def _nothing(host: LabHost, run: str) -> Callable[[], bool]:
    return lambda: not host.leftovers(run)


@contextlib.contextmanager
def nothing_left(lab: Lab) -> Iterator[None]:
    """What was started meanwhile by us, supervisors and helpers and workers, is gone from all hosts in the end."""
    yield
    try:
        wait_until_nothing_is_left(lab.machines, STATE)
    finally:  # a failed test must not fail the next one
        left = [ProcessId.of(seen.pid) for host in lab.machines for seen in host.leftovers(STATE)]
        kill_and_wait([process for process in left if process])


def local_processes(marker: str) -> list[int]:
    """Processes of this machine that carry a text in their command line or environment; this one is left out."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            text = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            if folder.name.isdigit() and int(folder.name) != os.getpid() and marker.encode() in text:
                found.append(int(folder.name))
    return found
