"""The way to a host breaks under a reader, in every way it can; the run does not notice and no line is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lab import HostOptions
from tests.lab.faults import children
from tests.lab.system import ProcessId, kill_and_wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.conftest import Play
    from tests.chaos.scene import Scene
    from tests.conftest import MakeLab
    from tests.lab.host import LabHost

LINES = 2000
FROZEN = 5.0  # seconds
SMALLEST, LARGEST = 40_000, 100_000  # bytes; a helper that is there answers within 20,000, the workers print 140,000


def helpers(host: LabHost) -> list[ProcessId]:
    """The helpers on a host: below sshd there is a shell, below that the helper, below that its operations."""
    shells = {seen.pid for seen in host.processes() if seen.cmdline[:2] == ("/bin/sh", "-c")}
    found = [ProcessId.of(pid) for shell in shells for pid in children(shell)]
    return [process for process in found if process]


def freeze(scene: Scene) -> None:
    scene.fault(f"SIGSTOP of sshd's children for {FROZEN:.0f} s")
    scene.hosts[1].pause()
    scene.until_it_has_lasted(FROZEN)
    scene.hosts[1].resume()


def kill_helper(scene: Scene) -> None:
    scene.fault("SIGKILL of a helper")
    found = helpers(scene.chance.choice(scene.hosts))
    assert found
    kill_and_wait(found)


def reset(scene: Scene) -> None:
    size = scene.chance.randint(SMALLEST, LARGEST)
    scene.fault(f"every connection reset after {size} bytes")
    for host in scene.hosts:
        host.reset_after(size)


def lose(scene: Scene) -> None:
    scene.fault("5 % of all packets lost")
    for host in scene.hosts:
        host.lose(0.05)


# How, and whether the connection is lost by it.
BREAKS: dict[str, tuple[Callable[[Scene], None], bool]] = {
    "connection frozen": (freeze, False),
    "helper killed": (kill_helper, True),
    "connections reset": (reset, True),
    "packets lost": (lose, False),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_reader_loses_nothing_when_its_connection_breaks(play: Play, name: str) -> None:
    fault, breaks = BREAKS[name]
    with play(name) as scene:
        with scene.user.start("run", *scene.counting(LINES, 2)) as live:
            scene.runs.append(live.run)
            live.wait_for(f"line {scene.chance.randrange(LINES // 2)}")
            fault(scene)
            if breaks:  # else a run could have ended on a busy machine before its connection did
                live.wait_for("interrupted", stream="err")
            scene.release()
            done = scene.seen(live.end())
        assert (done.code, "succeeded" in done.notes[-1]) == (0, True), done.err
        assert ("interrupted" in done.err) == breaks
        scene.counted(done, LINES, 2)
        for host in scene.hosts:
            host.heal()
        scene.counted(scene.user.run("logs", live.run), LINES, 2)


def test_sshd_that_lets_few_in_serves_a_whole_session(play: Play, make_lab: MakeLab) -> None:
    lab = make_lab(2, options=HostOptions(max_startups="2:100:2", max_sessions=1))
    with play("MaxStartups 2, MaxSessions 1", lab.hosts, lab) as scene:
        scene.fault("sshd with MaxStartups 2 and MaxSessions 1")
        assert scene.user.up(scene.user.folder / "inventory.yaml").code == 0
        with scene.user.start("run", *scene.counting(500, 1)) as live:
            scene.runs.append(live.run)
            live.wait_for("counted")
            assert scene.user.status(live.run)["state"] == "running"
            assert scene.user.run("stop", "--grace", "0").code == 0
            done = scene.seen(live.end())
        assert (done.code, done.notes[-1]) == (143, "stopped: by another command")
        scene.counted(done, 500, 2)
