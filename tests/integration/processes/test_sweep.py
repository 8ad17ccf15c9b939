"""A stop finds what has escaped in every way, also without the supervisor, and touches no stranger."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clusterddp.hosts.client import Host
from clusterddp.remote.processes import roster
from clusterddp.remote.shared.schema.json_text import read_json
from clusterddp.remote.system import procfs
from tests.integration.escapees import EVERY_WAY, HEADLESS, LOADER, OF_ANOTHER, WAYS
from tests.integration.freezer import freeze, freezing, thaw
from tests.integration.real_helper import Shell, alive, entry, opened, wait_for
from tests.integration.runs_started import Started, gone, kill_supervisor, on_the_roll, running, with_constant
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts are Linux")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node")


@pytest.fixture(scope="module")
def host(folder: Path) -> Iterator[Host]:
    with opened(folder / "state") as shared:
        yield shared


def headless(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@contextlib.contextmanager
def stranger(*argv: str, **options: object) -> Iterator[int]:
    """A process of the user's own that stands near the run."""
    with subprocess.Popen(argv or ["sleep", "600"], **options) as process:  # type: ignore[call-overload]
        try:
            yield process.pid
        finally:
            process.kill()


class TestEscapees:
    def test_every_way_out_is_found(self, host: Host, folder: Path) -> None:
        with running(host, folder, EVERY_WAY) as node:
            pids = node.pids(*WAYS)
            proof = node.stop(grace=0.2)
            assert gone(*pids)
        (told,) = proof["nodes"]
        assert (told["survivors"], told["unknown"], proof["proved_empty"]) == ([], [], True)
        assert told["killed"] == len(WAYS)
        assert told["found"] == len(WAYS) + 1  # the supervisor, which ended by itself
        assert node.ended() == told["exit"]

    def test_also_when_the_supervisor_was_killed_before(self, host: Host, folder: Path) -> None:
        with running(host, folder, EVERY_WAY) as node:
            agent, *rest = pids = node.pids(*WAYS)
            on_the_roll(node, *pids)
            kill_supervisor(node)
            wait_for(lambda: gone(agent), "the agent's end")  # the kernel's doing
            assert set(rest) == set(node.status().pids)
            proof = node.stop()
            assert gone(*pids)
        (told,) = proof["nodes"]
        assert (told["survivors"], told["unknown"], told["found"], told["killed"]) == ([], [], len(rest), len(rest))
        assert told["exit"]["state"] == "lost"
        assert not Path(node.spool.path(roster.ROSTER_FILE)).exists()  # its numbers will be others' one day

    def test_what_the_supervisor_never_wrote_down_is_found_by_its_files_and_its_folder(
        self, host: Host, folder: Path
    ) -> None:
        with running(host, folder, EVERY_WAY) as node:
            pids = dict(zip(WAYS, node.pids(*WAYS), strict=True))
            kill_supervisor(node)
            Path(node.spool.path(roster.ROSTER_FILE)).unlink(missing_ok=True)
            found = {"session", "bare", "orphan", "writing_orphan", "standing_orphan"}
            wait_for(lambda: gone(pids["agent"]), "the agent's end")
            assert {way for way, pid in pids.items() if pid in node.status().pids} >= found - {"bare"}
            assert node.stop()["proved_empty"]
            assert gone(*(pids[way] for way in found))
            for way in set(WAYS) - found:  # nothing is left to know these by
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pids[way], signal.SIGKILL)

    def test_a_process_that_lives_on_without_its_main_thread(self, host: Host, folder: Path) -> None:
        with running(host, folder, HEADLESS) as node:
            (pid,) = node.pids("headless")
            wait_for(lambda: headless(pid), "the main thread's end")
            seen = procfs.read_process(pid)
            assert seen
            assert (seen.pid, seen.folder.startswith(f"/proc/{pid}/task/")) == (pid, True)
            assert pid in node.status().pids
            assert node.stop()["proved_empty"]
            assert procfs.read_process(pid) is None

    @pytest.mark.torch
    def test_data_loader_workers(self, host: Host, folder: Path) -> None:
        need_torch()
        with running(host, folder, LOADER) as node:
            pids = node.pids("loader0", "loader1")
            assert set(pids) <= set(node.status().pids)
            kill_supervisor(node)
            assert node.stop()["proved_empty"]
            assert gone(*pids)


