"""Two processes of one node are killed, or stopped, at once: which pairs there are, at which phase, and what follows.

Three hosts, `--nnodes 2:3 --relaunch 2`. The workers say on and on which attempt they are in, and when, by the clock
that all hosts of this machine have in common; when they are let go they leave something behind that has to be cleared.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from itertools import combinations, groupby, pairwise
from typing import TYPE_CHECKING, TypeVar

from tests.chaos import invariants
from tests.integration.cli import WAIT
from tests.lab.system import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.chaos.scene import Scene
    from tests.integration.cli import Done, Live
    from tests.lab.host import LabHost

T = TypeVar("T")
ROLES = ("supervisor", "fence", "agent", "store", "shim", "worker", "keeper", "fork server")
THERE = {  # at each phase of a node
    "waiting": {"supervisor", "fence", "store", "fork server"},
    "starting": {"supervisor", "fence", "store", "fork server", "agent"},
    "running": set(ROLES),
    "clearing": {"supervisor", "fence", "store", "fork server"},
    "between": {"supervisor", "fence", "fork server"},
    "concluding": {"supervisor", "fence"},
}
HOW = {"killed": "-KILL", "stopped": "-STOP"}
ENDS = 40.0  # seconds after the workers were let go in which a run ends that goes on by itself
AGAIN = 20.0  # seconds in which the others go on, once supervisor and fence of one node are gone
CANNOT, STOPPED = 125, 143
PHASE_LIMIT = 60.0
ARGV = ("run", "--nnodes", "2:3", "--relaunch", "2", "beats.py")
BEATS = f"""{WAIT}
import signal, subprocess
attempt, end = os.environ["TORCHELASTIC_RUN_ID"].rpartition(".")[2], sys.argv[1]
number = 0
while not os.path.exists(end):
    sys.stdout.write("%d of %d in attempt %s at %s\\n" % (
        number, os.getpid(), attempt, time.clock_gettime(time.CLOCK_BOOTTIME)))
    sys.stdout.flush()
    number += 1
    if os.path.exists(end + " fails") and attempt == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    pace(0.1)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"""
_SAID = re.compile(r"(\d+) of (\d+) in attempt (\d+) at ([\d.]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """``roles`` of one node, at a phase; one alone where the other is not there then."""

    phase: str
    roles: tuple[str, ...]
    how: str

    @property
    def name(self) -> str:
        return f"{self.phase}: {' and '.join(self.roles)} {self.how}"


def all_pairs() -> list[Pair]:
    """Every pair at each phase, without the parts that are not there."""
    found = {
        Pair(phase=phase, roles=tuple(role for role in two if role in there), how=how): None
        for phase, there in THERE.items()
        for two in combinations(ROLES, 2)
        for how in HOW
        if there.intersection(two)
    }
    return list(found)


PAIRS = all_pairs()


def play(scene: Scene, pair: Pair) -> None:
    """Start a run, do it at that phase, and see what becomes of the run."""
    scene.user.write("beats.py", BEATS)
    victim = scene.hosts[0] if "store" in pair.roles else scene.chance.choice(scene.hosts)
    earlier = {path.parts[-3] for path in _spools(victim)}  # of pairs that were played on these hosts before
    live = scene.enter(scene.user.start(*ARGV, scene.go))
    scene.stack.callback(go_on, victim)
    reach(scene, live, victim, pair.phase, earlier)
    if pair.phase in {"waiting", "starting"}:  # a node's processes begin one after the other
        until(lambda: len(processes(victim, scene.runs[-1], pair.roles)) == len(pair.roles), f"all of {pair.roles}")
    doomed = processes(victim, scene.runs[-1], pair.roles)
    absent = [role for role in pair.roles if role not in doomed]
    scene.fault(f"{pair.name} on {victim.name}" + (f", without {' and '.join(absent)}" if absent else ""))
    assert doomed or pair.phase not in {"waiting", "running"}
    before = workers(live.text(), [host.name for host in scene.hosts])
    victim.run(["kill", HOW[pair.how], *map(str, doomed.values())], user="root", check=False)
    if pair.phase == "waiting":
        live.process.send_signal(signal.SIGCONT)
    if pair.phase in {"running", "starting"} and pair.roles == ("supervisor", "fence"):
        others_go_on(scene, live, victim, before)
    scene.release()
    # What the script left behind has nobody any more who would end it; and a file may be half written.
    unguarded = pair.how == "killed" and pair.roles == ("supervisor", "fence")
    scene.torn = pair.how == "killed" and "supervisor" in pair.roles
    done = ended(scene, live, victim)
    if unguarded and pair.phase in {"clearing", "concluding"}:
        stop = scene.user.run("stop", scene.runs[-1], "--grace", "0")
        assert stop.code == 0, stop.err
    judged(scene, pair, victim, done)
    shown_once(done)
    one_at_a_time(scene, done)


def go_on(victim: LabHost) -> None:
    """Whatever was stopped."""
    for seen in victim.processes():
        with contextlib.suppress(OSError):
            os.kill(seen.pid, signal.SIGCONT)


def reach(scene: Scene, live: Live, victim: LabHost, phase: str, earlier: set[str]) -> None:
    """Until the victim is at that phase of the run, which is none of the earlier ones."""
    if phase == "waiting":
        (seen,) = until(lambda: [path for path in _spools(victim) if path.parts[-3] not in earlier], "a spool")
        until((seen / "supervisor.json").exists, "a supervisor")
        live.process.send_signal(signal.SIGSTOP)  # the operator says nothing more until it goes on
        scene.runs.append(seen.parts[-3])
        return
    scene.runs.append(live.run)
    if phase == "starting":
        until(lambda: _events(victim, scene, "agent_started"), "an agent")
        return
    for rank, host in enumerate(scene.hosts):
        live.wait_for(f"[{rank} {host.name}:0] ")
    if phase == "between":
        for host in scene.hosts:
            host.write(scene.go + " fails", "")
        until((_spools(victim, scene.runs[-1])[0] / "exit.json").exists, "the end of the attempt")
    elif phase in {"clearing", "concluding"}:
        scene.release()
        until(lambda: _events(victim, scene, "agent_exited"), "the agent's end")
        if phase == "concluding":
            until((_spools(victim, scene.runs[-1])[-1] / "exit.json").exists, "the node's end")


def until(met: Callable[[], T], what: str) -> T:
    """Look very often: phases are short."""
    return wait_until(what, met, PHASE_LIMIT, 0.005)


def _spools(host: LabHost, run: str = "*") -> list[Path]:
    """A host's spools of a run, one an attempt; of all runs without one."""
    runs = invariants.root(host) / f"home/{host.users[0].name}/.clusterddp/runs"
    return sorted(runs.glob(f"{run}/*/*-{host.name}"), key=lambda path: (path.parts[-3], int(path.parts[-2])))


