"""Who follows a run, or waits for it, hears how it ended though a host's stream stays open and brings nothing.

That a follower has not waited for a stream is seen by what it never says: "interrupted" would be said of a silent host
after its limit of half a minute, and nobody here heals a host before the follower has ended. When it has ended is
compared with when the first host wrote the verdict: well before that limit, however busy the machine is.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.chaos import invariants
from tests.lab.network import OPERATOR
from tests.lab.system import wait_until
from tests.remedies import remedy, type_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.conftest import Play
    from tests.chaos.scene import Scene
    from tests.integration.cli import Done, Live
    from tests.lab.host import LabHost

MISSING = remedy("runs/ending.py", "`clusterddp logs {} --attempt {} --host {}` asks for them again")
LINES = 100
LIMIT = 120.0  # seconds until all have heard how the run ended
HEARD = 20.0  # seconds after the first host has written the verdict: who waits for a silent stream hears it after 30
BEFORE_LOGIN = 8.0  # the same for who waits for no connection that is still tried: one is tried for 10


def freeze(host: LabHost) -> None:
    """The processes of its SSH connections are stopped: open, and silent."""
    host.pause()


def part_from_operator(host: LabHost) -> None:
    """Not a packet between it and the operator, and no answer that says so; the hosts hear each other."""
    host.drop(proto="all", direction="both", peer=f"{host.address.rpartition('.')[0]}.{OPERATOR}")


FAULTS = {"frozen connection": freeze, "dropped packets": part_from_operator}


def followers(scene: Scene, stack: ExitStack, *options: str, waits: bool = True) -> dict[str, Live]:
    """A run that has counted, attached; and who follows it, reads it as JSON, and ``waits`` for it beside that."""
    live = stack.enter_context(scene.user.start("run", *options, *scene.counting(LINES)))
    scene.runs.append(live.run)
    for rank, host in enumerate(scene.hosts):
        live.wait_for(f"[{rank} {host.name}:0] counted")
    found = {"run": live}
    for words in (("logs", "--follow"), ("logs", "--follow", "--json"), *([("wait",)] if waits else [])):
        found[" ".join(words)] = stack.enter_context(scene.user.start(*words, live.run))
    for name in ("logs --follow", "logs --follow --json"):
        found[name].wait_for("counted", times=len(scene.hosts))
    return found


def ended(scene: Scene, found: dict[str, Live], seconds: float) -> dict[str, Done]:
    """How all of them ended, each in so many seconds after the first host has written the verdict."""
    at: dict[str, float] = {}

    def all_have() -> bool:
        at.update(
            {name: time.time() for name, live in found.items() if name not in at and live.process.poll() is not None}
        )
        return len(at) == len(found)

    wait_until("all have heard how the run ended", all_have, LIMIT)
    spools = [invariants.spool(host, scene.runs[-1]) for host in scene.hosts if host.running]
    written = min(path.stat().st_mtime for spool in spools if (path := spool / "verdict.json").exists())
    done = {name: live.end() for name, live in found.items()}
    late = {name: round(then - written, 2) for name, then in at.items() if then - written > seconds}
    assert not late, (late, done["run"].err)
    return done


def ends(scene: Scene, found: dict[str, Live], victim: LabHost) -> dict[str, Done]:
    """How all of them ended; none has waited for the victim's stream, and all who show lines say so."""
    done = ended(scene, found, HEARD)
    for name, one in done.items():
        assert "interrupted" not in one.err, (name, one.err)
        missing = [note for note in one.notes if note.startswith(f"lines of {victim.name} since ")]
        assert len(missing) == (0 if name == "wait" else 1), (name, one.err)
    return done


