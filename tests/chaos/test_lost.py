"""Hosts are lost, or lose each other: what takes its minutes, on hosts of their own beside the rest of the suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.beside import STARTING, Lost, outcome
from tests.chaos.invariants import spool
from tests.chaos.rounds import ROUNDS
from tests.lab.network import OPERATOR
from tests.lab.system import wait_until

if TYPE_CHECKING:
    from tests.chaos.beside import UnderWay
    from tests.chaos.scene import Scene
    from tests.integration.cli import Done, Live
    from tests.lab.host import LabHost

CANNOT = 125  # the exit code of a fault that is not the script's
PATIENCE = 300.0  # seconds until a run ends whose nodes have lost each other
SOON = 60.0  # seconds until a run ends whose workers have all ended, or are known to be lost
CUT, FROZEN = 30.0, 40.0  # seconds; a silent connection is given up after 30
COUNTED = 300


def started(scene: Scene, lines: int, seconds: float = 0, *options: str) -> Live:
    """A run on all hosts whose workers print."""
    with STARTING:
        live = scene.enter(scene.user.start("run", *options, *scene.counting(lines, seconds)))
        scene.runs.append(live.run)
        for rank, host in enumerate(scene.hosts):
            live.wait_for(f"[{rank} {host.name}:0] line 0")
    return live


def counted(scene: Scene, live: Live) -> None:
    """Until all workers have counted; now they wait."""
    for rank, host in enumerate(scene.hosts):
        live.wait_for(f"[{rank} {host.name}:0] counted")


def attached(scene: Scene, *options: str) -> Live:
    """A run whose workers have counted."""
    live = started(scene, COUNTED, 0, *options)
    counted(scene, live)
    return live


def ended(scene: Scene, live: Live) -> Done:
    live.process.wait(PATIENCE)
    return scene.seen(live.end())


def names_the_lost(scene: Scene, live: Live, victim: LabHost, why: str = "") -> None:
    done = ended(scene, live)
    line = f"{victim.name} was lost"
    assert (done.code, done.notes[-1][: len(line)]) == (CANNOT, line), done.err
    assert why in done.notes[-1]
    scene.counted(done, COUNTED, len(scene.hosts))


def host_powered_off(scene: Scene) -> None:
    live, victim = attached(scene), scene.chance.choice(scene.hosts[1:])
    scene.fault(f"power cut of {victim.name}")
    victim.power_off()
    names_the_lost(scene, live, victim)


def lead_powered_off(scene: Scene) -> None:
    live, victim = attached(scene), scene.hosts[0]
    scene.fault(f"power cut of {victim.name}, which leads")
    victim.power_off()
    names_the_lost(scene, live, victim)


def host_rebooted(scene: Scene) -> None:
    live, victim = attached(scene), scene.chance.choice(scene.hosts)
    scene.fault(f"power cut and boot of {victim.name}")
    victim.power_off()
    victim.boot()
    names_the_lost(scene, live, victim, "it was rebooted")


def supervisor_killed(scene: Scene) -> None:
    live, victim = attached(scene), scene.chance.choice(scene.hosts)
    scene.fault(f"SIGKILL of {victim.name}'s supervisor")
    victim.kill(scene.pid(victim, "supervisor"))
    names_the_lost(scene, live, victim, "its supervisor is gone")


def node_killed_at_the_end(scene: Scene) -> None:
    """The workers of the others end before it is known that a host is lost: they wait for it no longer than that.

    Not the first host: with the store on it the others could not end, and another attempt would follow.
    """
    live, victim = attached(scene, "--nnodes", "2:3", "--relaunch", "2"), scene.chance.choice(scene.hosts[1:])
    scene.fault(f"SIGKILL of {victim.name}'s supervisor and fence, then the others' workers end")
    supervisor = scene.pid(victim, "supervisor")
    fence = victim.run(["ps", "-o", "ppid=", "-p", str(supervisor)], user="root").stdout.strip()
    victim.run(["kill", "-KILL", fence, str(supervisor)], user="root")
    wait_until(f"{victim.name}'s workers are gone", lambda: not victim.leftovers("counts.py"), PATIENCE)
    scene.release()
    live.process.wait(SOON)
    done = scene.seen(live.end())
    assert (done.code, "succeeded" in done.notes[-1]) == (0, True), done.err
    scene.counted(done, COUNTED, len(scene.hosts))


def control_cut(scene: Scene) -> None:
    """A host is parted from the others while SSH reaches all."""
    live, victim = attached(scene), scene.chance.choice(scene.hosts[1:])
    scene.fault(f"{victim.name} parted from the others, SSH works")
    for other in scene.hosts:
        if other is not victim:
            victim.drop(proto="all", direction="both", peer=other.address)
    names_the_lost(scene, live, victim)


def two_parted(scene: Scene) -> None:
    """Two hosts lose each other while SSH reaches both: one verdict counts, at once and later."""
    live, (first, second) = attached(scene), scene.hosts
    scene.fault(f"{first.name} and {second.name} parted, SSH works")
    second.drop(proto="all", direction="both", peer=first.address)
    done = ended(scene, live)
    assert done.code == CANNOT
    assert done.notes[-1] in {f"{host.name} was lost: no answer" for host in scene.hosts}, done.err
    scene.counted(done, COUNTED, len(scene.hosts))
    wait_until("both have judged", lambda: len(judged(scene)) == len(scene.hosts), PATIENCE)
    assert scene.user.status(live.run)["verdict"] == done.notes[-1]


def judged(scene: Scene) -> list[LabHost]:
    """The hosts that have kept how the last run ended."""
    return [host for host in scene.hosts if (spool(host, scene.runs[-1]) / "verdict.json").exists()]


def operator_cut(scene: Scene) -> None:
    """The operator reaches no host while the run ends: that is said, and the end is heard afterwards."""
    live = attached(scene)
    scene.fault("SSH to all hosts dropped; the run ends")
    for host in scene.hosts:
        host.drop(proto="all", direction="both", peer=f"{host.address.rpartition('.')[0]}.{OPERATOR}")
    scene.release()
    live.wait_for("no host of the run answers since ", stream="err")
    for host in scene.hosts:
        host.heal()
    done = ended(scene, live)
    assert (done.code, "succeeded" in done.notes[-1]) == (0, True), done.err
    scene.counted(done, COUNTED, len(scene.hosts))


def ssh_cut(scene: Scene) -> None:
    """SSH to a host is cut while run control works: a stop of the others reaches it."""
    live, victim = attached(scene), scene.chance.choice(scene.hosts)
    scene.fault(f"SSH to {victim.name} dropped, `stop --grace 0`")
    victim.drop(22)
    stop = scene.user.run("stop", live.run, "--grace", "0")
    assert stop.code == 1
    assert any(victim.name in note and "again finishes the work" in note for note in stop.notes), stop.err
    wait_until(f"{victim.name} was stopped too", lambda: not victim.leftovers(f"CLUSTERDDP_RUN_ID={live.run}"), 60)
    victim.heal()
    again = scene.user.run("stop", live.run, "--grace", "0")
    assert again.code == 0, again.err
    done = ended(scene, live)
    assert (done.code, done.notes[-1]) == (143, "stopped: by another command")
    scene.counted(done, COUNTED, len(scene.hosts))


def cable_cut(scene: Scene) -> None:
    """A short cut is outlived, and not a line is lost."""
    lines, victim = 1000, scene.chance.choice(scene.hosts)
    live = started(scene, lines, CUT)
    scene.fault(f"cable of {victim.name} out for {CUT:.0f} s")
    victim.cut()
    scene.until_it_has_lasted(CUT)
    victim.heal()
    goes_on(scene, live, lines)


def connection_frozen(scene: Scene) -> None:
    lines, victim = 1000, scene.chance.choice(scene.hosts)
    live = started(scene, lines, FROZEN)
    scene.fault(f"sshd's children on {victim.name} stopped for good")
    victim.pause()
    scene.until_it_has_lasted(FROZEN)
    goes_on(scene, live, lines)


def goes_on(scene: Scene, live: Live, lines: int) -> None:
    counted(scene, live)
    scene.release()
    done = ended(scene, live)
    assert (done.code, "succeeded" in done.notes[-1]) == (0, True), done.err
    scene.counted(done, lines, len(scene.hosts))


LOST = (
    Lost(name="host powered off", hosts=3, play=host_powered_off),
    Lost(name="lead powered off", hosts=3, play=lead_powered_off),
    Lost(name="host rebooted", hosts=3, play=host_rebooted),
    Lost(name="supervisor killed", hosts=3, play=supervisor_killed),
    Lost(name="node killed at the end", hosts=3, play=node_killed_at_the_end),
    Lost(name="run control cut", hosts=3, play=control_cut),
    Lost(name="two hosts parted", hosts=2, play=two_parted),
    Lost(name="operator cut off", hosts=2, play=operator_cut),
    Lost(name="SSH cut, stopped", hosts=2, play=ssh_cut),
    Lost(name="cable out for 30 s", hosts=2, play=cable_cut),
    Lost(name="connection frozen for good", hosts=2, play=connection_frozen),
)


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("lost", LOST, ids=lambda lost: lost.name)
def test_what_is_lost(lost: Lost, number: int, under_way: UnderWay) -> None:
    outcome(under_way[lost.name, number], lost.name)