def _events(host: LabHost, scene: Scene, name: str) -> list[dict[str, object]]:
    found = _spools(host, scene.runs[-1])[-1:]
    lines = [line for path in found for line in (path / "events.jsonl").read_text().splitlines()]
    events = [json.loads(line) for line in lines if line.endswith("}")]
    return [event for event in events if event["event"] == name]


def processes(host: LabHost, run: str, roles: tuple[str, ...]) -> dict[str, int]:
    """The pids, as the host numbers them, of those of the roles that are there."""
    spool = _spools(host, run)[-1]
    table = {}
    for line in host.run(["ps", "-eo", "pid=,ppid=,stat=,args="], user="root").stdout.splitlines():
        number, above, _state, args = line.split(None, 3)
        table[int(number)] = (int(above), args)
    supervisor = int(json.loads((spool / "supervisor.json").read_text())["pid"])
    found = {"supervisor": supervisor, "fence": table[supervisor][0] if supervisor in table else 0}
    for pid, (parent, args) in table.items():
        role = _role(args)
        if role == "fork server" and parent != supervisor:
            role = "keeper"
        if role and (role in {"keeper", "shim", "worker"} or parent == supervisor):
            found[role] = pid
    return {role: found[role] for role in roles if found.get(role)}


def _role(args: str) -> str:
    """A process of a run by its command line; empty for others."""
    signs = {
        "fork server": "clusterddp: fork server of",
        "agent": "torch.distributed.run",
        "store": "remote.pyz store ",
        "shim": "/worker -u beats.py",
        "worker": " -u beats.py",
    }
    return next((role for role, sign in signs.items() if sign in args), "")


