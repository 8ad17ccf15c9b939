"""What is removed from a host: old spools, helpers of other versions, a project's ended runs; and what never is."""

from __future__ import annotations

import json
import os
import sys
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.cleanup import retention
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.spool.layout import all_spools
from clusterddp.remote.system.bootstrap import write_json
from clusterddp.remote.system.disk_space import disk_usage
from clusterddp.remote.workdir.stat_cache import StatCache, write_stat_cache
from clusterddp.runs.node_answers import query_nodes
from tests.integration.escapees import EVERY_WAY, WAYS
from tests.integration.real_helper import alive, opened, wait_for
from tests.integration.runs_started import Started, gone, kill_supervisor, on_the_roll, running, with_constant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.hosts.client import Host
    from clusterddp.hosts.zipapp import Bundle

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts are Linux")
DAY = 86400.0
MOST_LEFT = 100_000  # bytes of disk that a run which does next to nothing leaves
WAITS = "import os, threading; print('agent', os.getpid()); threading.Event().wait(600)"
FILLS = """
    import os
    with open(os.path.join(os.environ["CLUSTERDDP_RUN_DIR"], "result"), "wb") as out:
        out.write(bytes(1000))
    print("x" * 1_000_000)
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with opened(tmp_path / "state") as own:
        yield own


def ended(host: Host, folder: Path, *, project: str = "p1", days: float = 0.0) -> Started:
    """A run that ended so many days ago."""
    with running(host, folder, FILLS) as node:
        node.ended()
    change(node.spool.path("exit.json"), ended=time.time_ns() - int(days * DAY * 1e9))
    of_project(node, project)
    return node


def of_project(node: Started, project: str) -> None:
    change(node.spool.path("plan.json"), record=to_fields(node.spool.plan().record._replace(project=project)))


def change(path: str, **values: object) -> None:
    write_json(path, {**json.loads(Path(path).read_text()), **values})  # whole at every moment: others read it


def runs_in(state: Path) -> set[str]:
    return {spool.run for spool in all_spools(str(state))}


def clean(host: Host, *, purge: bool = False, project: str = "p1") -> dict[str, Any]:
    told: dict[str, Any] = host.call("clean", {"hosts": ["here"], "project": project, "purge": purge})
    return told


def run_dir(node: Started, state: Path) -> Path:
    return state / "rundirs" / f"{node.run}-here"


def test_a_run_whose_plan_is_damaged_is_said_and_keeps_the_others_from_nothing(host: Host, tmp_path: Path) -> None:
    whole, damaged = ended(host, tmp_path), ended(host, tmp_path)
    plan = Path(damaged.spool.path("plan.json"))
    plan.write_bytes(plan.read_bytes()[:100])
    said: list[str] = []
    assert [node.run for node in query_nodes(host, "", said.append)] == [whole.run]
    (line,) = said
    assert line.startswith(f"here: run {damaged.run} cannot be shown: {plan} is damaged: ")
    assert query_nodes(host, damaged.run, said.append) == []
    with running(host, tmp_path, WAITS) as beside:
        assert query_nodes(host, beside.run, said.append)[0].state in ("starting", "running")
    assert len(said) == 2
    ours = {whole.run, damaged.run, beside.run}
    assert not [left for left in host.call("orphans", {"hosts": ["here"]}) if left["run"] in ours]
    assert clean(host, purge=True)["spools"] == 1
    assert runs_in(tmp_path / "state") == {damaged.run, beside.run}


class TestOldSpools:
    def test_by_age(self, host: Host, tmp_path: Path) -> None:
        state = tmp_path / "state"
        old, young = ended(host, tmp_path, days=31), ended(host, tmp_path, days=29)
        told = clean(host)
        assert runs_in(state) == {young.run}
        assert (told["spools"], told["run_dirs"], told["kept"], told["nothing_left"]) == (1, 0, [], False)
        assert told["bytes"] >= 1_000_000
        assert not (state / "runs" / old.run).exists()
        assert not [*state.glob(f"{retention.TRASH}*")]
        assert (run_dir(old, state) / "result").stat().st_size == 1000

    def test_by_size_the_oldest_first(self, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        nodes = [ended(host, tmp_path, days=days) for days in (3, 1, 2)]
        sizes = [disk_usage(node.spool.folder) for node in nodes]
        monkeypatch.setattr(retention, "MAX_BYTES", sum(sizes) - 1)
        removed = retention.prune(str(tmp_path / "state"), ["here"])
        assert (removed.spools, removed.bytes) == (1, sizes[0])
        monkeypatch.setattr(retention, "MAX_BYTES", sizes[1])
        removed = retention.prune(str(tmp_path / "state"), ["here"])
        assert (removed.spools, removed.bytes) == (1, sizes[2])
        assert runs_in(tmp_path / "state") == {nodes[1].run}

    def test_another_hosts_spools_are_its_own_affair(self, host: Host, tmp_path: Path) -> None:
        node = ended(host, tmp_path, days=99)
        assert retention.prune(str(tmp_path / "state"), ["there"]).spools == 0
        assert runs_in(tmp_path / "state") == {node.run}

    def test_never_a_live_runs(self, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(retention, "MAX_BYTES", 0)
        with running(host, tmp_path, WAITS) as node:
            node.word("agent")
            os.utime(node.spool.folder, (1, 1))
            # An earlier attempt of a live run has ended; it is the run's all the same.
            earlier = Path(node.spool.folder).parents[1] / "0" / "0-here"
            earlier.mkdir(parents=True)
            (earlier / "exit.json").write_text(json.dumps({"state": "failed", "exit_code": 1, "ended": 1}))
            assert retention.prune(str(tmp_path / "state"), ["here"]).spools == 0
            assert earlier.exists()
            assert node.stop()["proved_empty"]
        assert retention.prune(str(tmp_path / "state"), ["here"]).spools == 2

    def test_not_while_something_of_a_lost_run_is_left(self, host: Host, tmp_path: Path) -> None:
        with running(host, tmp_path, EVERY_WAY) as node:
            pids = node.pids(*WAYS)
            of_project(node, "p1")
            on_the_roll(node, *pids)
            kill_supervisor(node)
            wait_for(lambda: gone(pids[0]), "the agent's end")
            os.utime(node.spool.folder, (1, 1))
            told = clean(host, purge=True)
            assert (told["spools"], told["kept"], told["nothing_left"]) == (0, [node.run], False)
            assert runs_in(tmp_path / "state") == {node.run}
        assert clean(host, purge=True)["spools"] == 1

    def test_the_start_of_a_run_prunes_once_an_hour(self, host: Host, tmp_path: Path) -> None:
        first = ended(host, tmp_path, days=31)
        second = ended(host, tmp_path)  # it was started within the hour
        state = tmp_path / "state"
        assert first.run in runs_in(state)
        os.utime(state / "pruned", (1, 1))
        third = ended(host, tmp_path)
        assert runs_in(state) == {second.run, third.run}

    def test_whatever_we_keep_on_a_host_is_the_users_alone(self, host: Host, tmp_path: Path) -> None:
        state = tmp_path / "state"
        ended(host, tmp_path)
        ours = [path for path in state.rglob("*") if "rundirs" not in path.relative_to(state).parts]
        assert state / "pruned" in ours
        assert {path.name: oct(path.stat().st_mode) for path in ours if path.stat().st_mode & 0o077} == {}

    def test_what_goes_wrong_with_it_stops_no_run(self, host: Host, tmp_path: Path) -> None:
        node = ended(host, tmp_path, days=31)
        Path(node.spool.path("exit.json")).write_text("{torn")
        (tmp_path / "state" / "pruned").unlink()
        with running(host, tmp_path, WAITS) as other:
            other.word("agent")


class TestWhatARunLeaves:
    def test_a_small_run_takes_little_room_for_our_code_is_there_once(self, host: Host, tmp_path: Path) -> None:
        def taken() -> int:
            found = {(one.st_dev, one.st_ino): one.st_blocks for one in map(os.lstat, (tmp_path / "state").rglob("*"))}
            return 512 * sum(found.values())

        small(host, tmp_path)  # the folders that all runs share
        before = taken()
        node = small(host, tmp_path)
        assert taken() - before <= MOST_LEFT
        assert disk_usage(node.spool.folder) <= MOST_LEFT

    def test_its_code_outlives_the_helpers(self, host: Host, tmp_path: Path) -> None:
        node = small(host, tmp_path)
        for path in (tmp_path / "state" / "helper").iterdir():
            path.unlink()
        with zipfile.ZipFile(node.spool.path("remote.pyz")) as code:
            assert code.testzip() is None
        assert disk_usage(node.spool.folder) > 1_000_000  # now it is the last name of it


def small(host: Host, folder: Path) -> Started:
    """A run that writes a line and ends."""
    with running(host, folder, "print('here')") as node:
        node.ended()
    return node


class TestHelpers:
    def test_one_that_nobody_has_used_for_as_long_as_runs_are_kept_goes_at_a_start(
        self, host: Host, tmp_path: Path
    ) -> None:
        folder = tmp_path / "state" / "helper"
        older, newer = folder / ("0" * 64 + ".pyz"), folder / ("1" * 64 + ".pyz")
        for path, days in ((older, retention.MAX_AGE_DAYS + 1), (newer, retention.MAX_AGE_DAYS - 1)):
            path.write_bytes(b"of another version")
            os.utime(path, (time.time() - days * DAY,) * 2)
        small(host, tmp_path)
        assert (older.exists(), newer.exists()) == (False, True)

    def test_another_version_that_nobody_uses_goes(self, tmp_path: Path) -> None:
        folder = tmp_path / "state" / "helper"
        older, in_use = version("3 "), version("4 ")
        with opened(tmp_path / "state", older):
            pass
        with opened(tmp_path / "state", in_use) as other, opened(tmp_path / "state") as host:
            told = clean(host)
            assert told["helpers"] == 0  # used a moment ago: one may be about to open it
            for path in folder.iterdir():
                os.utime(path, (1, 1))
            assert clean(host)["helpers"] == 1
            names = {path.stem for path in folder.iterdir()}
            assert older.digest not in names
            assert {in_use.digest} < names
            assert other.call("runs", {"run": "", "hosts": ["here"]}) == []  # it works on


def version(text: str) -> Bundle:
    """Another version of the helper."""
    return with_constant("cleanup/retention", "PRUNE_TIMEOUT = 2.0", f"PRUNE_TIMEOUT = {text}")


class TestPurge:
    def test_only_this_projects_ended_runs_and_their_run_dirs(self, host: Host, tmp_path: Path) -> None:
        state = tmp_path / "state"
        mine, theirs = ended(host, tmp_path), ended(host, tmp_path, project="p2")
        with running(host, tmp_path, WAITS) as live:
            agent = live.pids("agent")[0]
            of_project(live, "p1")
            told = clean(host, purge=True)
            assert (told["spools"], told["run_dirs"], told["nothing_left"]) == (1, 1, False)
            assert runs_in(state) == {theirs.run, live.run}
            assert not run_dir(mine, state).exists()
            assert run_dir(theirs, state).exists()
            assert alive(agent)
        assert clean(host, purge=True, project="")["spools"] == 0  # no project has no runs

    def test_with_the_last_run_all_of_ours_goes_but_the_workdir(self, host: Host, tmp_path: Path) -> None:
        node = ended(host, tmp_path)
        work = tmp_path / "work"
        sync(host, work)
        assert clean(host)["workdirs"] == []  # the run speaks of it
        told = clean(host, purge=True)
        assert told["workdirs"] == [{"path": str(work), "days": 0}]
        assert (told["helpers"], told["nothing_left"]) == (1, False)
        assert (work / f"{node.run}.py").exists()
        left = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
        assert {path.parent.name for path in left} == {"workdirs"}

    def test_without_a_workdir_nothing_is_left(self, host: Host, tmp_path: Path) -> None:
        ended(host, tmp_path)
        told = clean(host, purge=True)
        assert told["nothing_left"]
        assert not (tmp_path / "state").exists()

    def test_another_connection_keeps_the_helper(self, host: Host, tmp_path: Path) -> None:
        ended(host, tmp_path)
        with opened(tmp_path / "state") as other:
            told = clean(host, purge=True)
            assert (told["helpers"], told["nothing_left"]) == (0, False)
            assert other.call("runs", {"run": "", "hosts": ["here"]}) == []


def sync(host: Host, folder: Path) -> None:
    """What a host remembers of a sync to that folder."""
    write_stat_cache(host.hello.state, os.fsencode(folder), StatCache("", 0, [], [], {}, b""))


class TestOrphans:
    def test_of_a_lost_run_and_of_one_nobody_knows_any_more(self, host: Host, tmp_path: Path) -> None:
        def told() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = host.call("orphans", {"hosts": ["here"]})
            return [one for one in found if one["run"] == node.run]  # other tests share this machine

        with running(host, tmp_path, EVERY_WAY) as node:
            agent, *rest = node.pids(*WAYS)
            assert told() == []
            on_the_roll(node, agent, *rest)
            kill_supervisor(node)
            wait_for(lambda: gone(agent), "the agent's end")
            (found,) = told()
            assert (found["host"], found["known"]) == ("here", True)
            assert {left["pid"] for left in found["processes"]} <= set(rest)
            assert node.pids("session")[0] in {left["pid"] for left in found["processes"]}
            marked = set(node.pids("session", "orphan"))
            moved = Path(node.spool.folder).rename(tmp_path / "aside")
            (unknown,) = told()
            moved.rename(node.spool.folder)
            assert not unknown["known"]
            assert {left["pid"] for left in unknown["processes"]} == marked
            assert node.stop()["proved_empty"]
            assert told() == []
