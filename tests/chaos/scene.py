"""One scenario under way: who acts, on which hosts, by which chance, what was done to them and what the user saw."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.chaos import invariants
from tests.integration.cli import STATE, WAIT, Done, User, wait_until_nothing_is_left
from tests.lab.system import PATIENCE, let_pass

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.integration.cli import Live
    from tests.lab import Lab
    from tests.lab.host import LabHost

# Prints numbered lines, a few at a time; then waits for a file, if one is named; ends with the code named.
COUNTS = f"""{WAIT}
lines, seconds, go, code = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], int(sys.argv[4])
BLOCK = 20
for number in range(lines):
    print("line", number, "." * 60)
    if number % BLOCK == 0:
        sys.stdout.flush()
        pace(seconds * BLOCK / lines)
print("counted", flush=True)
if go:
    wait_for(go)
sys.exit(code)
"""
SAW = 110  # characters of what the user saw that the table has room for


@dataclass(kw_only=True, slots=True)
class Row:
    """What one scenario did and measured; seconds are since the fault.

    Attributes:
        verdict: Seconds until the operator's command had ended.
        empty: Seconds until nothing of the run was left on any host.
        lines: How many lines the workers had written, and how many of them were lost, doubled.
    """

    scenario: str
    fault: str = ""
    saw: str = ""
    code: int | None = None
    verdict: float | None = None
    empty: float | None = None
    lines: tuple[int, int, int] | None = None
    failed: bool = True

    def cells(self) -> list[str]:
        """The table's cells."""
        written, lost, doubled = map(str, self.lines) if self.lines else ("–", "–", "–")
        seconds = ["–" if value is None else f"{value:.1f}" for value in (self.verdict, self.empty)]
        code = "–" if self.code is None else str(self.code)
        name = ("FAILED: " if self.failed else "") + self.scenario
        return [name, self.fault, self.saw[:SAW], code, *seconds, written, lost, doubled]


HEADER = ["scenario", "fault", "seen by the user", "code", "verdict s", "empty s", "lines", "lost", "doubled"]


def table(rows: Sequence[Row]) -> list[str]:
    """The rows as lines of text."""
    cells = [HEADER, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADER))]
    return ["  ".join(f"{text:{width}}" for text, width in zip(line, widths, strict=True)).rstrip() for line in cells]


@dataclass(kw_only=True)
class Scene:
    """A user with a project and an inventory of some hosts, and what happens to them.

    Attributes:
        hosts: The hosts of the inventory, in its order.
        chance: The seeded source of every moment and place chosen.
        runs: Ids of runs that were started; nothing of them may be left in the end.
        torn: Whether files may be torn in the end, because the disk was full.
    """

    lab: Lab
    user: User
    hosts: list[LabHost]
    chance: random.Random
    row: Row
    runs: list[str] = field(default_factory=list)
    torn: bool = False
    at: float = field(default_factory=time.monotonic)
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def go(self) -> str:
        """The file that workers wait for."""
        return f"/tmp/go {self.user.folder.parent.name}"

    def counting(self, lines: int, seconds: float = 0, *, waits: bool = True, code: int = 0) -> list[str]:
        """The script and its arguments for workers that count."""
        return ["counts.py", str(lines), str(seconds), self.go if waits else "", str(code)]

    def release(self) -> None:
        """Let the workers that wait go on."""
        for host in self.hosts:
            if host.running:
                host.write(self.go, "")

    def enter(self, command: AbstractContextManager[Live]) -> Live:
        """A command that is gone when the scene is over."""
        return self.stack.enter_context(command)

    def detached(self, *words: str) -> str:
        """Start a detached run, whose id it is."""
        done = self.user.run("run", "--detach", *words)
        assert done.code == 0, done.err
        self.runs.append(done.lines[0])
        return done.lines[0]

    def fault(self, what: str) -> None:
        """Note what is done to the scene now; times count from here."""
        self.row.fault, self.at = what, time.monotonic()

    def until_it_has_lasted(self, seconds: float) -> None:
        """Wait until the fault is so many seconds old."""
        let_pass(max(0.0, self.at + seconds - time.monotonic()))

    def seen(self, done: Done) -> Done:
        """Note how the operator's command ended, and that it has ended now."""
        self.row.verdict = time.monotonic() - self.at
        self.row.code, self.row.saw = done.code, (done.notes or [""])[-1]
        return done

    def counted(self, done: Done, lines: int, ranks: int) -> None:
        """Every rank's every line is there, once and in order."""
        account = invariants.account(done, lines, ranks)
        self.row.lines = (lines * ranks, account.lost, account.doubled)
        assert account == invariants.NOTHING_AMISS, done.err

    def pid(self, host: LabHost, role: str) -> int:
        """The recorded pid, on its host, of the supervisor or the agent of the last run."""
        spool = invariants.spool(host, self.runs[-1])
        if role == "supervisor":
            return int(json.loads((spool / "supervisor.json").read_text())["pid"])
        started = [line for line in (spool / "events.jsonl").read_text().splitlines() if "agent_started" in line]
        return int(json.loads(started[-1])["pid"])


@contextlib.contextmanager
def played(lab: Lab, hosts: Sequence[LabHost], base: Path, chance: random.Random, row: Row) -> Iterator[Scene]:
    """A scene, its invariants when it is over, and its hosts healthy again whatever happened."""
    user = User(base)
    lab.write_inventory(user.folder / "inventory.yaml", hosts=[host.name for host in hosts])
    user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    user.write("counts.py", COUNTS)
    scene = Scene(lab=lab, user=user, hosts=list(hosts), chance=chance, row=row)
    try:
        with scene.stack:
            yield scene
        invariants.hold(scene.hosts, user, scene.runs, torn=scene.torn)
        row.empty = time.monotonic() - scene.at
        row.failed = False
    finally:
        for host in hosts:
            mend(host)


def mend(host: LabHost) -> None:
    """On, joined, thawed, and without a process of ours."""
    host.go_on()
    if not host.running:
        host.boot()
    host.heal()
    host.resume()
    invariants.sweep(host)
    wait_until_nothing_is_left([host], STATE, PATIENCE)