def workers(text: str, hosts: list[str]) -> dict[str, set[str]]:
    """Which workers of these hosts have said something, by host."""
    found: dict[str, set[str]] = {name: set() for name in hosts}
    for name, pid in re.findall(r"^\[\d+ (\w+):0\] \d+ of (\d+) ", text, re.MULTILINE):
        found.get(name, set()).add(pid)
    return found


def others_go_on(scene: Scene, live: Live, victim: LabHost, before: dict[str, set[str]]) -> None:
    """Without the victim, soon: in another round or another attempt."""
    names = [host.name for host in scene.hosts if host is not victim]
    met = live.has_said(lambda: all(now - before[name] for name, now in workers(live.text(), names).items()), AGAIN)
    assert met, f"{live.text()[-2000:]}{live.text('err')}"


def ended(scene: Scene, live: Live, victim: LabHost) -> Done:
    """The run ends, by itself, else by `stop`, else once what was stopped goes on."""
    if not ends_within(live, ENDS):
        scene.row.fault += "; stop"
        stop = scene.user.run("stop", scene.runs[-1], "--grace", "0")
        assert stop.code in {0, 1}, stop.err
        proved = [note for note in stop.notes if note.endswith("proved empty")]
        assert len(proved) == 3 or any(victim.name in note for note in stop.notes), stop.err
        ends_within(live, ENDS)
    go_on(victim)
    return scene.seen(live.end())


def ends_within(live: Live, seconds: float) -> bool:
    """Whether the operator's command ends in that time."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        live.process.wait(seconds)
    return live.process.poll() is not None


def judged(scene: Scene, pair: Pair, victim: LabHost, done: Done) -> None:
    """The last line says how it ended; where it was not well, it names the victim."""
    told = f"{done.err}\n{invariants.recorded(scene.hosts, scene.runs[-1])}"
    last = done.notes[-1]
    if done.code == 0:
        assert " succeeded" in last, told
    elif done.code == STOPPED:
        assert "stop" in scene.row.fault, told
        assert last.startswith("stopped: "), told
    else:
        assert victim.name in last, told
        assert done.code in {CANNOT, 137, 1}, told
    started = pair.phase in {"starting", "running", "between"}
    by_itself = started or (pair.phase == "waiting" and "supervisor" not in pair.roles)
    assert not by_itself or pair.how == "stopped" or done.code == 0, told


def shown_once(done: Done) -> None:
    """Each worker's lines, from its first on, in order."""
    lines = [(said.host, *map(int, match.groups()[1:3]), int(match[1])) for said in done.workers
             if (match := _SAID.fullmatch(said.text))]  # fmt: skip
    lines.sort(key=lambda line: line[:3])  # stable: a worker's lines stay in the order in which they were shown
    for worker, said in groupby(lines, key=lambda line: line[:3]):
        numbers = [line[3] for line in said]
        assert numbers == list(range(len(numbers))), (worker, numbers)


def one_at_a_time(scene: Scene, done: Done) -> None:
    """Each attempt's last sign of life, on any host, came before the first of the next."""
    lives: dict[int, list[float]] = {}
    again = scene.user.run("logs", scene.runs[-1], "--attempt", "all") if done.workers else done
    for said in (*again.workers, *done.workers):
        if match := _SAID.fullmatch(said.text):
            lives.setdefault(int(match[3]), []).append(float(match[4]))
    spans = [(min(times), max(times)) for _, times in sorted(lives.items())]
    assert all(before[1] < after[0] for before, after in pairwise(spans)), spans
    wait_until("no worker is left", lambda: not any(host.leftovers("beats.py") for host in scene.hosts), ENDS)
