"""Hosts are held up for longer than the others wait: a supervisor, a disk, the whole host; and who stands between them.

Two nodes and a spare, on hosts of their own beside the rest of the suite. Whatever happens no two attempts run at once
on any hosts, there is a verdict, and nothing is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chaos import invariants
from tests.chaos.beside import STARTING, Lost, outcome
from tests.chaos.rounds import ROUNDS
from tests.integration.cli import WAIT
from tests.lab import network
from tests.lab.system import command, let_pass, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.chaos.beside import UnderWay
    from tests.chaos.scene import Scene
    from tests.integration.cli import Done, Live
    from tests.lab.host import LabHost

LONG = pytest.mark.skipif(ROUNDS == 1, reason="a minute and a half each; `make chaos` does it")
HELD = 45.0  # seconds
ASLEEP = 15.0  # seconds; the others begin anew after eight
AWAKE = 1.0  # seconds in which a host that wakes has ended its part
RELAY = Path(__file__).with_name("relay.py")
# Says on and on which attempt it is in, and when, by the clock that all hosts of this machine have in common.
BEATS = f"""{WAIT}
attempt = os.environ["TORCHELASTIC_RUN_ID"].rpartition(".")[2]
while not os.path.exists(sys.argv[1]):
    # At once: Python's -u writes each word by itself, and who is killed in between leaves half a line.
    sys.stdout.write("attempt %s at %s\\n" % (attempt, time.clock_gettime(time.CLOCK_BOOTTIME)))
    pace(0.05)
"""


def under_way_with_a_spare(scene: Scene) -> Live:
    """A run on the first two hosts, whose workers tell when they live."""
    scene.user.write("beats.py", BEATS)
    names = [host.name for host in scene.hosts]
    scene.lab.write_inventory(
        scene.user.folder / "inventory.yaml", hosts=names, more={names[2]: {"clusterddp_role": "spare"}}
    )
    with STARTING:
        live = scene.enter(scene.user.start("run", "--relaunch", "5", "beats.py", scene.go))
        scene.runs.append(live.run)
        for rank, name in enumerate(names[:2]):
            live.wait_for(f"[{rank} {name}:0] attempt 1")
    return live


def ended_well(scene: Scene, live: Live, attempt: int) -> Done:
    """The workers are let go; the run has succeeded in that attempt, and no two attempts were under way at once."""
    scene.release()
    done = scene.seen(live.end())
    told = f"{done.err}\n{invariants.recorded(scene.hosts, live.run)}"
    assert (done.code, "succeeded" in done.notes[-1]) == (0, True), told
    assert scene.user.status(live.run)["attempt"] == attempt, told
    one_at_a_time(scene, live.run)
    return done


def one_at_a_time(scene: Scene, run: str) -> None:
    """Each attempt's last sign of life, on any host, came before the first of the next."""
    lives: dict[int, list[float]] = {}
    for said in scene.user.run("logs", run, "--attempt", "all").workers:
        _, attempt, _, at = said.text.split()
        lives.setdefault(int(attempt), []).append(float(at))
    spans = [(min(times), max(times)) for _, times in sorted(lives.items())]
    assert all(before[1] < after[0] for before, after in pairwise(spans)), spans


def pids(host: LabHost, run: str) -> list[int]:
    """The workers of a run on a host."""
    return [seen.pid for seen in host.leftovers(run) if any(word.endswith("beats.py") for word in seen.cmdline)]


def supervisor_stopped(scene: Scene) -> None:
    live, victim = under_way_with_a_spare(scene), scene.chance.choice(scene.hosts[:2])
    scene.fault(f"SIGSTOP of {victim.name}'s supervisor for {HELD:g} s")
    stopped = str(scene.pid(victim, "supervisor"))
    victim.run(["kill", "-STOP", stopped], user="root")
    live.wait_for("attempt 2 at")
    assert not pids(victim, live.run)
    scene.until_it_has_lasted(HELD)
    victim.run(["kill", "-CONT", stopped], user="root")
    ended_well(scene, live, 2)


