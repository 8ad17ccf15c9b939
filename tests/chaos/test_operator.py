"""The operator's commands are killed, and whatever they did is finished, undone or goes on; never half."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lab.system import let_pass, wait_until

if TYPE_CHECKING:
    from tests.chaos.conftest import Play
    from tests.chaos.scene import Scene

SOON = 4.0  # seconds that `up` or the start of a run takes on a slow machine


def kill_at_random(scene: Scene, *words: str, within: float) -> str:
    """Start a command and SIGKILL it at a moment of chance; returns what it had said on stderr."""
    after = scene.chance.uniform(0.1, within)
    with scene.user.start(*words) as live:
        let_pass(after)
        scene.fault(f"SIGKILL of `{words[0]}` after {after:.2f} s")
        live.process.kill()
        return live.end().err


def test_up_is_killed(play: Play) -> None:
    with play("up killed") as scene:
        kill_at_random(scene, "up", "inventory.yaml", within=SOON / 2)
        done = scene.seen(scene.user.run("up", "inventory.yaml"))
        assert done.code == 0
        assert done.notes[-1].startswith("ready: 2 nodes, 2 ranks")


@pytest.mark.parametrize("moment", range(2))
def test_a_run_is_killed(play: Play, moment: int) -> None:
    """Before all nodes have started it ends by itself or is stopped; afterwards it goes on."""
    with play(f"run killed {moment}") as scene:
        kill_at_random(scene, "run", *scene.counting(100), within=SOON)
        listed = scene.user.run("runs", "--json")
        assert listed.code == 0, listed.err
        scene.runs += [view["run"] for view in listed.json]
        done = scene.seen(scene.user.run("stop", "--all", "--grace", "0"))
        if done.code:
            assert done.notes[-1] == "no run of this project is live on these hosts"
        else:
            assert all(note.endswith("proved empty") for note in done.notes[1:])


def test_a_follower_is_killed_and_the_run_goes_on(play: Play) -> None:
    with play("logs killed") as scene:
        run = scene.detached(*scene.counting(500, 1))
        kill_at_random(scene, "logs", "--follow", run, within=SOON / 2)
        assert scene.user.status(run)["state"] in {"starting", "running"}
        with scene.user.start("logs", "--follow", run) as live:
            scene.release()
            done = scene.seen(live.end())
        assert (done.code, done.notes[-1]) == (0, f"run {run}: succeeded")
        scene.counted(done, 500, 2)


def test_a_stop_is_killed_and_the_next_finishes_it(play: Play) -> None:
    with play("stop killed") as scene:
        run = scene.detached(*scene.counting(10))
        kill_at_random(scene, "stop", run, "--grace", "0", within=SOON / 4)
        done = scene.seen(scene.user.run("stop", run, "--grace", "0"))
        assert done.code == 0, done.err
        assert all(note.endswith("proved empty") for note in done.notes[1:])
        assert scene.user.status(run)["state"] == "stopped"


def test_three_ranks_are_read_by_followers_that_die(play: Play) -> None:
    """The attached command and a last reader show every line once and in order, while others are killed."""
    lines, killed = 6000, 4
    with play("followers killed", hosts=3) as scene:
        with scene.user.start("run", *scene.counting(lines, 5)) as live:
            scene.runs.append(live.run)
            live.wait_for("line 1")
            scene.fault(f"SIGKILL of {killed} followers")
            for _ in range(killed):
                with scene.user.start("logs", "--follow", live.run) as follower:
                    follower.wait_for("line 10")
                    let_pass(scene.chance.uniform(0, 1))
            with scene.user.start("logs", "--follow", live.run) as last:
                for rank in range(3):
                    wait_until(f"rank {rank} has counted", lambda rank=rank: _counted(live.text(), rank), 60)  # type: ignore[misc]
                scene.release()
                read, done = last.end(), scene.seen(live.end())
        assert (read.code, done.code) == (0, 0)
        scene.counted(read, lines, 3)
        scene.counted(done, lines, 3)
        scene.counted(scene.user.run("logs", live.run), lines, 3)


def _counted(text: str, rank: int) -> bool:
    return any(line.startswith(f"[{rank} ") and line.endswith("counted") for line in text.splitlines())


def test_two_operators_run_at_once_and_one_stops_its_own(play: Play) -> None:
    with play("two operators") as first, play("two operators: the other") as second:
        with (
            first.user.start("run", *first.counting(300, 1)) as mine,
            second.user.start("run", *second.counting(300, 1)) as theirs,
        ):
            first.runs.append(mine.run)
            second.runs.append(theirs.run)
            for live in (mine, theirs):
                live.wait_for("counted")
            second.fault("the other one's `stop --grace 0`")
            first.fault("`stop --grace 0` of one of two runs")
            stop = first.user.run("stop", "--grace", "0")
            assert stop.code == 0, stop.err
            done = first.seen(mine.end())
            assert (done.code, done.notes[-1]) == (143, "stopped: by another command")
            assert all(not host.leftovers(mine.run) for host in first.hosts)
            assert second.user.status(theirs.run)["state"] == "running"
            second.release()
            done = second.seen(theirs.end())
        assert done.code == 0, done.err
        second.counted(done, 300, 2)