@pytest.fixture
def freezer(tmp_path: Path) -> Iterator[Path]:
    with freezing(tmp_path) as group:
        yield group


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to freeze a process")
@pytest.mark.parametrize("killed", [False, True], ids=["supervised", "lost"])
def test_a_process_in_uninterruptible_sleep_is_reported(
    host: Host,
    folder: Path,
    freezer: Path,
    killed: bool,  # noqa: FBT001
) -> None:
    with running(host, folder, EVERY_WAY) as node:
        pids = dict(zip(WAYS, node.pids(*WAYS), strict=True))
        frozen = pids["wiped_orphan"]
        on_the_roll(node, *pids.values())
        (freezer / "cgroup.procs").write_text(str(frozen))
        freeze(freezer)
        if killed:
            kill_supervisor(node)
            wait_for(lambda: gone(pids["agent"]), "the agent's end")
        proof = node.stop()
        (told,) = proof["nodes"]
        assert not proof["proved_empty"]
        assert [(left["pid"], left["state"]) for left in told["survivors"]] == [(frozen, "D")]
        agent_and_supervisor = 2  # the lost run's are gone before
        expected = len(WAYS) + 1 - (agent_and_supervisor if killed else 0)
        assert (told["found"], told["killed"]) == (expected, len(WAYS) - 1 - killed)
        assert gone(*(pid for pid in pids.values() if pid != frozen))
        again = node.stop()
        assert [left["pid"] for left in again["nodes"][0]["survivors"]] == [frozen]
        thaw(freezer)  # SIGKILL is pending
        assert node.stop()["proved_empty"]


class TestStrangers:
    def test_two_runs_whose_supervisors_were_killed(self, host: Host, folder: Path) -> None:
        with running(host, folder, EVERY_WAY) as one, running(host, folder, EVERY_WAY) as other:
            mine, theirs = one.pids(*WAYS), other.pids(*WAYS)
            on_the_roll(one, *mine)
            on_the_roll(other, *theirs)
            kill_supervisor(one)
            kill_supervisor(other)
            wait_for(lambda: gone(theirs[0]), "the other agent's end")
            assert one.stop()["proved_empty"]
            assert gone(*mine)
            assert all(alive(pid) for pid in theirs[1:])
            assert other.status().state == "lost"
            assert other.stop()["proved_empty"]
            assert gone(*theirs)

    def test_another_runs_process_and_what_is_below_it(self, host: Host, folder: Path) -> None:
        with running(host, folder, OF_ANOTHER) as node:
            agent, foreign, below = node.pids("agent", "foreign", "below")
            try:
                on_the_roll(node, agent)
                assert not {foreign, below} & set(node.status().pids)
                (told,) = node.stop()["nodes"]
                assert (told["survivors"], told["unknown"]) == ([], [])
                assert gone(agent)
                assert alive(foreign)
                assert alive(below)
            finally:
                os.kill(below, signal.SIGKILL)
                os.kill(foreign, signal.SIGKILL)

    def test_a_shell_that_looks_at_the_runs_files(self, host: Host, folder: Path) -> None:
        with running(host, folder, EVERY_WAY) as node:
            node.pids(*WAYS)
            run_dir = node.spool.plan().run_dir
            with (
                stranger(cwd=node.spool.path("logs")) as shell,
                stranger("tail", "-f", node.spool.path("logs", "agent.out"), stdout=subprocess.DEVNULL) as reader,
                Path(run_dir, "notes").open("w") as notes,
                stranger(cwd=run_dir, stdout=notes) as writer,
            ):
                assert node.stop()["proved_empty"]
                assert all(alive(pid) for pid in (shell, reader, writer))

    def test_whoever_asks_from_inside_a_lost_run_lives_to_hear_the_answer(self, host: Host, folder: Path) -> None:
        with running(host, folder, EVERY_WAY) as node:
            pids = node.pids(*WAYS)
            on_the_roll(node, *pids)
            kill_supervisor(node)
            marked = {**os.environ, "CLUSTERDDP_RUN_ID": node.run, "CLUSTERDDP_HOST": "here"}
            with Host.open(entry(folder / "state"), Shell("/bin/sh", env=marked)) as inside:
                assert Started(host=inside, run=node.run, spool=node.spool).stop()["proved_empty"]
            assert gone(*pids)

    def test_a_users_session_in_which_something_has_the_marks(self, host: Host, folder: Path) -> None:
        with running(host, folder, EVERY_WAY) as node:
            node.pids(*WAYS)
            line = f"CLUSTERDDP_RUN_ID={node.run} CLUSTERDDP_HOST=here sleep 600 & sleep 601"
            with stranger("sh", "-c", line, start_new_session=True) as shell:
                inside = wait_for(lambda: len(found := session(shell)) == 3 and found, "the shell's children")
                marked = [pid for pid in inside if procfs.run_and_host(inside[pid])]
                assert node.stop()["proved_empty"]
                assert gone(*marked)
                assert alive(shell)
                os.killpg(shell, signal.SIGKILL)

    def test_a_number_on_the_roll_that_is_another_process_by_now(self, host: Host, folder: Path) -> None:
        with running(host, folder, EVERY_WAY) as node, stranger(start_new_session=True) as late:
            pids = node.pids(*WAYS)
            on_the_roll(node, *pids)
            kill_supervisor(node)
            value = read_json(node.spool.path(roster.ROSTER_FILE))
            seen = procfs.read_process(late)
            assert seen
            value["members"].append([late, seen.ticks - 1, late])
            rewrite(node, value)
            assert node.stop()["proved_empty"]
            assert alive(late)

    def test_a_session_that_nobody_can_vouch_for_is_neither_ended_nor_proved_empty(
        self, host: Host, folder: Path
    ) -> None:
        """Its number is on the roster, its first process is gone, and so is everybody who was seen in it."""
        leaderless = ("sh", "-c", "setsid sh -c 'sleep 600 >/dev/null & echo $!'")
        with running(host, folder, EVERY_WAY) as node:
            on_the_roll(node, *node.pids(*WAYS))
            kill_supervisor(node)
            late = int(subprocess.run(leaderless, stdout=subprocess.PIPE, timeout=30, check=True).stdout)
            try:
                seen = procfs.read_process(late)
                assert seen
                value = read_json(node.spool.path(roster.ROSTER_FILE))
                value["members"].append([seen.session, seen.ticks - 1, seen.session])
                rewrite(node, value)
                proof = node.stop()
                assert not proof["proved_empty"]
                (told,) = proof["nodes"]
                assert (told["survivors"], told["unknown"]) == (
                    [],
                    [f"process {late} (sleep 600) may be the run's or a stranger's"],
                )
                assert alive(late)
            finally:
                os.kill(late, signal.SIGKILL)