def disk_stalls(scene: Scene) -> None:
    """Nobody is lost: run control does not wait for a disk."""
    victim = scene.chance.choice(scene.hosts[:2])
    state = f"/home/{victim.users[0].name}/.clusterddp"
    victim.disk_of_its_own(state)
    live = under_way_with_a_spare(scene)
    scene.fault(f"the spool's disk on {victim.name} stalls for {HELD:g} s")
    victim.stall_disk(state)
    scene.until_it_has_lasted(HELD)
    victim.go_on()
    ended_well(scene, live, 1)
    assert "attempt 2" not in live.text("err")


def disk_stalls_in_a_relaunch(scene: Scene) -> None:
    """The attempt ends while a node cannot write that it does; another begins once it can."""
    victim, other = scene.chance.sample(scene.hosts[:2], 2)
    state = f"/home/{victim.users[0].name}/.clusterddp"
    victim.disk_of_its_own(state)
    live = under_way_with_a_spare(scene)
    scene.fault(f"{other.name}'s agent is killed, the spool's disk on {victim.name} stalls for {HELD:g} s")
    agent = scene.pid(other, "agent")
    victim.stall_disk(state)
    other.kill(agent)
    scene.until_it_has_lasted(HELD)
    victim.go_on()
    live.wait_for("attempt 2 at")
    ended_well(scene, live, 2)


def host_frozen(scene: Scene) -> None:
    """A host that slept ends its part within a second of waking; the others are in another attempt by then."""
    live, victim = under_way_with_a_spare(scene), scene.chance.choice(scene.hosts[:2])
    scene.fault(f"{victim.name} frozen whole for {ASLEEP:g} s or more")
    victim.freeze()
    live.wait_for("attempt 2 at")
    scene.until_it_has_lasted(ASLEEP)
    assert pids(victim, live.run)
    victim.go_on()
    wait_until(f"{victim.name} ends its part", lambda: not pids(victim, live.run), AWAKE)
    scene.release()
    done = scene.seen(live.end())
    assert (done.code, "succeeded" in done.notes[-1]) == (0, True), done.err


def lead_replaced_by_a_relay(scene: Scene) -> None:
    """Who takes a dead lead's address and hands bytes on to another supervisor is nobody."""
    live, dead = under_way_with_a_spare(scene), scene.hosts[0]
    known = json.loads((invariants.spool(scene.hosts[1], live.run) / "peers.json").read_text())["addresses"]
    scene.fault(f"power cut of {dead.name}, which leads; a relay to {scene.hosts[1].name} on its address")
    dead.power_off()
    with relay(scene, dead.address, known[0][1], known[1]) as told:
        live.wait_for("attempt 2 at")
        wait_until("somebody calls the relay", lambda: told.exists() and told.stat().st_size, 30)
        let_pass(5.0)
        ended_well(scene, live, 2)


@contextlib.contextmanager
def relay(scene: Scene, address: str, port: int, target: tuple[str, int]) -> Iterator[Path]:
    """Hands on whatever comes to an address of the front network; notes how much in a file."""
    place, told = network.switch(scene.lab.number), scene.user.folder / "relayed"
    command("ip", "-n", place, "addr", "add", f"{address}/24", "dev", network.FRONT)
    for host in scene.hosts[1:]:
        command("ip", "-n", host.namespace, "neigh", "flush", "dev", "eth0")
    argv = ["ip", "netns", "exec", place, sys.executable, str(RELAY), address, str(port), *map(str, target), str(told)]
    running = subprocess.Popen(argv, env=dict(os.environ))
    try:
        yield told
        assert running.poll() is None
    finally:
        running.kill()
        running.wait(10)
        command("ip", "-n", place, "addr", "del", f"{address}/24", "dev", network.FRONT)


HELD_UP = (
    Lost(name="host frozen whole", hosts=3, play=host_frozen),
    Lost(name="supervisor stopped for 45 s", hosts=3, play=supervisor_stopped),
    Lost(name="disk stalls for 45 s", hosts=3, play=disk_stalls),
    Lost(name="disk stalls in a relaunch", hosts=3, play=disk_stalls_in_a_relaunch),
    Lost(name="lead replaced by a relay", hosts=3, play=lead_replaced_by_a_relay),
)


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize(
    "lost",
    [lost if lost.name == "host frozen whole" else pytest.param(lost, marks=LONG) for lost in HELD_UP],
    ids=lambda lost: lost.name,
)
def test_who_is_held_up(lost: Lost, number: int, under_way: UnderWay) -> None:
    outcome(under_way[lost.name, number], lost.name)
