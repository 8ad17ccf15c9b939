"""What a host does to the run on it: processes die, its disk is full, its clock wrong, its home everybody's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.chaos import invariants

if TYPE_CHECKING:
    from tests.chaos.conftest import Play
    from tests.conftest import MakeLab

CANNOT = 125  # the exit code of a fault that is not the script's


def test_an_agent_is_killed(play: Play) -> None:
    with play("agent killed") as scene:
        victim = scene.chance.choice(scene.hosts)
        with scene.user.start("run", *scene.counting(300)) as live:
            scene.runs.append(live.run)
            for rank, host in enumerate(scene.hosts):
                live.wait_for(f"[{rank} {host.name}:0] counted")
            scene.fault(f"SIGKILL of {victim.name}'s agent")
            victim.kill(scene.pid(victim, "agent"))
            done = scene.seen(live.end())
        assert (done.code, done.notes[-1]) == (CANNOT, f"torchrun on {victim.name} was killed by SIGKILL")
        scene.counted(done, 300, 2)


def test_the_disk_of_the_spool_is_full_for_a_while(play: Play, make_lab: MakeLab) -> None:
    """Training goes on and ends as it would have; what could not be written is lost, and said to be."""
    lines = 2000
    lab = make_lab(2)
    with play("disk full", lab.hosts, lab) as scene:
        host = scene.chance.choice(scene.hosts)
        state = f"/home/{host.users[0].name}/.clusterddp"
        host.small_disk(state, size="8m")  # two copies of the zipapp, and room for lines
        scene.torn = True
        with scene.user.start("run", *scene.counting(lines, 4)) as live:
            scene.runs.append(live.run)
            live.wait_for("line 100")
            scene.fault(f"the spool's disk on {host.name} is full for a while")
            host.fill_disk(state)
            for rank, each in enumerate(scene.hosts):
                if each is not host:
                    live.wait_for(f"[{rank} {each.name}:0] counted")
            host.run(["rm", f"{state}/.filled"])
            scene.release()
            done = scene.seen(live.end())
        account = invariants.account(done, lines, 2)
        scene.row.lines = (2 * lines, account.lost, account.doubled)
        assert (done.code, account.doubled, account.disordered) == (0, 0, ()), done.err
        assert 0 < account.lost < lines
        told = rf"{host.name}: \d+ bytes of output were lost: disk full"
        assert [note for note in done.notes if re.fullmatch(told, note)], done.err


def test_a_clock_is_wrong_and_takes_a_step(play: Play, make_lab: MakeLab) -> None:
    lab = make_lab(2)
    with play("clock wrong", lab.hosts, lab) as scene:
        wrong, step = (scene.chance.choice([-1, 1]) * scene.chance.uniform(20, 400) for _ in range(2))
        host = scene.chance.choice(scene.hosts)
        host.skew_clock(wrong)
        with scene.user.start("run", *scene.counting(300)) as live:
            scene.runs.append(live.run)
            live.wait_for("counted")
            scene.fault(f"{host.name}'s clock {wrong:+.0f} s wrong, then {step:+.0f} s")
            host.skew_clock(step)
            scene.release()
            done = scene.seen(live.end())
        assert (done.code, "succeeded" in done.notes[-1]) == (0, True), done.err
        scene.counted(done, 300, 2)


def test_a_home_is_shared_by_all_hosts(play: Play, make_lab: MakeLab) -> None:
    lab = make_lab(3, shared_home=True)
    with play("shared home", lab.hosts, lab) as scene:
        scene.fault("one /home for all hosts, and a follower more")
        with scene.user.start("run", *scene.counting(500, 1)) as live:
            scene.runs.append(live.run)
            live.wait_for("line 1")
            with scene.user.start("logs", "--follow", live.run) as follower:
                scene.release()
                read, done = follower.end(), scene.seen(live.end())
        assert (done.code, read.code) == (0, 0), done.err
        scene.counted(read, 500, 3)
        scene.counted(done, 500, 3)
        run = scene.detached(*scene.counting(500))
        stop = scene.user.run("stop", run, "--grace", "0")
        assert (stop.code, sum(note.endswith("proved empty") for note in stop.notes)) == (0, 3), stop.err