def session(leader: int) -> dict[int, procfs.ProcStat]:
    """All processes in a session."""
    return {seen.pid: seen for seen in procfs.snapshot().values() if seen.session == leader}


def rewrite(node: Started, value: object) -> None:
    """The roster with something in it that a reused number would leave there."""
    Path(node.spool.path(roster.ROSTER_FILE)).write_text(json.dumps(value))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a pid namespace")
class TestAnotherNamespace:
    """A container that shares the state folder: its processes have other numbers, or none, for us."""

    @pytest.fixture
    def inside(self, folder: Path) -> Iterator[Host]:
        shell = Shell("unshare", "--pid", "--fork", "--mount-proc", "/bin/sh")
        with Host.open(entry(folder / "state"), shell) as host:
            yield host

    def test_a_supervisor_there_obeys_and_proves(self, inside: Host, host: Host, folder: Path) -> None:
        with running(inside, folder, EVERY_WAY) as node:
            node.pids(*WAYS)
            proof = Started(host=host, run=node.run, spool=node.spool).stop()
            (told,) = proof["nodes"]
            assert (told["survivors"], told["unknown"], proof["proved_empty"]) == ([], [], True)
            assert told["exit"]["killed"] == len(WAYS)

    def test_without_its_word_nothing_is_proved(self, inside: Host, folder: Path) -> None:
        hasty = with_constant("processes/stop", "SUPERVISOR_SLACK = 20.0", "SUPERVISOR_SLACK = 0.5")
        outside = Host.open(entry(folder / "state"), Shell("/bin/sh"), hasty)
        with running(inside, folder, EVERY_WAY) as node, outside as host:
            node.pids(*WAYS)
            # Its fence looks the same, and is older.
            supervisor = max(seen.pid for seen in procfs.snapshot().values() if is_supervisor(seen, node))
            os.kill(supervisor, signal.SIGSTOP)
            proof = Started(host=host, run=node.run, spool=node.spool).stop()
            assert not proof["proved_empty"]
            assert "another pid namespace" in proof["nodes"][0]["unknown"][0]
        # The namespace ends with its connection, and all in it.


def is_supervisor(seen: procfs.ProcStat, node: Started) -> bool:
    return f"remote.pyz supervisor {node.spool.folder}" in procfs.command_line(seen)