@pytest.mark.parametrize("place", [0, -1], ids=["first host", "last host"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_run_that_ended_well_is_heard_of_without_the_stream_of_a_silent_host(
    play: Play, fault: Callable[[LabHost], None], place: int
) -> None:
    with play(f"end heard, {fault.__name__} {place}") as scene, ExitStack() as stack:
        found, victim = followers(scene, stack), scene.hosts[place]
        scene.fault(f"{victim.name}: {fault.__name__}; the run ends")
        fault(victim)
        scene.release()
        done = ends(scene, found, victim)
        scene.seen(done["run"])
        assert {name: one.code for name, one in done.items()} == dict.fromkeys(found, 0)
        victim.heal()
        victim.resume()
        (line,) = MISSING.commands(done["run"].err)
        again = type_line(scene.user, line)
        assert [said.text for said in again.workers][-1] == "counted"


def test_a_wait_that_begins_while_a_host_is_silent_hears_the_end_as_soon(play: Play) -> None:
    """It has found its run without that host, to which a connection is tried for ten seconds."""
    with play("end heard, silent from the start") as scene, ExitStack() as stack:
        run, victim = scene.detached(*scene.counting(LINES)), scene.hosts[-1]
        scene.fault(f"{victim.name}: dropped packets; a `wait` begins; the run ends")
        part_from_operator(victim)
        found = {"run": stack.enter_context(scene.user.start("wait", "-v", run))}
        found["run"].wait_for(f"{scene.hosts[0].name}: runs begins", stream="err")
        scene.release()
        done = scene.seen(ended(scene, found, BEFORE_LOGIN)["run"])
        assert (done.code, f"run {run}: succeeded" in done.err) == (0, True), done.err
        victim.heal()


@pytest.mark.parametrize("place", [0, -1], ids=["first host", "last host"])
def test_a_host_without_power_does_not_hold_up_the_verdict(play: Play, place: int) -> None:
    with play(f"end heard, power cut {place}") as scene, ExitStack() as stack:
        found, victim = followers(scene, stack, "--relaunch", "1"), scene.hosts[place]
        scene.fault(f"power cut of {victim.name}, and too few are left for another attempt")
        victim.power_off()
        done = ends(scene, found, victim)
        scene.seen(done["run"])
        assert {name: one.code for name, one in done.items()} == dict.fromkeys(found, 125)
        for one in done.values():
            assert one.notes[-1].endswith(f"{victim.name} was lost: no answer")
        assert done["run"].notes[-1] in scene.user.run("status", scene.runs[-1]).out


@pytest.mark.parametrize("options", [(), ("--relaunch", "1")], ids=["lost at once", "lost after a while"])
def test_the_only_host_that_knows_the_verdict_is_asked_over_a_new_connection(
    play: Play, options: tuple[str, ...]
) -> None:
    """The other host's supervisor is killed, with its fence where it would tell of that.

    A follower that reads the verdict in the project, where the first to hear it has kept it, needs no connection.
    """
    with play(f"end heard, only host {options}") as scene, ExitStack() as stack:
        found, (gone, knows) = followers(scene, stack, *options, waits=False), scene.hosts
        scene.fault(f"{knows.name}: freeze; {gone.name}'s supervisor killed")
        supervisor = str(scene.pid(gone, "supervisor"))
        fence = gone.run(["ps", "-o", "ppid=", "-p", supervisor], user="root").stdout.split()
        freeze(knows)
        gone.run(["kill", "-KILL", *(fence if options else []), supervisor], user="root")
        done = ended(scene, found, HEARD)
        scene.seen(done["run"])
        assert {name: one.code for name, one in done.items()} == dict.fromkeys(found, 125)
        assert all(one.notes[-1].endswith(f"{gone.name} was lost: its supervisor is gone") for one in done.values())
        asked = {name for name, one in done.items() if f"logs of {knows.name} are interrupted" in one.err}
        incomplete = {name for name, one in done.items() if f"lines of {knows.name} since " in one.err}
        assert asked
        assert asked | incomplete == set(found)
        for name in set(found) - incomplete - {"logs --follow --json"}:
            scene.counted(done[name], LINES, len(scene.hosts))
